"""The interpreter that runs inside: its command, environment and required folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder of the package `inside`; the interpreter imports it from here and then forgets the folder."""

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_PARTS = ("bin", "lib", "lib64", "include", "share", "pyvenv.cfg")
"""Parts of a Python's folder, which may be a project's or a home folder, as after `python -m venv .`."""
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.{module} import main; del sys.path[0]; main()"


def environment() -> dict[str, str]:
    """Return the environment of the code: nothing of ours. One thread, since threads count as processes."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def command(module: str, *words: str, folder: Path = FOLDER) -> list[str]:
    """Start `inside.<module>` isolated from environment, user site and working directory, with unbuffered output."""
    start = _START.format(module=module)
    return [sys.executable, "-I", "-u", "-X", "utf8", "-c", start, str(folder), *words]


def readable_folders() -> list[str]:
    """Return the folders that an interpreter reads: its own files and the system's libraries; no home folder, no
    project."""
    real = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    parts = [os.path.join(folder, part) for folder in (sys.base_prefix, sys.prefix, real) for part in _PARTS]
    return outermost(path for path in (*_SYSTEM, *parts) if os.path.exists(path))


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths without those inside another."""
    found: list[str] = []
    for path in sorted(paths, key=len):
        if not is_within(path, found):
            found.append(path)
    return found


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Return whether the path is one of `folders`, or inside one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
