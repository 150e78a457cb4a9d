"""Cache folder for downloads and build products: converted models, compiled kernels, hub data sets."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    return Path(os.environ.get("ASTUNE_CACHE", "~/.cache/astune")).expanduser()
