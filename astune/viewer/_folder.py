"""The folder that was opened: which runs lie in it, and that nothing else is ever read.

It may be the record of all experiments, one experiment, one run, or a run's `rollout` folder. A run is called by its
path relative to the folder; links that lead out of the folder are ignored.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Literal

from astune.runs import is_run, runs_below
from astune.viewer._answers import Refusal

Level = Literal["record", "experiment", "run"]


class Folder:
    """The folder need not be there yet: a run may be about to make it."""

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        self.root = next((parent for parent in (path, path.parent) if is_run(parent)), path)

    @property
    def level(self) -> Level:
        if is_run(self.root):
            return "run"
        return "experiment" if any(map(is_run, self.root.glob("[!.]*"))) else "record"

    def runs(self) -> dict[str, Path]:
        """Every run by its name, newest first."""
        if is_run(self.root):
            return {"": self.root}
        found = (run for run in reversed(runs_below(self.root)) if self.holds(run))
        return {run.relative_to(self.root).as_posix(): run for run in found}

    def run(self, name: str) -> Path:
        """The folder of a run. Raises Refusal if there is none of this name, or the name leads out of the folder."""
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
            raise Refusal(
                403, f"{name!r} is no name of a run below {self.root}", hint="name it relative to that folder"
            )
        path = self.root.joinpath(*parts)
        if not self.holds(path):
            raise Refusal(403, f"{name!r} leads out of {self.root}", hint="open the folder that it leads to")
        if not is_run(path):
            raise Refusal(404, f"there is no run {name!r} in {self.root}", hint="it may have been moved or removed")
        return path

    def holds(self, path: Path) -> bool:
        """Return whether a path lies in the folder also when its links are followed; what cannot be a path does not."""
        try:
            return self._has_no_link(path) or path.resolve().is_relative_to(self.root)
        except (OSError, ValueError, RuntimeError):  # too long, with a NUL, a circle of links
            return False

    def _has_no_link(self, path: Path) -> bool:
        """Return whether a path below the root has no link below it, which is cheaper to tell than where it leads."""
        if ".." in path.parts or not path.is_relative_to(self.root):
            return False
        at, root = os.fspath(path), os.fspath(self.root)
        while len(at) > len(root):
            if os.path.islink(at):
                return False
            at = os.path.dirname(at)
        return True
