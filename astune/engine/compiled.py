"""C sources compiled on the machine that runs them, once, into the user's cache; engine and trainer share it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astune.config.cache import cache_dir

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_log = logging.getLogger(__name__)

_COMPILER = "gcc"
"""The sources use its vector extensions."""
_HEADERS = Path(__file__).parent
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
_LINKING = ["-shared", "-fPIC", "-Wl,-Bsymbolic"]


_TIMEOUT_S = 120
"""For gcc, which takes some seconds."""


def compiled(source: Path, *flags: str, doing: str, library: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL | None:
    """The source as a loaded library; None where it cannot be compiled; the log says why.

    Args:
        doing: what is slower without it, for the log.
        library: how it is called: `PyDLL` keeps the interpreter for the time of a call.
    """
    try:
        file = _library(source, flags)
        try:
            return library(str(file))
        except OSError:  # damaged, as by a full disk
            file.unlink(missing_ok=True)
            return library(str(_library(source, flags)))
    except FileNotFoundError:
        _log.warning("%s on this CPU is slower than it could be: install gcc, which compiles a part of it", doing)
    except (OSError, RuntimeError, subprocess.SubprocessError) as cause:
        reason = getattr(cause, "stderr", None) or cause
        _log.warning(
            "%s on this CPU is slower than it could be: %s cannot be compiled or loaded: %s", doing, source, reason
        )
    return None


def compiled_for(
    dtype: torch.dtype,
    source: Path,
    signatures: Mapping[str, Sequence[Any]],
    *flags: str,
    doing: str,
    library: type[ctypes.CDLL] = ctypes.CDLL,
) -> ctypes.CDLL | None:
    """The source for tensors of `dtype`; None where it has no form for them or this processor, or cannot be compiled.

    Args:
        signatures: the types of the arguments of each function, none of which has a result.
    """
    element = {"torch.bfloat16": ["-DBFLOAT16"], "torch.float32": []}.get(str(dtype))
    if element is None or not is_x86():
        return None
    functions = compiled(source, *element, *flags, doing=doing, library=library)
    if functions is not None:
        for name, arguments in signatures.items():
            getattr(functions, name).argtypes = arguments
            getattr(functions, name).restype = None
    return functions


def _library(source: Path, flags: tuple[str, ...]) -> Path:
    """Return the cached library if this source was compiled for this processor by this compiler."""
    command = [_COMPILER, *_FLAGS, *_LINKING, *flags]
    target = _output([_COMPILER, "--version"]) + _output([_COMPILER, "-march=native", "-Q", "--help=target"])
    texts = [
        each.read_text() for each in (source, *sorted(_HEADERS.glob("*.h")), *sorted(source.parent.glob("*.[ch]")))
    ]
    key = hashlib.sha256("\n".join([*texts, *command, target]).encode()).hexdigest()
    library = cache_dir() / "kernels" / f"{key[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made = Path(scratch) / library.name
            _output([*command, "-I", str(_HEADERS), "-o", str(made), str(source), "-lm"])
            os.replace(made, library)
    return library


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout


def addresses(*tensors: Tensor | None) -> list[int]:
    """The addresses of tensors, for a compiled function; 0, its NULL, for None."""
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def is_x86() -> bool:
    """Whether this is the kind of processor that the sources were measured on."""
    return platform.machine().lower() in ("x86_64", "amd64")


def processor() -> str:
    """Return the processor's feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), "")
