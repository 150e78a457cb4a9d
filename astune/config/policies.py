"""Several policies in one run, each with the targets that it serves: adapters on a model, or whole models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from astune.config.model import LoraConfig
from astune.config.strict import StrictModel
from astune.config.trainer import OptimConfig

DEFAULT_POLICY = "default"
"""Policy of targets that `models` does not name."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class PolicyConfig(StrictModel):
    """A policy of several: an adapter on the model of `model.path`, or a model of its own with or without one."""

    path: str | None = None
    """A model of its own, named as in `model.path`; policies with adapters on one share it. Or the folder of an
    initial adapter on the model of `model.path`, such as `model/NAME` of a run's checkpoint. Null starts a new adapter
    there; for a frozen policy null is the model of `model.path` itself."""
    adapter: str | None = None
    """Folder of its initial adapter on the model that `path` names; null starts a new one."""
    lora: LoraConfig = LoraConfig()
    """LoRA adapter of the policy. With rank 0 every weight of the model that `path` names is trained."""
    optim: OptimConfig | None = None
    """Optimiser of the policy; null uses `trainer.optim`."""
    train: bool = True
    """False freezes it, for an opponent, an older version or a helper. Its output is recorded but not trained."""
    targets: list[str] = Field(default_factory=list[str])
    """Target tags of the agents that it serves; empty uses its own name."""

    @property
    def has_weights(self) -> bool:
        """Return whether it has weights of its own; a frozen policy without a path is the model of `model.path`."""
        return self.train or self.path is not None

    @property
    def trains_all(self) -> bool:
        """Return whether every weight of its model is trained."""
        return self.train and self.lora.rank == 0

    @property
    def base(self) -> str | None:
        """The model that `path` names; None where it is on that of `model.path`."""
        return None if self.path is None or _is_adapter(self.path) else self.path

    @property
    def start(self) -> str | None:
        """The folder of the adapter that it begins with."""
        return self.path if self.base is None else self.adapter


def _is_adapter(path: str) -> bool:
    return (Path(path).expanduser() / "adapter_config.json").is_file()


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
        if policy.trains_all and (policy.base is None or policy.adapter is not None):
            raise ValueError(
                f"{key} is trained but has no adapter: set {key}.lora.rank, for instance to 16, or name a whole model "
                f"in {key}.path alone, all of whose weights are then trained"
            )
        if policy.adapter is not None and policy.base is None:
            raise ValueError(f"{key}.adapter is set, but {key}.path names no model: set {key}.path to the adapter")
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
