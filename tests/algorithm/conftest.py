"""A model small enough to compare every number of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_helpers import VOCABULARY
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights."""
    folder = tmp_path_factory.mktemp("small-model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder
