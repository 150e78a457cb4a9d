"""A real tokenizer with a scripted engine: what the episodes say is known, how it is tokenised is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.context_tracker import Renderer, load_renderer


@pytest.fixture(scope="session")
def renderer(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)
