"""The real tokenizer's renderer, and a stage around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from rollout_stage import Stage, build_stage

from astune.renderers import Renderer


@pytest.fixture
def stage(renderer: Renderer) -> Callable[..., Stage]:
    return partial(build_stage, renderer)
