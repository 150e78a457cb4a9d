"""Sandbox for model-written code.

Modules that run inside import nothing else; the rest is loaded lazily.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.config.schema import SandboxConfig, SandboxLimits
    from astune.sandbox.base import SandboxResult
    from astune.sandbox.sandbox import BACKENDS, Sandbox
    from astune.sandbox.shared import shared_sandbox

_HOME = {
    "BACKENDS": "astune.sandbox.sandbox",
    "Sandbox": "astune.sandbox.sandbox",
    "SandboxConfig": "astune.config.schema",
    "SandboxLimits": "astune.config.schema",
    "SandboxResult": "astune.sandbox.base",
    "shared_sandbox": "astune.sandbox.shared",
}

__all__ = ["BACKENDS", "Sandbox", "SandboxConfig", "SandboxLimits", "SandboxResult", "shared_sandbox"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'astune.sandbox' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
