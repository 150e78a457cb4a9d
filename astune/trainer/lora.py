"""Low-rank adapters (peft): added before training, merged on the way out.

Outside this file a model with adapters is a model like any other: engines and checkpoints get plain weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.config.schema import LoraConfig
from astune.schema import ConfigError


def add_adapters(module: nn.Module, config: LoraConfig, *, seed: int) -> nn.Module:
    """Freeze `module` and put an adapter beside each of its linear layers but the head."""
    try:
        import peft
    except ImportError as cause:
        raise ConfigError("model.lora.rank is set and peft is not installed", hint="pip install peft") from cause
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=cast(int, config.alpha),  # peft only divides it by the rank
        lora_dropout=0.0,
        target_modules="all-linear",
        bias="none",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(cast(Any, module), adapters).eval()


def without_adapters(module: nn.Module) -> AbstractContextManager[None]:
    """The starting weights, for as long as the context lasts."""
    return cast(Any, module).disable_adapter()


@torch.no_grad()
def merged_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight under the name it has without adapters, the adapters' contribution added in float32."""
    from peft.tuners.lora import LoraLayer

    base = cast(Any, module).get_base_model()
    tied = set(getattr(base, "all_tied_weights_keys", {}))
    adapted: dict[str, Any] = {
        f"{plain_name(name)}.{getattr(layer, 'parameter_name', 'weight')}": layer
        for name, layer in base.named_modules()
        if isinstance(layer, LoraLayer)
    }
    for name, tensor in base.state_dict().items():
        plain = plain_name(name)
        if ".lora_" in name or plain in tied:
            continue
        if plain in adapted:
            tensor = (tensor.float() + _contribution(adapted[plain])).to(tensor.dtype)
        yield plain, tensor


def plain_name(name: str) -> str:
    """The name without adapters; a layer with several adapted parameters, as of experts, is wrapped for each."""
    return name.replace(".base_layer", "")


def _contribution(layer: Any) -> Tensor:
    """Weight that an adapter adds to a layer's, in float32; peft's `get_delta_weight` rounds to its own dtype."""
    if getattr(layer, "num_experts", 1) > 1:
        left, right, scaling = layer.get_delta_factors("default")
    else:
        left, right = (matrices["default"].weight for matrices in (layer.lora_B, layer.lora_A))
        scaling = layer.scaling["default"]
    contribution = left.float() @ right.float() * scaling
    return contribution.T if layer.fan_in_fan_out else contribution
