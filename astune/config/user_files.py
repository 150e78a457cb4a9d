"""User modules loaded by this process, so that an edited file is reloaded.

A notebook starts several runs in one process. All loaded files are unloaded together if one of them changed, since
their classes refer to each other. Within a run nothing is reloaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection
from pathlib import Path

from astune.schema import is_users

_Stamp = tuple[int, int] | None
_loaded: dict[str, tuple[Path, _Stamp]] = {}
"""Modules by name, with their files' state at load time."""


def remember(name: str, path: Path, *, before: Collection[str]) -> None:
    """Record that the file at `path` is now the module `name`, and which neighbouring modules were loaded with it;
    those in `before` were loaded earlier."""
    _loaded[name] = path, _stamp(path)
    for other, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if other in before or other in _loaded or not file:
            continue
        beside = Path(file).resolve()
        if beside.is_relative_to(path.parent) and is_users(file) and is_users(str(beside)):
            _loaded[other] = beside, _stamp(beside)


def forget_changed() -> None:
    """Unload the user's modules if one of their files was edited or removed; the next run reloads them."""
    if all(stamp == _stamp(path) for path, stamp in _loaded.values()):
        return
    for name, (path, _) in _loaded.items():
        sys.modules.pop(name, None)
        # bytecode counts as current for a whole second, within which a file may have been edited
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    _loaded.clear()


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
