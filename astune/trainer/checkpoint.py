"""Checkpoints of a policy: the model as anyone can load it, and the state from which training resumes.

Writing is not atomic here; the run's checkpoint store wraps it in a temporary folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.engine.adapters import read_adapter
from astune.engine.whole_model import load_causal_lm
from astune.schema import ConfigError, TrainerError
from astune.trainer.lora import plain_name, saved_tensors

STATE_FILE = "trainer_state.pt"

_OF_THE_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "config.json")


def save_weights(
    folder: Path, causal_lm: nn.Module, named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype
) -> None:
    """Write config and weights, these in `dtype`, as others name and store them; they are read one by one.

    Buffers, such as what balances experts, keep their dtype: they choose, and a rounded one chooses others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffers = {plain_name(name) for name, _ in causal_lm.named_buffers(remove_duplicate=False)}
    saved = {
        name: tensor.detach().to("cpu", tensor.dtype if name in buffers else dtype) for name, tensor in named_tensors
    }
    cast(Any, causal_lm).save_pretrained(folder, state_dict=saved)
    config_file = folder / "config.json"
    for weights in folder.glob("*.safetensors"):  # readable to the owner alone; a server may run as another user
        shutil.copymode(config_file, weights)
    named = {"dtype": str(dtype).removeprefix("torch.")}
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | named, indent=2) + "\n")


def save_model(
    folder: Path, causal_lm: nn.Module, named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype, source: Path
) -> None:
    """Write config, weights in `dtype`, and everything of `source` that is neither: tokenizer, chat template."""
    save_weights(folder, causal_lm, named_tensors, dtype)
    for file in source.iterdir():
        if file.is_file() and not any(file.match(pattern) for pattern in (*_OF_THE_WEIGHTS, STATE_FILE)):
            shutil.copyfile(file, folder / file.name)


@torch.no_grad()
def save_merged(base: Path, adapter: Path, to: Path) -> None:
    """Write the model in `base` with an adapter's folder merged into it: a whole float32 model in Hugging Face format.

    Raises:
        ConfigError: the adapter is of another model, or the base is damaged.
    """
    model = load_causal_lm(base, torch.float32, error=ConfigError)
    tensors = dict(saved_tensors(model))
    for layer, (down, up, scale) in read_adapter(adapter).items():
        weight = tensors.get(f"{layer}.weight")
        contribution = up.float() @ down.float() * scale
        if weight is not None and type(model.get_submodule(layer)).__name__ == "Conv1D":
            contribution = contribution.T
        if weight is None or weight.shape != contribution.shape:
            raise ConfigError(f"the adapter in {adapter} is of another model: {base} has no such layer as {layer}")
        tensors[f"{layer}.weight"] = weight + contribution
    save_model(to, model, tensors.items(), torch.float32, base)


def random_state() -> dict[str, Tensor]:
    """The state of the random generators, which `load_state` restores."""
    rng = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return rng


def save_state(folder: Path, state: dict[str, Any], rng: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**state, "rng": rng}, folder / STATE_FILE)


def load_state(folder: Path, device: torch.device) -> dict[str, Any]:
    """Load the output of `save_state`, and restore the random generators.

    Raises:
        TrainerError: there is no state, or it cannot be read.
    """
    file = folder / STATE_FILE
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        rng = state.pop("rng")
    except Exception as cause:
        raise TrainerError(
            f"{file} cannot be read: {cause!r}", hint="resume from a checkpoint that was written whole"
        ) from cause
    torch.set_rng_state(rng["cpu"])
    if device.type == "cuda" and "cuda" in rng:
        torch.cuda.set_rng_state(rng["cuda"])
    return state
