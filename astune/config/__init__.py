"""Typed configuration with a closed set of keys: load, validate, explain and dump it.

Submodules are imported lazily, so that importing a class by its name does not import pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.config.explanation import explain
    from astune.config.imports import import_class
    from astune.config.loader import dump, load_config
    from astune.config.schema import AstuneConfig, TaskReaderConfig

_HOME = {
    "AstuneConfig": "schema",
    "TaskReaderConfig": "schema",
    "dump": "loader",
    "explain": "explanation",
    "import_class": "imports",
    "load_config": "loader",
}

__all__ = ["AstuneConfig", "TaskReaderConfig", "dump", "explain", "import_class", "load_config"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'astune.config' has no attribute {name!r}")
    return getattr(importlib.import_module(f"astune.config.{_HOME[name]}"), name)
