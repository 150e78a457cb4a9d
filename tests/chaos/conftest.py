"""The smallest model that a run can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def speck_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of random weights with the real tokenizer, a quarter of the tiny model: saving it is nearly free."""
    return _speck(tokenizer, tmp_path_factory.mktemp("speck"), head_dim=8)


@pytest.fixture(scope="session")
def served_speck_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with heads as wide as vLLM's attention on a CPU needs them."""
    return _speck(tokenizer, tmp_path_factory.mktemp("served-speck"), head_dim=32)


def _speck(tokenizer: Any, folder: Path, *, head_dim: int) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=2 * head_dim,
        intermediate_size=4 * head_dim,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    tokenizer.save_pretrained(folder)
    return folder
