"""The job of an engine: the work order of its processes, and how its checkpoints become those of the run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from safetensors import safe_open

from astune.backbone.cluster.adapters import merge_adapters
from astune.backbone.cluster.work_order import GroupToRun, WorkOrder
from astune.config.schema import AstuneConfig, ClusterEngine
from astune.runs import Checkpoint, copy_folder
from astune.schema import Task, TrainerError
from astune.task_reader import TaskOrder
from astune.trainer.ledger import StepLedger, is_measured
from astune.trainer.resume_point import ResumePoint

_STATE = "engine.json"


@dataclass(frozen=True, slots=True)
class EngineResume:
    """A resume point, and the folder of the engine's own checkpoint of that step."""

    folder: Path
    point: ResumePoint

    @classmethod
    def read(cls, checkpoint: Checkpoint, engine: ClusterEngine) -> EngineResume:
        """Read it from a checkpoint of the run.

        Raises:
            TrainerError: another backbone wrote that, or the engine's own is gone.
        """
        file = checkpoint.state / _STATE
        try:
            folder = checkpoint.path.parent / engine / orjson.loads(file.read_bytes())["folder"]
        except (OSError, ValueError, KeyError) as cause:
            raise TrainerError(
                f"{file} cannot be read: {cause!r}", hint="resume with the backbone that the run was begun with"
            ) from cause
        if not folder.is_dir():  # Trinity would train from the beginning, and say nothing
            raise TrainerError(
                f"{engine}'s own checkpoint {folder} is gone, without which step {checkpoint.step} cannot be resumed",
                hint=f"restore it, or begin a run with model.path set to {checkpoint.model}",
            )
        return cls(folder, ResumePoint.read(checkpoint))


@dataclass(frozen=True, slots=True)
class StepsToCome:
    """The tasks of each step, as the local trainer takes them; the position in their order at first and after each."""

    tasks: list[list[Task]]
    orders: list[dict[str, Any]]

    @classmethod
    def of(cls, config: AstuneConfig, tasks: Sequence[Task], point: ResumePoint | None = None) -> StepsToCome:
        """The steps after a resume point; at least one, for engines refuse to start without tasks.

        Raises:
            TaskReaderError: the run that is resumed had other tasks, or another order.
        """
        order = TaskOrder([*tasks], config.seed, config.task_reader.stratify_by, config.task_reader.curriculum)
        done = 0
        if point is not None:
            order.load_state_dict(point.order)
            done = point.step
        made = cls([], [order.state_dict()])
        for _ in range(max(1, config.trainer.total_steps - done)):
            made.tasks.append(order.take(config.trainer.tasks_per_step))
            made.orders.append(order.state_dict())
        return made


@dataclass(frozen=True, slots=True)
class Job:
    """The work of an engine for a run.

    `folder` is where the engine writes its own checkpoints; `resumed` is None for a new run; `measured` is the last
    step whose weights the validation tasks were run with, -1 for none.
    """

    engine: ClusterEngine
    config: AstuneConfig
    base_dir: Path | None
    model_folder: Path
    steps: StepsToCome
    validation_tasks: list[Task]
    folder: Path
    resumed: EngineResume | None = None
    measured: int = -1

    @property
    def first_step(self) -> int:
        return 1 if self.resumed is None else self.resumed.point.step + 1

    def order_after(self, step: int) -> dict[str, Any]:
        """The position in the order of training tasks after a step."""
        return self.steps.orders[step - self.first_step + 1]

    def work_order(self) -> WorkOrder:
        """The job as the engine's processes get it."""
        config = self.config
        steps = range(self.first_step - 1, config.trainer.total_steps + 1)
        return WorkOrder(
            config=config,
            base_dir=None if self.base_dir is None else self.base_dir.resolve(),
            model_folder=str(self.model_folder),
            training=[group for step in self.steps.tasks for group in _groups(step, config.rollout.num_repeat)],
            validation=_groups(self.validation_tasks, config.trainer.validation.num_repeat),
            checkpoints=self.folder,
            resume_from=None if self.resumed is None else str(self.resumed.folder),
            first_step=self.first_step,
            measured=self.measured,
            measured_steps=[step for step in steps if self.validation_tasks and is_measured(config, step)],
        )

    def save_checkpoint(self, ledger: StepLedger, folder: str, *, dtype: str, moved: bool) -> None:
        """Save a checkpoint of the run from the engine's own: the model in Hugging Face format, the state by its place.

        Args:
            folder: of the engine's checkpoint of the ledger's last step.
            dtype: in which the servers sample.
            moved: whether weights were trained since the run began.

        Raises:
            TrainerError: weights were trained, and those that were saved are the ones that the run began with.
        """
        saved, lora = _model_in(Path(folder) / "actor"), self.config.model.lora

        def copy_model(to: Path) -> None:
            if lora.rank:
                merge_adapters(saved, to, scale=lora.alpha / lora.rank)
            else:
                copy_folder(saved, to)
            _name_dtype(to, dtype)
            if moved and not _differ(self.model_folder, to):
                raise TrainerError(
                    f"the weights of step {ledger.step} in {saved} are those that the run began with",
                    hint=f"{self.engine} did not save what it trained; look into its log",
                )

        def name_folder(to: Path) -> None:
            (to / _STATE).write_bytes(orjson.dumps({"folder": Path(folder).name}))

        ledger.save(model=copy_model, state=name_folder)
        if self.resumed is not None and self.resumed.point.step != ledger.step:  # the engine removes only its own
            shutil.rmtree(self.resumed.folder, ignore_errors=True)

    def remove_other_checkpoints(self) -> None:
        """Remove the engine's own checkpoints but the one that the run resumes from."""
        for folder in self.folder.glob("global_step_*"):
            if self.resumed is None or folder != self.resumed.folder:
                shutil.rmtree(folder)


def _name_dtype(model: Path, dtype: str) -> None:
    """Name the servers' dtype in the model's configuration, for whoever loads it to compute as they did.

    verl saves in float32 what it trains so, and names bfloat16 whatever its servers sample in.
    """
    if dtype == "auto":  # what the published model names
        return
    file = model / "config.json"
    config = orjson.loads(file.read_bytes())
    file.write_bytes(orjson.dumps(config | {"dtype": dtype}, option=orjson.OPT_INDENT_2))


def _model_in(actor: Path) -> Path:
    """The folder in which verl's FSDP or its Megatron put the model."""
    nested = actor / "model" / "huggingface"
    return nested if nested.is_dir() else actor / "huggingface"


def _groups(tasks: Sequence[Task], num_repeat: int) -> list[GroupToRun]:
    """A group a task; one that comes again within the steps has its episodes numbered on."""
    seen: Counter[str] = Counter()
    groups: list[GroupToRun] = []
    for task in tasks:
        groups.append(GroupToRun(task=asdict(task), first_repeat=seen[task.task_id]))
        seen[task.task_id] += num_repeat
    return groups


def _differ(first: Path, second: Path) -> bool:
    """Return whether two folders in Hugging Face format hold other weights, in the second one's precision.

    One tensor of each is read at a time, and none after the first pair that differs.
    """
    with ExitStack() as open_files:
        before, after = (_tensors(folder, open_files) for folder in (first, second))
        for name in before.keys() & after.keys():
            tensor = after[name].get_tensor(name)
            if not tensor.equal(before[name].get_tensor(name).to(tensor.dtype)):
                return True
    return False


def _tensors(folder: Path, open_files: ExitStack) -> dict[str, Any]:
    """The open file of each tensor, by name."""
    files = [open_files.enter_context(safe_open(file, "pt")) for file in sorted(folder.glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no dictionary
