"""Cache folder for downloads and build products: converted models, compiled kernels, hub data sets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    return Path(os.environ.get("ASTUNE_CACHE", "~/.cache/astune")).expanduser()


@contextmanager
def made_once(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` at the end: whole or not at all, also where two processes make it at
    once. Raises OSError if it cannot be written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-", ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        yield made
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has just made the same
                raise
