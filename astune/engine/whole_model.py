"""A model as transformers loads it, and whole: the weights of its files are those that its config.json describes.

transformers fills a weight that the files lack with random numbers, and computes without one that is not described (a
layer, a bias), which only its log mentions. Here both are errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from astune.engine.model_files import why_not_loaded
from astune.schema import AstuneError

_FIX = "copy the files of that model again, all of them from one place"


def load_causal_lm(folder: Path, dtype: torch.dtype, *, error: type[AstuneError]) -> Any:
    """The model in `folder`, in memory.

    Raises:
        AstuneError: `error`, where a file is damaged, or the weights are not those that config.json describes.
    """
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, found = load(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as cause:
        why = (_other_shape(folder) if "mismatched" in str(cause) else None) or why_not_loaded(cause, folder)
        raise error(f"the model in {folder} could not be loaded: {why}", hint=_FIX) from cause
    missing, left_out = sorted(found["missing_keys"]), _of_layers(found["unexpected_keys"], model)
    if why := _lacking(missing, "config.json describes", "weights lack") or _lacking(
        left_out, "weights have", "config.json does not describe"
    ):
        raise error(f"the model in {folder} could not be loaded: {why}", hint=_FIX)
    return model


def without_gaps(model: Any) -> Any:
    """Return a model of transformers, attending eagerly where fused kernels would leave a part of its attention out.

    `sdpa`, the default, silently ignores a cap of the scores, as Gemma 2 has it.
    """
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    return model


def _of_layers(names: Iterable[str], model: Any) -> list[str]:
    """Names that belong to a layer, of the model or beyond its last; others may be for something else."""
    layers = {before for before, dot, _ in (name.partition(".layers.") for name in model.state_dict()) if dot}
    return sorted(name for name in names if ".layers." in name and name.partition(".layers.")[0] in layers)


def _lacking(names: list[str], one: str, other: str) -> str | None:
    if not names:
        return None
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return f"its {one} {names[0]}{more}, which its {other}"


def _other_shape(folder: Path) -> str | None:
    """The first weight whose shape is not the one that config.json describes."""
    from safetensors import safe_open
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    described = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 - it is no mapping
                if (shape := held.get_slice(name).get_shape()) != described.get(name, shape):
                    return f"{name} in {file.name} has shape {shape}, but config.json describes {described[name]}"
    return None
