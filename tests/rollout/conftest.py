"""The real tokenizer's renderer, and a stage around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rollout_stage import Stage, build_stage

from astune.renderers import Renderer, load_renderer


@pytest.fixture(scope="session")
def renderer(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)


@pytest.fixture
def stage(renderer: Renderer) -> Callable[..., Stage]:
    return partial(build_stage, renderer)
