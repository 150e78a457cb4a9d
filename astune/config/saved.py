"""The configuration in a run's folder. A run writes all of it, so an empty or cut off file is damage, not defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.config._yaml import read_document
from astune.config.keys import ROOT
from astune.config.loader import load_config
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError


def load_saved(path: Path, overrides: Sequence[str] = (), *, values: Sequence[Mapping[str, Any]] = ()) -> AstuneConfig:
    """Load the configuration that a run saved; the arguments are those of `load_config`.

    Raises:
        ConfigError: it is empty, cut off, or invalid.
    """
    document = read_document(path)
    if not document.data.get(ROOT) and document.data.keys() <= {ROOT}:
        raise _damaged(path, "is empty")
    if not path.read_bytes().endswith(b"\n"):
        raise _damaged(path, "ends in the middle of a line")
    return load_config(path, overrides, values=values)


def _damaged(path: Path, how: str) -> ConfigError:
    copy = path.parent / "backup" / "resolved.yaml"
    hint = f"copy {copy} over it" if copy.is_file() else "restore it from a copy of the run"
    return ConfigError(f"the run's configuration {path} {how}", hint=hint)
