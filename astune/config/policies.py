"""Several policies in one run: each is an adapter on the model of `model.path`, with the targets that it serves."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from astune.config.model import LoraConfig
from astune.config.strict import StrictModel
from astune.config.trainer import OptimConfig

DEFAULT_POLICY = "default"
"""Policy of targets that `models` does not name."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class PolicyConfig(StrictModel):
    """A policy of several: its own adapter on the shared model of `model.path`."""

    path: str | None = None
    """Folder of its initial adapter, such as `model/NAME` of a run's checkpoint. Null starts a new one; for a frozen
    policy null is the base model."""
    lora: LoraConfig = LoraConfig()
    """LoRA adapter of the policy; a trained policy needs a rank above 0."""
    optim: OptimConfig | None = None
    """Optimiser of the policy; null uses `trainer.optim`."""
    train: bool = True
    """False freezes it, for an opponent, an older version or a helper. Its output is recorded but not trained."""
    targets: list[str] = Field(default_factory=list[str])
    """Target tags of the agents that it serves; empty uses its own name."""

    @property
    def adapts(self) -> bool:
        """Return whether it has an adapter; a frozen policy without one is the base model."""
        return self.train or self.path is not None


def targets_of(models: Mapping[str, PolicyConfig]) -> dict[str, str]:
    """Map each named target to its policy.

    {"wolf": targets [werewolf], "village": targets []}   ->   {"werewolf": "wolf", "village": "village"}
    """
    return {target: name for name, policy in models.items() for target in policy.targets or [name]}


def require_consistent(models: Mapping[str, PolicyConfig], model_rank: int) -> None:
    """Raise ValueError if policies contradict each other or the model's settings."""
    owner: dict[str, str] = {}
    for name, policy in models.items():
        key = f"astune.models.{name}"
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{key}: a policy's name begins with a letter and has letters, digits, - and _")
        if policy.train and policy.lora.rank == 0:
            raise ValueError(f"{key} is trained but has no adapter: set {key}.lora.rank, for instance to 16")
        if not policy.train and policy.optim is not None:
            raise ValueError(f"{key}.optim is set, but {key}.train is false: remove one of them")
        if not policy.train and policy.path is None and policy.lora.rank > 0:
            raise ValueError(f"{key}.lora is set, but {key}.train is false: set {key}.path to an adapter's folder")
        for target in policy.targets or [name]:
            if target in owner:
                raise ValueError(f"the target {target!r} is assigned to both {owner[target]} and {name}: keep one")
            owner[target] = name
    if models and model_rank > 0:
        raise ValueError("astune.model.lora is set together with astune.models: set lora for each policy there")
    if models and not any(policy.train for policy in models.values()):
        raise ValueError("no policy of astune.models is trained: set train: true for one of them")
