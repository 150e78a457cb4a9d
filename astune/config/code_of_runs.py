"""Code inside of a run's folder: whoever made the run wrote it, so it is imported only where somebody allows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from astune.schema import ConfigError

Allow = Callable[[Path], bool]
"""Says whether the code of a run may be imported; called once, with the first file of it that a key names."""


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
    """Within this, `import_class` raises ConfigError for code inside of the folder `run`, unless `allow` says yes.

    Args:
        hint: what to do about it; by default, to copy the file and name the copy.
    """
    hint = hint or "read it; to use it, copy it to a folder of yours and name the copy there"
    token = _RUN.set(_Run(run.resolve(), allow, hint))
    try:
        yield
    finally:
        _RUN.reset(token)


def is_of_run(folder: Path) -> bool:
    """Whether nothing may be imported from the folder."""
    run = _RUN.get()
    return run is not None and run.holds(folder)


def require_allowed(path: Path, key: str) -> None:
    """Raise ConfigError where the file `path`, which `key` names, may not be imported."""
    run = _RUN.get()
    if run is None or not run.holds(path):
        return
    if not run.allow(path):
        raise ConfigError(f"{key}: {path} comes with the run itself, and its code is not run unasked", hint=run.hint)
    run.allowed = True


def require_module_allowed(parts: Sequence[str], folders: Sequence[Path], key: str) -> None:
    """Raise ConfigError where the module of these names, or a package around it, may not be imported.

    Its places are looked for, not imported: a package runs its code when a module in it is searched for.
    """
    if _RUN.get() is None:
        return
    for folder in (*folders, *map(Path, sys.path)):
        for length in range(1, len(parts) + 1):
            place = folder.joinpath(*parts[:length])
            for file in (place / "__init__.py", *place.parent.glob(f"{place.name}.*")):
                if file.is_file():
                    require_allowed(file, key)
