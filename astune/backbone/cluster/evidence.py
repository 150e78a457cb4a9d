"""Evidence that an engine moved the weights as it reports."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open


def differ(first: Path, second: Path) -> bool:
    """Return whether two folders in Hugging Face format hold other weights, in the second one's precision.

    One tensor of each is read at a time, and none after the first pair that differs.
    """
    with ExitStack() as open_files:
        before, after = (_tensors(folder, open_files) for folder in (first, second))
        for name in before.keys() & after.keys():
            tensor = after[name].get_tensor(name)
            if not tensor.equal(before[name].get_tensor(name).to(tensor.dtype)):
                return True
    return False


def _tensors(folder: Path, open_files: ExitStack) -> dict[str, Any]:
    """The open file of each tensor, by name."""
    files = [open_files.enter_context(safe_open(file, "pt")) for file in sorted(folder.glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no dictionary
