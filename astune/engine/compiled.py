"""C sources compiled on the machine that runs them, once, into the user's cache; engine and trainer share it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from astune.engine.model_files import cache_dir

_COMPILER = "gcc"
"""The sources use its vector extensions."""
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]


def compiled(source: Path, *flags: str) -> Path:
    """The library, from the cache where this source was compiled for this processor before.

    Raises:
        FileNotFoundError: there is no gcc.
        CalledProcessError: gcc did not compile it; `stderr` says why.
        OSError: the cache cannot be written.
    """
    command = [_COMPILER, *_FLAGS, *flags]
    version = subprocess.run([_COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("\n".join([source.read_text(), *command, version, processor()]).encode()).hexdigest()
    library = cache_dir() / "kernels" / f"{key[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made = Path(scratch) / library.name
            subprocess.run([*command, "-o", made, source, "-lm"], capture_output=True, text=True, check=True)
            os.replace(made, library)
    return library


def processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), "")
