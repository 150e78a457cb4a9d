"""Code stored in a run's folder: written by whoever made the run, so it is imported only with the user's permission."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from astune.schema import ConfigError

Allow = Callable[[Path], bool]
"""Callback that decides whether a run's code may be imported; called once, with the first file that a key names."""


@dataclass
class _Run:
    folder: Path
    allow: Allow
    hint: str
    allowed: bool = False

    def holds(self, path: Path) -> bool:
        return not self.allowed and path.resolve().is_relative_to(self.folder)


_RUN: ContextVar[_Run | None] = ContextVar("astune_run_whose_code_is_not_imported", default=None)


def never(_: Path) -> bool:
    return False


@contextmanager
def no_code_of(run: Path, allow: Allow = never, *, hint: str = "") -> Iterator[None]:
    """Context in which `import_class` raises ConfigError for code in the folder `run`, unless `allow` permits it.

    Args:
        hint: what to do about it; by default, to copy the file and name the copy.
    """
    hint = hint or "read it; to use it, copy it to your own folder and use that path"
    token = _RUN.set(_Run(run.resolve(), allow, hint))
    try:
        yield
    finally:
        _RUN.reset(token)


def is_of_run(folder: Path) -> bool:
    """Return whether imports from the folder are forbidden."""
    run = _RUN.get()
    return run is not None and run.holds(folder)


def require_allowed(path: Path, key: str) -> None:
    """Raise ConfigError if the file `path`, which `key` names, may not be imported."""
    run = _RUN.get()
    if run is None or not run.holds(path):
        return
    if not run.allow(path):
        raise ConfigError(
            f"{key}: {path} is part of the run, and code of a run is not executed without permission", hint=run.hint
        )
    run.allowed = True


def require_module_allowed(parts: Sequence[str], folders: Sequence[Path], key: str) -> None:
    """Raise ConfigError if the module of these names, or a package around it, may not be imported.

    The files are located without importing anything: searching for a module would already run its package's code.
    """
    if _RUN.get() is None:
        return
    for folder in (*folders, *map(Path, sys.path)):
        for length in range(1, len(parts) + 1):
            place = folder.joinpath(*parts[:length])
            for file in (place / "__init__.py", *place.parent.glob(f"{place.name}.*")):
                if file.is_file():
                    require_allowed(file, key)
