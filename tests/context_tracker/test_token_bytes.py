"""The bytes of tokens, of every kind of tokenizer that models have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.token_bytes import vocabulary_of

TEXTS = [
    "Hello world, how are  you?\n\n\tfine",
    " leading and trailing ",
    "ünïcödé 漢字 🙂 👩‍👩‍👧 ﷺ",
    "def f(x):\n    return x ** 2  # ok",
    "<|im_start|>user\nhi<|im_end|>",
]
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog " * 3] * 5


def sentencepiece_like(*, strip: bool) -> PreTrainedTokenizerFast:
    """As Llama 2 and Gemma: spaces are written as ▁, and what is not known as its bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], limit_alphabet=40, show_progress=False),
    )
    whole = json.loads(tokenizer.to_str())
    words = whole["model"]["vocab"]
    words.update({f"<0x{byte:02X}>": len(words) + byte for byte in range(256)})
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_piece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_tokens_of_the_real_tokenizer_are_the_text_byte_for_byte(tokenizer: Any):
    vocabulary = vocabulary_of(ModelTokenizer.of(tokenizer))
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(vocabulary.piece, token_ids)) == text.encode()
        assert vocabulary.text(token_ids) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("text", TEXTS[:4])
def test_spaces_and_bytes_of_sentencepiece_are_themselves(text: str, strip: bool):
    tokenizer = sentencepiece_like(strip=strip)
    vocabulary = vocabulary_of(ModelTokenizer.of(tokenizer))
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert vocabulary.text(token_ids) == text
    assert b"\xf0" in vocabulary.pieces


def test_a_piece_of_a_word_has_no_space_and_a_word_has_one():
    vocabulary = vocabulary_of(ModelTokenizer.of(word_piece()))
    pieces = set(vocabulary.pieces)
    assert b" the" in pieces
    assert any(not piece.startswith(b" ") for piece in pieces)
    assert not any(b"##" in piece for piece in pieces)


def test_added_tokens_read_as_their_names_and_control_tokens_are_known(smol_folder: Path):
    tokenizer = AutoTokenizer.from_pretrained(smol_folder)
    n_before = len(tokenizer)
    tokenizer.add_tokens([AddedToken("<|tool|>", special=True), AddedToken("Ġplugh", special=False)])
    vocabulary = vocabulary_of(ModelTokenizer.of(tokenizer))
    assert [vocabulary.piece(n_before), vocabulary.piece(n_before + 1)] == [b"<|tool|>", "Ġplugh".encode()]
    assert n_before in vocabulary.special
    assert n_before + 1 not in vocabulary.special
    assert vocabulary.piece(tokenizer.eos_token_id) == tokenizer.eos_token.encode()
    assert len(vocabulary.pieces) == len(tokenizer)
