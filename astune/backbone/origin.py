"""The origin of a run's episodes: everything that determines how they are sampled and judged, beside the weights.

It is a digest of the configuration, of installed packages by version, and of the state of files: ASTuner's, the user's
modules with the Python files beside them, the files that the configuration names, and the models'.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

import astune
from astune.config import AstuneConfig
from astune.schema import is_users


def origin_of(config: AstuneConfig, models: Iterable[Path], base_dir: Path | None) -> str:
    """Return the digest; empty where code of a notebook, which no file holds, makes it unknown.

    Args:
        models: the folders of the run's models.
        base_dir: where files that the configuration names are, beside the working directory.
    """
    settings = config.model_dump(mode="json")
    if "__main__->" in str(settings):
        return ""
    folders = [Path.cwd(), *([base_dir] if base_dir else [])]
    files = {*own_sources(), *_beside_loaded_modules(), *_named(settings, folders)}
    files |= {file for folder in models for file in folder.glob("*")}
    digest = hashlib.sha256(orjson.dumps([sys.version, settings, sorted(_packages())]))
    for file in sorted({file.resolve() for file in files}):
        with suppress(OSError):
            found = file.stat()
            digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def own_sources() -> Iterator[Path]:
    """Return the files of ASTuner's code, in Python and in C."""
    return (file for file in Path(astune.__file__).parent.rglob("*") if file.suffix in {".py", ".c", ".h"})


def _beside_loaded_modules() -> Iterator[Path]:
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    for folder in {Path(file).parent for file in loaded if file and is_users(file)}:
        yield from folder.glob("*.py")


def _named(settings: Any, folders: list[Path]) -> Iterator[Path]:
    """Yield the files whose names are words of the settings: a program, its script, rubrics, tasks."""
    if isinstance(settings, dict | list):
        for each in settings.values() if isinstance(settings, dict) else settings:
            yield from _named(each, folders)
    elif isinstance(settings, str):
        for word in {settings, *settings.replace("->", " ").split()}:
            for folder in folders:
                with suppress(OSError, ValueError):
                    if (file := folder / Path(word).expanduser()).is_file():
                        yield file


def _packages() -> Iterator[str]:
    """Yield the names of what is installed, with versions."""
    for folder in {*sys.path}:
        yield from (found.name for found in Path(folder).glob("*.dist-info"))
