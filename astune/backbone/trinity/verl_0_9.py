"""Trinity-RFT 0.6.0 with verl 0.9.1, on every device: it writes verl 0.8's configuration, and 0.9 refuses some keys."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import importlib
from typing import Any

from astune.backbone.cluster.hooks import replace

_MICRO_BATCHES = (
    "log_prob_micro_batch_size",
    "log_prob_micro_batch_size_per_gpu",
    "log_prob_use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu",
)


def install() -> None:
    """Have Trinity's trainer leave them out."""
    trainer: Any = importlib.import_module("trinity.trainer.verl.trainer")
    build = trainer.build_verl_config
    replace(trainer, "build_verl_config", lambda config: _without_what_verl_lost(build(config)))


def _without_what_verl_lost(config: Any) -> Any:
    from omegaconf import OmegaConf

    built = OmegaConf.to_container(config, resolve=False)
    assert isinstance(built, dict)
    for section in ("model", "actor", "ref", "rollout"):
        _prune(built[section])
        profiler = built[section].get("profiler")
        if isinstance(profiler, dict) and profiler.get("tool_config") is None:
            profiler["tool_config"] = {}
    return OmegaConf.create(built)


def _prune(section: dict[str, Any]) -> None:
    target = section.get("_target_")
    if target:
        place, _, name = target.rpartition(".")
        known = {*getattr(importlib.import_module(place), name).__dataclass_fields__, "_target_", *_MICRO_BATCHES}
        for key in [key for key in section if key not in known]:
            del section[key]
    for value in section.values():
        if isinstance(value, dict):
            _prune(value)
