"""What the tutorials' tests share: where the tutorials are, and how one is played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from astune.config import AstuneConfig, load_config

ROOT = Path(__file__).parents[2]

Play = Callable[..., Any]
"""`await play("example/conf.yaml", task, ["reply", ...])` runs one group of two episodes."""


def tutorial_config(path: str) -> AstuneConfig:
    return load_config(ROOT / "tutorial" / path)
