"""Low-rank adapters (peft): added before training, merged on the way out.

Outside this file a model with adapters is a model like any other: engines and checkpoints get plain weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.config.schema import LoraConfig
from astune.engine.adapters import Adapter, Factors
from astune.schema import ConfigError, TrainerError
from astune.trainer.adapted_linear import use_adapted_linear

ALONE = "default"
"""The name of the adapter where there is one."""


def add_adapters(module: nn.Module, config: LoraConfig, *, seed: int, name: str = ALONE) -> nn.Module:
    """Freeze `module` and put an adapter beside each of its linear layers but the head.

    A module that has adapters already gets one more, of another name. Each begins as it would alone.
    """
    try:
        import peft
    except ImportError as cause:
        raise ConfigError("lora.rank is set and peft is not installed", hint="pip install peft") from cause
    several = isinstance(module, peft.PeftModel)
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=cast(int, config.alpha),  # peft only divides it by the rank
        lora_dropout=0.0,
        # Of a model that has adapters already, every linear layer would include these.
        target_modules=cast(Any, next(iter(module.peft_config.values()))).target_modules if several else "all-linear",
        bias="none",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if several:
            module.add_adapter(name, adapters)
        else:
            module = peft.get_peft_model(cast(Any, module), adapters, adapter_name=name)
    use_adapted_linear(module)
    return module.eval()


def inner_name(policy: str) -> str:
    """The name of a policy's adapter inside of the module, where neither torch nor a layer has a use for it."""
    return f"policy_{policy}"


def activate(module: nn.Module, name: str) -> None:
    """Let the adapter `name`, and no other, compute and have gradients."""
    cast(Any, module).set_adapter(name)


@torch.no_grad()
def begin_with(module: nn.Module, policy: str, start: Adapter) -> None:
    """Copy an adapter over a policy's of its shape. Raises ConfigError where it has another one."""
    own = factors_of(module, inner_name(policy))

    def form(adapter: Adapter) -> dict[str, tuple[object, ...]]:
        return {layer: (down.shape, up.shape, round(scale, 9)) for layer, (down, up, scale) in adapter.items()}

    if form(own) != form(start):
        raise ConfigError(
            f"models.{policy}.path holds an adapter of other layers, another rank or another alpha",
            hint=f"set models.{policy}.lora to what adapter_config.json there says, and model.path to its model",
        )
    for layer, (down, up, _) in own.items():
        down.copy_(start[layer].down)
        up.copy_(start[layer].up)


def of_adapter(parameter_name: str, name: str) -> bool:
    """Return whether a parameter is one of the adapter's."""
    return re.search(rf"\.lora_\w+\.{re.escape(name)}(\.|$)", parameter_name) is not None


@torch.no_grad()
def factors_of(module: nn.Module, name: str) -> dict[str, Factors]:
    """Return an adapter's contribution to each layer, by the layer's name without adapters.

    Raises:
        TrainerError: it adds to something else than linear layers.
    """
    from peft.tuners.lora import LoraLayer

    found: dict[str, Factors] = {}
    for layer_name, layer in cast(Any, module).get_base_model().named_modules():
        if isinstance(layer, LoraLayer) and name in layer.lora_A:
            if hasattr(layer, "parameter_name"):
                raise TrainerError(
                    f"{layer_name}: adapters on parameters, as of experts, cannot be one of several",
                    hint="train one policy with model.lora",
                )
            down, up = (cast(Any, matrices)[name].weight for matrices in (layer.lora_A, layer.lora_B))
            found[plain_name(layer_name)] = Factors(down, up, float(layer.scaling[name]))
    return found


def scale_of(module: nn.Module, name: str) -> float:
    """Return the factor of an adapter's contribution, alpha over rank."""
    scales = (getattr(layer, "scaling", {}) for layer in module.modules())
    return float(next(each[name] for each in scales if isinstance(each, dict) and name in each))


def without_adapters(module: nn.Module) -> AbstractContextManager[None]:
    """The starting weights, for as long as the context lasts."""
    return cast(Any, module).disable_adapter()


@torch.no_grad()
def merged_tensors(module: nn.Module, name: str = ALONE) -> Iterator[tuple[str, Tensor]]:
    """Every weight under the name it has without adapters, the adapters' contribution added in float32; nothing is
    while they are switched off."""
    from peft.tuners.lora import LoraLayer

    base = cast(Any, module).get_base_model()
    adapted: dict[str, Any] = {
        f"{plain_name(own)}.{getattr(layer, 'parameter_name', 'weight')}": layer
        for own, layer in base.named_modules()
        if isinstance(layer, LoraLayer)
    }
    for own, tensor in saved_tensors(base):
        plain = plain_name(own)
        if ".lora_" in own:
            continue
        if plain in adapted and not adapted[plain].disable_adapters:
            tensor = (tensor.float() + _contribution(adapted[plain], name)).to(tensor.dtype)
        yield plain, tensor


def saved_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a transformers model by its name; of tied weights the one that is saved."""
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    return ((name, tensor) for name, tensor in model.state_dict().items() if plain_name(name) not in tied)


def plain_name(name: str) -> str:
    """The name without adapters; a layer with several adapted parameters, as of experts, is wrapped for each."""
    return name.replace(".base_layer", "")


def _contribution(layer: Any, name: str) -> Tensor:
    """Weight that an adapter adds to a layer's, in float32; peft's `get_delta_weight` rounds to its own dtype."""
    if getattr(layer, "num_experts", 1) > 1:
        left, right, scaling = layer.get_delta_factors(name)
    else:
        left, right = (matrices[name].weight for matrices in (layer.lora_B, layer.lora_A))
        scaling = layer.scaling[name]
    contribution = left.float() @ right.float() * scaling
    return contribution.T if layer.fan_in_fan_out else contribution
