"""A change of a module when it has been imported: what an engine's hooks for versions of today are made with."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from astune.schema import ConfigError


class AfterImport(importlib.abc.MetaPathFinder):
    """Changes one module when it has been imported, by all its `changes` in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes: list[Callable[[Any], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: types.ModuleType) -> None:
            run(module)
            for change in self.changes:
                change(module)

        spec.loader.exec_module = run_and_change
        return spec


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Change the module now where it is imported already, or else as soon as it is.

    Raises:
        ConfigError: no module of that name is installed.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    _require_there(name)
    waiting = next((one for one in sys.meta_path if isinstance(one, AfterImport) and one.name == name), None)
    if waiting is None:
        waiting = AfterImport(name)
        sys.meta_path.insert(0, waiting)
    waiting.changes.append(change)


def _require_there(name: str) -> None:
    """Look for a module's file without importing its packages, which may take long, or be what is changed."""
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    places = [Path(folder, *rest) for folder in (spec and spec.submodule_search_locations) or []]
    if not (any(place.with_suffix(".py").is_file() or place.is_dir() for place in places) if rest else spec):
        raise ConfigError(
            f"astune changes the module {name}, and the installed {package} has none of that name",
            hint="docs/en/backbones.md names the versions that the hooks are for",
        )
