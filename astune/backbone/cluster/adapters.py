"""A model that was saved with its LoRA adapters beside their layers, as one without them."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch import Tensor

from astune.runs import copy_folder
from astune.schema import TrainerError
from astune.trainer.lora import plain_name

_WRAPPED, _LEFT, _RIGHT = "base_model.model.", ".lora_B.", ".lora_A."


def merge_adapters(model: Path, to: Path, *, scale: float) -> None:
    """Write the model in a folder of Hugging Face's format to another, what adapters contribute added in float32.

    Args:
        scale: of the contributions, alpha by rank.

    Raises:
        TrainerError: there is no adapter in it.
    """
    saved: dict[str, Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        saved |= load_file(file)
    merged = {plain_name(name.removeprefix(_WRAPPED)): tensor for name, tensor in saved.items() if ".lora_" not in name}
    adapters = [name for name in saved if _LEFT in name]
    if not adapters:
        raise TrainerError(f"the model in {model} has no adapters", hint="set model.lora.rank to 0")
    for name in adapters:
        weight = f"{name.partition(_LEFT)[0].removeprefix(_WRAPPED)}.weight"
        contribution = saved[name].float() @ saved[name.replace(_LEFT, _RIGHT)].float() * scale
        merged[weight] = (merged[weight].float() + contribution).to(merged[weight].dtype)
    copy_folder(model, to, without="*.safetensors*")
    save_torch_state_dict(merged, to)
