"""The real tokenizer, and the renderer that is derived from its template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astune.renderers import Renderer, load_renderer


@pytest.fixture(scope="session")
def tokenizer(smol_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smol_folder)


@pytest.fixture(scope="session")
def renderer(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)
