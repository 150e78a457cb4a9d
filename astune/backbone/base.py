"""The interface of a backbone, which turns an experiment into a run, and the one place where its name is looked up.

A backbone of your own is one class in one file, named in the configuration as `backbone: path/file.py->Class`:

    class Noop(Backbone):
        async def train(self, config, parts, run, observer, *, base_dir=None):
            with run.open_metrics() as metrics:
                metrics.append(1, "train", {"reward/mean": 0.0})

Modules of the shipped ones are imported when they are asked for, and import torch no earlier than `train`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from astune.backbone.findings import Finding
from astune.config.imports import import_class, is_reference
from astune.config.schema import AstuneConfig
from astune.rollout.observer import RolloutObserver
from astune.schema import Split

if TYPE_CHECKING:
    from astune.algorithm import Algorithm
    from astune.backbone.memory import Estimate, ModelShape
    from astune.backbone.parts import UserParts
    from astune.runs import RunDirectory

_SHIPPED = {
    "debug": "astune.backbone.debug->DebugBackbone",
    "local": "astune.backbone.local->LocalBackbone",
    "verl": "astune.backbone.verl.backbone->VerlBackbone",
    "trinity": "astune.backbone.trinity.backbone->TrinityBackbone",
}


class RunObserver(RolloutObserver, Protocol):
    """Callbacks for everything that happens in a run; a display is one. They return quickly."""

    def on_phase(self, phase: str) -> None:
        """A phase begins, such as `rollout`, `train`, `validation` or `loading the model`."""

    def on_record(self, step: int, split: Split, metrics: dict[str, float]) -> None:
        """A line of metrics is on disk."""

    def on_note(self, line: str) -> None:
        """Show a line that the user is to read."""


class Backbone(ABC):
    """Runs the episodes of an experiment, and trains on them; holds no state between calls."""

    trains: ClassVar[bool] = True
    """Whether weights change. A run of a backbone that does not train is recorded as a debug run and never resumed."""
    hands_over_weights: ClassVar[bool] = False
    """True where a vLLM server that is started for the run must accept weights from it."""

    @abstractmethod
    async def train(
        self,
        config: AstuneConfig,
        parts: UserParts,
        run: RunDirectory,
        observer: RunObserver,
        *,
        base_dir: Path | None = None,
    ) -> None:
        """Do the whole run, from the newest checkpoint where `run` has one, and write it into `run`.

        Args:
            base_dir: folder of the experiment's YAML file, which its references to classes start from.

        Raises:
            AstuneError: the run cannot continue; everything up to the last whole step is on disk.
        """

    def check(self, config: AstuneConfig) -> None:  # noqa: B027 - there may be nothing to refuse
        """Refuse what the configuration asks for and this backbone cannot do. Starts and loads nothing.

        Raises:
            ConfigError: with the key and what to set it to.
        """

    def check_tasks(self, config: AstuneConfig, parts: UserParts) -> None:  # noqa: B027
        """Refuse tasks that a run cannot be made of. Raises ConfigError or TaskReaderError."""

    def check_algorithm(self, config: AstuneConfig, algorithm: Algorithm) -> None:  # noqa: B027
        """Refuse an algorithm that this backbone cannot train with. Raises ConfigError."""

    def plan(
        self,
        config: AstuneConfig,
        parts: UserParts,
        *,
        run_path: Path | None = None,
        memory: Sequence[Estimate] = (),
        starts_ray: bool = False,
    ) -> list[tuple[str, str]]:
        """Plan of the run, as labelled lines, for `--dry-run`.

        Args:
            parts: without training tasks where these are only known once a companion has started.
            run_path: the run that is resumed; None for a new one.
            memory: estimates for this machine.
            starts_ray: whether a Ray head is started beside the run.
        """
        from astune.backbone.plan import training_plan

        return training_plan(
            config,
            parts,
            particulars=self.particulars(config, starts_ray=starts_ray),
            unmeasured=self.unmeasured(config),
            run_path=run_path,
            memory=memory,
        )

    def particulars(self, config: AstuneConfig, *, starts_ray: bool) -> list[tuple[str, str]]:
        """Lines of the plan that only this backbone has."""
        return []

    def full_plan(self, config: AstuneConfig, parts: UserParts, *, base_dir: Path | None = None) -> str:
        """The whole configuration of another engine, as YAML; empty where there is none."""
        return ""

    def unmeasured(self, config: AstuneConfig) -> str:
        """Why a run cannot measure held-out tasks; empty where it can."""
        return ""

    def memory(self, config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
        """Memory that a run needs at each of its places; empty where nothing is known."""
        return []

    def doctor(self, config: AstuneConfig) -> Iterable[Finding]:
        """Return the checks of `astune doctor` for this backbone on this machine."""
        return ()


def shipped_backbones() -> tuple[str, ...]:
    """Names of the backbones that come with astune."""
    return tuple(_SHIPPED)


def find_backbone(name: str, base_dir: Path | None = None) -> Backbone:
    """The backbone of that name, or of the class that `path/file.py->Class` or `module->Class` names.

    Args:
        base_dir: folder of the experiment's YAML file.

    Raises:
        ConfigError: the reference does not lead to a class derived from Backbone.
    """
    reference = name if is_reference(name) else _SHIPPED[name]
    found = import_class(reference, key="backbone", base=Backbone, base_dir=base_dir)
    return cast(Callable[[], Backbone], found)()
