"""Files that a command of the user writes: there whole or not at all, and never in the place of what it reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from astune.schema import ConfigError


def write_whole(path: Path, text: str) -> None:
    """Put the text into the file in one step. Raises ConfigError if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as cause:
        temporary.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {cause.strerror or cause}", hint="check the folder and its permissions"
        ) from cause


def require_output(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse, before anything is done, a path at which `write_whole` would fail or replace an input. Raises ConfigError
    if it is a folder or one of the inputs, or its folder cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint=f"name a file in it, such as {path / 'out'}")
    if path.exists() and any(each.exists() and each.samefile(path) for each in inputs):
        raise ConfigError(f"{path} is read, and would be overwritten", hint="write another file")
    there = next(each for each in path.absolute().parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"{path} cannot be written", hint=f"{there} is no folder that you may write to")
