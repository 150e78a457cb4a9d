"""Evidence that an engine moved the weights as it reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor


def differ(first: Path, second: Path) -> bool:
    """Return whether two folders in Hugging Face format hold other weights, in the second one's precision.

    One tensor of each is read at a time, and none after the first pair that differs.
    """
    with ExitStack() as open_files:
        before = {name: file for file in _files(first, open_files) for name in _names(file)}
        for name, tensor in _tensors(second, open_files):
            if name in before and not tensor.equal(before[name].get_tensor(name).to(tensor.dtype)):
                return True
    return False


def _files(folder: Path, open_files: ExitStack) -> list[Any]:
    return [open_files.enter_context(safe_open(file, "pt")) for file in sorted(folder.glob("*.safetensors"))]


def _names(file: Any) -> list[str]:
    return [*file.keys()]


def _tensors(folder: Path, open_files: ExitStack) -> Iterator[tuple[str, Tensor]]:
    for file in _files(folder, open_files):
        for name in _names(file):
            yield name, file.get_tensor(name)
