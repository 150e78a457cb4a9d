"""Several policies in one run: each an adapter on the model of `model.path`, and the targets that it answers for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from astune.config.model import LoraConfig
from astune.config.strict import StrictModel
from astune.config.trainer import OptimConfig

DEFAULT_POLICY = "default"
"""The policy of targets that none of `models` names."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TAKEN = """
T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double dump_patches eval
extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu items keys load_state_dict
modules mtia named_buffers named_children named_modules named_parameters parameters pop register_backward_hook
register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module
register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state
set_submodule share_memory smart_apply state_dict to to_empty train training type update values xpu zero_grad
"""
"""Attributes of torch's ModuleDict, in which peft keeps adapters by their names."""


class PolicyConfig(StrictModel):
    """One of several policies: an adapter of its own on the model of `model.path`, whose weights all of them share."""

    path: str | None = None
    """Folder of the adapter that it begins with, such as `model/NAME` of a run's checkpoint. Null begins with a new
    one; for a policy that is not trained null is the model itself."""
    lora: LoraConfig = LoraConfig()
    """Its adapter; a policy that is trained needs a rank above 0."""
    optim: OptimConfig | None = None
    """Its optimiser; null is `trainer.optim`."""
    train: bool = True
    """False freezes it: an opponent, an older version, a helper. What it writes is recorded and not trained."""
    targets: list[str] = Field(default_factory=list[str])
    """Target tags of the agents that it answers for; empty is its own name."""

    @property
    def adapts(self) -> bool:
        """Whether it has an adapter; a frozen policy without one is the model itself."""
        return self.train or self.path is not None


def targets_of(models: Mapping[str, PolicyConfig]) -> dict[str, str]:
    """The policy of each target that is named.

    {"wolf": targets [werewolf], "village": targets []}   ->   {"werewolf": "wolf", "village": "village"}
    """
    return {target: name for name, policy in models.items() for target in policy.targets or [name]}


def require_consistent(models: Mapping[str, PolicyConfig], model_rank: int) -> None:
    """Raise ValueError where policies contradict each other, or the model below them."""
    owner: dict[str, str] = {}
    for name, policy in models.items():
        key = f"astune.models.{name}"
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{key}: a policy's name begins with a letter and has letters, digits, - and _")
        if name in _TAKEN.split():
            raise ValueError(f"{key}: torch has a use of its own for the name {name}: take another, as {name}_agent")
        if policy.train and policy.lora.rank == 0:
            raise ValueError(f"{key} is trained and has no adapter: set {key}.lora.rank, for instance to 16")
        if not policy.train and policy.optim is not None:
            raise ValueError(f"{key}.optim is set, and {key}.train is false: leave one of them out")
        if not policy.train and policy.path is None and policy.lora.rank > 0:
            raise ValueError(f"{key}.lora is set, and nothing trains it: name an adapter's folder in {key}.path")
        for target in policy.targets or [name]:
            if target in owner:
                raise ValueError(f"the target {target!r} is answered for by {owner[target]} and by {name}: name one")
            owner[target] = name
    if models and model_rank > 0:
        raise ValueError("astune.model.lora is set beside astune.models: give each policy its own lora there")
    if models and not any(policy.train for policy in models.values()):
        raise ValueError("no policy of astune.models is trained: set train: true for one of them")
