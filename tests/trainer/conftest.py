"""A model small enough to compare every number of."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_helpers import save_small_llama


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A three-layer Llama with random weights, tied embeddings and a file that stands for its tokenizer."""
    folder = tmp_path_factory.mktemp("small-model")
    return save_small_llama(folder, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6)
