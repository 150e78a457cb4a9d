"""The configuration in a run's folder. A run writes all of it, so an empty or cut off file is damage, not defaults.

Runs of earlier versions wrote no marks, so a cut exactly between two of their lines cannot be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.config._yaml import read_document
from astune.config.document_marks import is_cut_off, marked
from astune.config.keys import ROOT
from astune.config.loader import dump, load_config
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError


def dump_saved(config: AstuneConfig) -> str:
    """Return the whole configuration as a run saves it."""
    return marked(dump(config))


def load_saved(path: Path, overrides: Sequence[str] = (), *, values: Sequence[Mapping[str, Any]] = ()) -> AstuneConfig:
    """Load the configuration that a run saved; the arguments are those of `load_config`. Raises ConfigError if it is
    empty, cut off, or invalid."""
    document = read_document(path)
    if not document.data.get(ROOT) and document.data.keys() <= {ROOT}:
        raise _damaged(path, "is empty")
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise _damaged(path, "ends in the middle of a line")
    if is_cut_off(text):
        raise _damaged(path, "is cut off")
    return load_config(path, overrides, values=values)


def _damaged(path: Path, how: str) -> ConfigError:
    copy = path.parent / "backup" / "resolved.yaml"
    hint = f"copy {copy} over it" if copy.is_file() else "restore it from a copy of the run"
    return ConfigError(f"the run's configuration {path} {how}", hint=hint)
