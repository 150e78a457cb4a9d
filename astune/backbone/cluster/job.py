"""What is to be done, as every process of a run on a cluster is told."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from astune.backbone.cluster.adapters import merge_adapters
from astune.backbone.cluster.evidence import differ
from astune.config.schema import AstuneConfig, ClusterEngine
from astune.runs import Checkpoint, CheckpointStore
from astune.schema import Task, TrainerError
from astune.task_reader import TaskOrder

_STATE = "engine.json"


@dataclass(frozen=True, slots=True)
class StepsToCome:
    """The tasks of each, as the local trainer takes them; how their order stands at first, and after each."""

    tasks: list[list[Task]]
    orders: list[dict[str, Any]]

    @classmethod
    def of(cls, config: AstuneConfig, tasks: Sequence[Task], left_off: LeftOff | None = None) -> StepsToCome:
        """One at least, for engines refuse to start without tasks.

        Raises:
            TaskReaderError: the run that goes on had other tasks, or another order.
        """
        order = TaskOrder([*tasks], config.seed, config.task_reader.stratify_by)
        done = 0
        if left_off is not None:
            order.load_state_dict(left_off.order)
            done = left_off.step
        made = cls([], [order.state_dict()])
        for _ in range(max(1, config.trainer.total_steps - done)):
            made.tasks.append(order.take(config.trainer.tasks_per_step))
            made.orders.append(order.state_dict())
        return made


@dataclass(frozen=True, slots=True)
class Job:
    """`validation_tasks` are those that are measured.

    `folder` is where the engine writes its own checkpoints; `left_off` is None for a new run.
    """

    engine: ClusterEngine
    config: AstuneConfig
    base_dir: Path | None
    model_folder: Path
    steps: StepsToCome
    validation_tasks: list[Task]
    folder: Path
    left_off: LeftOff | None = None
    measured: int = -1
    """The last step that held-out tasks were measured with; -1 for none."""

    @property
    def first_step(self) -> int:
        return 1 if self.left_off is None else self.left_off.step + 1

    def is_measured(self, step: int) -> bool:
        """Whether held-out tasks are run with the weights of a step."""
        trainer = self.config.trainer
        return bool(self.validation_tasks) and (step % trainer.test_freq == 0 or step == trainer.total_steps)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        config = self.config
        steps = range(self.first_step - 1, config.trainer.total_steps + 1)
        return {
            "config": config.model_dump(mode="json"),
            "base_dir": None if self.base_dir is None else str(self.base_dir.resolve()),
            "model_folder": str(self.model_folder),
            "training": [row for step in self.steps.tasks for row in _rows(step, config.rollout.num_repeat)],
            "validation": _rows(self.validation_tasks, config.trainer.validation.num_repeat),
            "checkpoints": str(self.folder),
            "resume_from": None if self.left_off is None else str(self.left_off.folder),
            "first_step": self.first_step,
            "measured": self.measured,
            "measured_steps": [step for step in steps if self.is_measured(step)],
        }

    def keep_checkpoint(
        self,
        checkpoints: CheckpointStore,
        step: int,
        folder: str,
        *,
        moved: bool,
        trained_s: float,
        score: float | None = None,
        unrated: Collection[int] = (),
    ) -> None:
        """Make one of ours of the engine's: its model in Hugging Face format, and where its own state lies.

        Args:
            moved: whether weights were trained since the run began.
            score: the part of the held-out tasks that the model solves, where it has been measured.
            unrated: steps that are still to be measured.

        Raises:
            TrainerError: they were, and those that were saved are the ones that it began with.
        """
        saved, lora = _model_in(Path(folder) / "actor"), self.config.model.lora

        def copy_model(to: Path) -> None:
            if lora.rank:
                merge_adapters(saved, to, scale=lora.alpha / lora.rank)
            else:
                shutil.copytree(saved, to, dirs_exist_ok=True)
            if moved and not differ(self.model_folder, to):
                raise TrainerError(
                    f"the weights of step {step} in {saved} are those that the run began with",
                    hint=f"{self.engine} did not save what it trained; look into its log",
                )

        def point(to: Path) -> None:
            order = self.steps.orders[step - self.first_step + 1]
            left_off = LeftOff(Path(folder), step, trained_s, order)
            (to / _STATE).write_bytes(left_off.told())

        checkpoints.save(step, model=copy_model, state=point, score=score, unrated=unrated)
        if self.left_off is not None and self.left_off.step != step:  # the engine knows only what it wrote since
            shutil.rmtree(self.left_off.folder, ignore_errors=True)

    def forget_what_is_not_gone_on_from(self) -> None:
        """Remove the engine's own checkpoints but the one that the run goes on from."""
        for folder in self.folder.glob("global_step_*"):
            if self.left_off is None or folder != self.left_off.folder:
                shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class LeftOff:
    """Where an earlier process of the run came to; `order` is that of its tasks."""

    folder: Path
    step: int
    trained_s: float
    order: dict[str, Any]

    def told(self) -> bytes:
        """As `of` reads it."""
        return orjson.dumps(asdict(self) | {"folder": self.folder.name})

    @classmethod
    def of(cls, checkpoint: Checkpoint, engine: ClusterEngine) -> LeftOff:
        file = checkpoint.state / _STATE
        try:
            said = orjson.loads(file.read_bytes())
            folder = checkpoint.path.parent / engine / said["folder"]
            return cls(folder, int(said["step"]), float(said["trained_s"]), said["order"])
        except (OSError, ValueError, KeyError) as cause:
            raise TrainerError(
                f"{file} cannot be read: {cause!r}", hint="resume with the backbone that the run was begun with"
            ) from cause


def _model_in(actor: Path) -> Path:
    """Where verl's FSDP put it, or its Megatron."""
    nested = actor / "model" / "huggingface"
    return nested if nested.is_dir() else actor / "huggingface"


def _rows(tasks: Sequence[Task], num_repeat: int) -> list[dict[str, Any]]:
    """One group each; a task that comes again has its episodes numbered on."""
    seen: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for task in tasks:
        rows.append({"task": asdict(task), "first_repeat": seen[task.task_id]})
        seen[task.task_id] += num_repeat
    return rows
