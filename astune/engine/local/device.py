"""Choice of device and number format of a model, shared by engine and trainer."""

from __future__ import annotations

from typing import Literal

import torch

from astune.engine.local import _cpu_linear, products
from astune.schema import ConfigError


def pick_device(name: Literal["auto", "cuda", "mps", "cpu"]) -> torch.device:
    """The device of `model.device`; `auto` uses the first available of cuda, mps and cpu."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    device = next(device for device in present if present[device]) if name == "auto" else name
    if not present[device]:
        raise ConfigError(f"model.device: there is no {device} device here", hint="set model.device to auto")
    return torch.device(device)


def pick_dtype(name: Literal["auto", "bfloat16", "float32"], device: torch.device) -> torch.dtype:
    """The dtype of `model.dtype`; `auto` is bfloat16 where the hardware multiplies it faster than float32."""
    if name != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        fast = _cpu_linear.takes_bfloat16()
    else:
        fast = True
    return torch.bfloat16 if fast else torch.float32


def takes_int8(dtype: torch.dtype) -> bool:
    """Whether a model of this dtype can sample with weights in 8 bits here."""
    return products.are_available(dtype, inputs=2)
