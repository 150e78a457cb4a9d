"""The resume point: what a checkpoint holds beside weights and optimiser, so that a resumed run is the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from astune.runs import Checkpoint
from astune.schema import TrainerError

_FILE = "loop.json"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The last recorded step, 0 for none, and what the next one continues."""

    step: int = 0
    trained_s: float = 0.0
    """Seconds of all training steps so far, measurements and checkpoints not counted."""
    order: dict[str, Any] = field(default_factory=dict[str, Any])
    """The position in the order of training tasks."""

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Self:
        """The resume point in a checkpoint.

        Raises:
            TrainerError: it has none that this version reads.
        """
        file = checkpoint.state / _FILE
        try:
            stored = orjson.loads(file.read_bytes())
            return cls(int(stored["step"]), float(stored["trained_s"]), stored["order"])
        except (OSError, ValueError, TypeError, KeyError) as cause:
            raise TrainerError(
                f"{file} cannot be read: {cause!r}",
                hint="resume from a checkpoint that was written whole by this version, with the same backbone",
            ) from cause

    def write(self, folder: Path) -> None:
        """Write it into the `state` folder of a checkpoint."""
        (folder / _FILE).write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))
