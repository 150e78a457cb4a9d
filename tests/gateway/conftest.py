"""The real tokenizer's renderer."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.renderers import Renderer, load_renderer


@pytest.fixture(scope="session")
def renderer(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)
