"""Adapters of several policies on one model: what an engine takes of them, and their files.

    adapter_config.json           peft's: rank `r`, `lora_alpha`, the layers
    adapter_model.safetensors     base_model.model.LAYER.lora_A.weight [rank, in], ...lora_B.weight [out, rank]

peft and vLLM load such a folder as it is. Imports torch when a file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from astune.schema import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class Factors(NamedTuple):
    """What an adapter adds to a linear layer: `x -> (x down^T) up^T scale`, down [rank, in], up [out, rank]."""

    down: Tensor
    up: Tensor
    scale: float


Adapter = Mapping[str, Factors]
"""By the name of the layer in the model without adapters; the model itself where there is none."""


class AdapterSource(Protocol):
    """A source of new adapters for an engine. `version` counts up with every step that trains any."""

    @property
    def version(self) -> int: ...

    def adapters(self) -> Mapping[str, Adapter]:
        """The adapter of each policy that may have changed; valid until the next optimiser step."""
        ...


def read_adapter(folder: Path) -> dict[str, Factors]:
    """Read an adapter's folder.

    Raises:
        ConfigError: the folder holds none that can be read.
    """
    try:
        from safetensors.torch import load_file

        config = json.loads((folder / CONFIG_FILE).read_text())
        scale = float(config["lora_alpha"]) / int(config["r"])
        tensors = load_file(folder / WEIGHTS_FILE)
        return {
            (layer := name.removeprefix(_PREFIX).removesuffix(_DOWN)): Factors(
                tensor, tensors[f"{_PREFIX}{layer}{_UP}"], scale
            )
            for name, tensor in tensors.items()
            if name.endswith(_DOWN)
        }
    except Exception as cause:  # of the file system, of JSON, of safetensors
        raise ConfigError(
            f"{folder} is no adapter that can be read: {type(cause).__name__}: {cause}",
            hint="name a folder with adapter_config.json and adapter_model.safetensors, such as model/NAME of a "
            "checkpoint of a run with `models`",
        ) from cause


def policies_in(model: Path) -> list[str]:
    """Names of the policies whose adapters a checkpoint's model is; none where it is a whole model."""
    return sorted(file.parent.name for file in model.glob(f"*/{CONFIG_FILE}"))


def write_adapter(folder: Path, adapter: Adapter, *, base: str) -> None:
    """Write an adapter's folder; weights as they are, in float32.

    Args:
        base: the model below it, as peft names it.
    """
    from safetensors.torch import save_file

    ranks = {factors.down.shape[0] for factors in adapter.values()}
    scales = {factors.scale for factors in adapter.values()}
    if len(ranks) != 1 or len(scales) != 1:
        raise ConfigError("an adapter has layers of several ranks or scales", hint="this is a defect of astune")
    [rank], [scale] = ranks, scales
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{_PREFIX}{layer}{suffix}": tensor.detach().float().cpu().contiguous()
        for layer, factors in adapter.items()
        for suffix, tensor in ((_DOWN, factors.down), (_UP, factors.up))
    }
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(adapter),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
