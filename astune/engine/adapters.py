"""Adapters of several policies on one model: the engine's view of them, and their files.

    adapter_config.json           peft's: rank `r`, `lora_alpha`, the layers
    adapter_model.safetensors     base_model.model.LAYER.lora_A.weight [rank, in], ...lora_B.weight [out, rank]

peft and vLLM load such a folder as it is. Imports torch when a file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from astune.schema import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_NOT_COMPUTED = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "alpha_pattern",
    "rank_pattern",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "lora_bias",
    "layer_replication",
    "alora_invocation_tokens",
)
"""Keys of peft's adapter_config.json under which an adapter is more than `Factors`."""
_KEEPS_THE_MODEL = ("gaussian", "orthogonal", "eva")
"""Ways to begin an adapter that leave the model's own weights as they are."""
_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class Factors(NamedTuple):
    """Contribution of an adapter to a linear layer: `x -> (x down^T) up^T scale`, down [rank, in], up [out, rank]."""

    down: Tensor
    up: Tensor
    scale: float


Adapter = Mapping[str, Factors]
"""Modules by the layer's name in the model without adapters; the model itself if there are none."""


class AdapterSource(Protocol):
    """A source of new adapters for an engine. `version` counts up with every step that trains any."""

    @property
    def version(self) -> int: ...

    def adapters(self) -> Mapping[str, Adapter]:
        """The adapter of each policy that may have changed, or is new; valid until the next optimiser step."""
        ...


def read_adapter(folder: Path) -> dict[str, Factors]:
    """Read an adapter's folder.

    Raises:
        ConfigError: the folder holds none that can be read, one that computes something else than `Factors` do, or one
            with numbers that are not finite.
    """
    try:
        from safetensors.torch import load_file

        config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text())
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        tensors = load_file(folder / WEIGHTS_FILE)
    except Exception as cause:  # of the file system, of JSON, of safetensors
        raise _unreadable(folder, cause) from cause
    if reason := _why_not_plain(config) or _why_no_pairs(tensors, rank):
        raise ConfigError(
            f"the adapter in {folder} cannot be computed here: {reason}",
            hint="use a plain LoRA adapter of linear layers, or merge it into its model with peft's merge_and_unload "
            "and name that in model.path",
        )
    if broken := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
        raise ConfigError(
            f"the adapter in {folder} is damaged: {broken} has numbers that are not finite",
            hint="name the folder of an earlier checkpoint, from before its training diverged",
        )
    layers = [name.removeprefix(_PREFIX).removesuffix(_DOWN) for name in tensors if name.endswith(_DOWN)]
    return {
        layer: Factors(tensors[f"{_PREFIX}{layer}{_DOWN}"], tensors[f"{_PREFIX}{layer}{_UP}"], alpha / rank)
        for layer in layers
    }


def _unreadable(folder: Path, cause: Exception) -> ConfigError:
    return ConfigError(
        f"{folder} is no adapter that can be read: {type(cause).__name__}: {cause}",
        hint="name a folder with adapter_config.json and adapter_model.safetensors, such as model/NAME of a "
        "checkpoint of a run with `models`",
    )


def initial_adapter(policy: str, folder: str) -> dict[str, Factors]:
    """Read the adapter that a policy begins with. Raises ConfigError as `read_adapter` does, with the policy's name."""
    try:
        return read_adapter(Path(folder).expanduser())
    except ConfigError as error:
        raise ConfigError(f"models.{policy}: {error.message}", hint=error.hint) from error


def _why_not_plain(config: Mapping[str, Any]) -> str | None:
    if config.get("peft_type", "LORA") != "LORA":
        return f"its peft_type is {config['peft_type']}"
    if config.get("bias", "none") != "none":
        return f"bias is {config['bias']!r}: it has biases of its own"
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and begun not in _KEEPS_THE_MODEL:
        return f"init_lora_weights is {begun!r}, which changes the model below it"
    asked = next((key for key in _NOT_COMPUTED if config.get(key)), None)
    return asked and f"{asked} is {config[asked]!r}"


def _why_no_pairs(tensors: Mapping[str, Tensor], rank: int) -> str | None:
    for name, tensor in tensors.items():
        suffix = next((one for one in (_DOWN, _UP) if name.endswith(one)), None)
        if suffix is None or not name.startswith(_PREFIX):
            return f"{name} is neither lora_A nor lora_B of a layer"
        if name.removesuffix(suffix) + (_UP if suffix == _DOWN else _DOWN) not in tensors:
            return f"{name} is there without its other half"
        if tensor.dim() != 2 or tensor.shape[0 if suffix == _DOWN else 1] != rank:
            return f"{name} has the shape {list(tensor.shape)}, and the rank is {rank}"
        if name.removeprefix(_PREFIX).removesuffix(suffix) == "lm_head":
            return "it adapts lm_head"
    return None if tensors else "it has no tensors"


def policies_in(model: Path) -> list[str]:
    """Names of the policies in a checkpoint's model, adapters and whole models; none where it is one model itself."""
    return sorted(file.parent.name for name in (CONFIG_FILE, "config.json") for file in model.glob(f"*/{name}"))


def base_of(folder: Path) -> str:
    """Return the model that the adapter in `folder` names as its own; "" where it names none.

    Raises:
        ConfigError: the folder holds no adapter that can be read.
    """
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text())
        return str(config.get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError) as cause:
        raise _unreadable(folder, cause) from cause


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
