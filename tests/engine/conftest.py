"""An engine around the tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engine_helpers import load

from astune.engine import InProcessEngine


@pytest.fixture
async def tiny(tiny_folder: Path) -> AsyncIterator[InProcessEngine]:
    engine = load(tiny_folder)
    yield engine
    await engine.aclose()
