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
    adapted: dict[str, Any] = {name: layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)}
    for name, tensor in base.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        if ".lora_" in name or name in tied:
            continue
        if not owner.endswith(".base_layer"):
            yield name, tensor
            continue
        owner = owner.removesuffix(".base_layer")
        if leaf == "weight":
            tensor = (tensor.float() + _contribution(adapted[owner])).to(tensor.dtype)
        yield f"{owner}.{leaf}", tensor


def _contribution(layer: Any) -> Tensor:
    """Of a layer's adapter to its weight, in float32: peft's `get_delta_weight` rounds it to the adapters' dtype."""
    b, a = (matrix["default"].weight.float() for matrix in (layer.lora_B, layer.lora_A))
    contribution = b @ a * layer.scaling["default"]
    return contribution.T if layer.fan_in_fan_out else contribution
