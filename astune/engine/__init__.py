"""Inference engines: token ids in, token ids and log-probabilities out. Importing this room does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astune.engine.base import EngineStats, InferenceEngine, WeightsSource

if TYPE_CHECKING:
    from astune.engine.local.in_process import InProcessEngine
    from astune.engine.own import EngineBase
    from astune.engine.scripted import ScriptedEngine

__all__ = ["EngineBase", "EngineStats", "InProcessEngine", "InferenceEngine", "ScriptedEngine", "WeightsSource"]

_LAZY = {
    "EngineBase": "astune.engine.own",
    "InProcessEngine": "astune.engine.local.in_process",
    "ScriptedEngine": "astune.engine.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
