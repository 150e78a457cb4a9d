"""A change of a module of others as soon as it is imported, and of nothing where it never is."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Change the module now where it is imported already, or else as soon as it is."""
    if name in sys.modules:
        change(importlib.import_module(name))  # waits for a thread that is importing it
        return
    waiting = next((one for one in sys.meta_path if isinstance(one, _AfterImport) and one.name == name), None)
    if waiting is None:
        waiting = _AfterImport(name)
        sys.meta_path.insert(0, waiting)
    waiting.changes.append(change)


class _AfterImport(MetaPathFinder):
    """Changes one module when it has been loaded, by all its `changes` in order.

    It stays installed until then, since `importlib.util.find_spec` looks for a module without loading it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes: list[Callable[[Any], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None or spec.loader is None:
            return None
        spec.loader = copy.copy(spec.loader)  # a finder may have one for all its modules
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            for change in self.changes:
                change(module)

        spec.loader.exec_module = load_and_change
        return spec
