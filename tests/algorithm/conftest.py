"""A model small enough to compare every number of."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_helpers import save_small_llama


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights."""
    folder = tmp_path_factory.mktemp("small-model")
    return save_small_llama(folder, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
