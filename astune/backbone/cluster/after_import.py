"""A change of a module when it has been imported: what an engine's hooks for versions of today are made with."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


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
    """Change the module now where it is imported already, or else as soon as it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    waiting = next((one for one in sys.meta_path if isinstance(one, AfterImport) and one.name == name), None)
    if waiting is None:
        waiting = AfterImport(name)
        sys.meta_path.insert(0, waiting)
    waiting.changes.append(change)
