"""What is to be done, as every process of a run on a cluster is told."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
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
class Job:
    """`training_tasks` are those of all steps, in order, `validation_tasks` those that are measured.

    `folder` is where the engine writes its own checkpoints; `left_off` is None for a new run.
    """

    engine: ClusterEngine
    config: AstuneConfig
    base_dir: Path | None
    model_folder: Path
    training_tasks: list[Task]
    validation_tasks: list[Task]
    folder: Path
    left_off: LeftOff | None = None
    measured: int = -1
    """The last step that held-out tasks were measured with; -1 for none."""

    @property
    def first_step(self) -> int:
        return 1 if self.left_off is None else self.left_off.step + 1

    def told(self) -> dict[str, Any]:
        """As JSON."""
        config, n_tasks = self.config, self.config.trainer.tasks_per_step
        steps = [self.training_tasks[start : start + n_tasks] for start in range(0, len(self.training_tasks), n_tasks)]
        return {
            "config": config.model_dump(mode="json"),
            "base_dir": None if self.base_dir is None else str(self.base_dir.resolve()),
            "model_folder": str(self.model_folder),
            "training": [row for step in steps for row in _rows(step, config.rollout.num_repeat)],
            "validation": _rows(self.validation_tasks, config.trainer.validation.num_repeat),
            "checkpoints": str(self.folder),
            "resume_from": None if self.left_off is None else str(self.left_off.folder),
            "first_step": self.first_step,
            "measured": self.measured,
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
    ) -> None:
        """Make one of ours of the engine's: its model in Hugging Face format, and where its own state lies.

        Args:
            moved: whether weights were trained since the run began.
            score: the part of the held-out tasks that the model solves, where it has been measured.

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
            (to / _STATE).write_bytes(orjson.dumps({"folder": Path(folder).name, "step": step, "trained_s": trained_s}))

        checkpoints.save(step, model=copy_model, state=point, score=score)


@dataclass(frozen=True, slots=True)
class LeftOff:
    """Where an earlier process of the run came to."""

    folder: Path
    step: int
    trained_s: float

    @classmethod
    def of(cls, checkpoint: Checkpoint, engine: ClusterEngine) -> LeftOff:
        file = checkpoint.state / _STATE
        try:
            said = orjson.loads(file.read_bytes())
            return cls(checkpoint.path.parent / engine / said["folder"], int(said["step"]), float(said["trained_s"]))
        except (OSError, ValueError, KeyError) as cause:
            raise TrainerError(
                f"{file} cannot be read: {cause!r}", hint="resume with the backbone that the run was begun with"
            ) from cause


def tasks_of_all_steps(config: AstuneConfig, tasks: Sequence[Task]) -> list[Task]:
    """In the order that the local trainer takes them, epoch after epoch."""
    order = TaskOrder([*tasks], config.seed, config.task_reader.stratify_by)
    return [task for _ in range(config.trainer.total_steps) for task in order.take(config.trainer.tasks_per_step)]


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
