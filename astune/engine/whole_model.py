"""A model as transformers loads it, and whole: every weight that its config.json describes comes from its files.

transformers fills a weight that the files lack with random numbers, which only its log mentions. Here it is an error.
"""

from __future__ import annotations

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
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise error(
            f"the model in {folder} could not be loaded: its config.json describes {missing[0]}{more}, which its "
            "weights lack",
            hint=_FIX,
        )
    return model


def without_gaps(model: Any) -> Any:
    """Return a model of transformers, attending eagerly where fused kernels would leave a part of its attention out.

    `sdpa`, the default, silently ignores a cap of the scores, as Gemma 2 has it.
    """
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    return model


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
