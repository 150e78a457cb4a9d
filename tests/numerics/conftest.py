"""Models small enough to be broken often."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_tokenizer(folder: Path) -> int:
    """One token a byte and the ChatML template; returns the size of the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=CHATML,
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_model(folder: Path, *, tied: bool) -> LlamaForCausalLM:
    """A two-layer Llama whose random weights are large enough to prefer some tokens; its head is the embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=save_tokenizer(folder),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=256,
    )
    model = LlamaForCausalLM(config)
    if not tied:
        model.lm_head.weight.data.copy_(model.get_input_embeddings().weight)
    model.to(torch.bfloat16).save_pretrained(folder)
    return model


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    save_model(folder, tied=True)
    return folder


@pytest.fixture(scope="session")
def untied_folder(tied_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, with a head of its own."""
    folder = tmp_path_factory.mktemp("untied")
    untied = save_model(folder, tied=False)
    tied = LlamaForCausalLM.from_pretrained(tied_folder)
    untied.load_state_dict({**tied.state_dict(), "lm_head.weight": tied.get_input_embeddings().weight})
    untied.save_pretrained(folder)
    return folder
