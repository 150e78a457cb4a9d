"""Models of random weights in published shapes: what they compute costs what the real ones cost."""

from __future__ import annotations

from pathlib import Path

QWEN3 = {
    "tiny": (64, 128, 2, 4, 2, 32),
    "0.6B": (1024, 3072, 28, 16, 8, 128),
    "1.7B": (2048, 6144, 28, 16, 8, 128),
    "8B": (4096, 12288, 36, 32, 8, 128),
}
"""Hidden size, inner size, layers, heads, heads of keys and values, and a head's size; `tiny` is for tests."""


def random_qwen3(folder: Path, shape: str) -> int:
    """Write a model of a shape in bfloat16 and the small model's tokenizer; return its number of weights."""
    import torch
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.models.auto.tokenization_auto import AutoTokenizer
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    from astune.engine.model_files import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("builtin:smollm2-135m"))
    torch.manual_seed(0)
    hidden, inner, layers, heads, kv_heads, head_dim = QWEN3[shape]
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=8192,
        tie_word_embeddings=shape != "8B",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
