"""The folder for what was fetched or made once: converted models, compiled kernels, data sets of a hub."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    return Path(os.environ.get("ASTUNE_CACHE", "~/.cache/astune")).expanduser()
