"""The trackers that the configuration names, made with their parameters."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from astune.config.arguments import require_accepted
from astune.config.imports import import_class, is_reference
from astune.config.schema import AstuneConfig, TrackerConfig
from astune.schema import ConfigError, boundary_now, install_extra
from astune.trackers.base import Tracker

_SHIPPED = {
    "tensorboard": "astune.trackers.tensorboard->TensorBoardTracker",
    "wandb": "astune.trackers.wandb->WandbTracker",
    "swanlab": "astune.trackers.swanlab->SwanLabTracker",
    "mlflow": "astune.trackers.mlflow->MLflowTracker",
}
_LIBRARIES = ("wandb", "swanlab", "mlflow")
"""Trackers whose library has to be installed, by the extra of the same name."""


@dataclass(frozen=True, slots=True)
class NamedTracker:
    """A tracker with the name that the configuration has for it."""

    name: str
    tracker: Tracker


def load_trackers(config: AstuneConfig, base_dir: Path | None = None) -> tuple[NamedTracker, ...]:
    """The trackers of `trackers`, in its order; their libraries are looked for, and not yet imported. Raises
    ConfigError if one is unknown, is not installed, does not import, or has no such parameter.

    Args:
        base_dir: the folder of the YAML file, for `path/file.py->Class`.
    """
    return tuple(
        NamedTracker(tracker.type, _load(tracker, f"trackers[{number}]", base_dir))
        for number, tracker in enumerate(config.trackers)
    )


def _load(config: TrackerConfig, key: str, base_dir: Path | None) -> Tracker:
    name = config.type
    if name in _LIBRARIES and not _is_installed(name):
        raise ConfigError(f"{key}: the package {name} is not installed", hint=install_extra(name))
    chosen = import_class(_reference(name, key), key=key, base=Tracker, base_dir=base_dir)
    require_accepted(chosen, config.params, key=f"{key}.params", positional=0)
    hint = "its __init__, if it has one, accepts the params as keyword arguments"
    with boundary_now(ConfigError, f"{key}: making {chosen.__name__}", hint=hint):
        return cast(Callable[..., Any], chosen)(**config.params)


def _is_installed(package: str) -> bool:
    """Whether it can be imported; a folder `wandb` of runs in the working directory looks like a package, too."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _reference(name: str, key: str) -> str:
    if is_reference(name):
        return name
    if name not in _SHIPPED:
        close = difflib.get_close_matches(name, _SHIPPED, n=1)
        known = f"use {', '.join(_SHIPPED)}, or name your own as `path/file.py->Class`"
        raise ConfigError(f"{key}: there is no tracker {name!r}", hint=f"did you mean {close[0]}?" if close else known)
    return _SHIPPED[name]
