"""The runs of the opened folder, each opened once and kept for the next question."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from astune.viewer._folder import Folder
from astune.viewer._run import ViewedRun
from astune.viewer._settings import together


class Library:
    """Safe to ask from several threads."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._listing = threading.RLock()
        self._open: dict[str, ViewedRun] = {}

    def runs(self) -> dict[str, ViewedRun]:
        """Every run by its name, newest first.

        Callers during the first listing wait for it, since it reads most of what they need.
        """
        with self._listing:
            found = self.folder.runs()
            with self._lock:
                self._open = {name: run for name, run in self._open.items() if name in found}
                return {name: self._known(name, path) for name, path in found.items()}

    def listed(self) -> list[dict[str, Any]]:
        """Every run's entry of a list, newest first, with the settings in which they differ; each file is read once."""
        with self._listing:
            runs = list(self.runs().values())
            return together([run.info() for run in runs], [run.settings() for run in runs])

    def run(self, name: str) -> ViewedRun:
        """A run, which has one name however it is written: `./demo//x` is `demo/x`. Raises Refusal if there is none of
        this name in the folder."""
        path = self.folder.run(name)
        with self._lock:
            return self._known("" if path == self.folder.root else path.relative_to(self.folder.root).as_posix(), path)

    def _known(self, name: str, path: Path) -> ViewedRun:
        if name not in self._open:
            self._open[name] = ViewedRun(name, path, self.folder)
        return self._open[name]
