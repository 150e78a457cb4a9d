"""Bytes of every token of a tokenizer, so that a run can be decoded without it.

A token's own text is not enough: one of four bytes of an emoji decodes to a replacement character, and only the
tokenizer's decoder defines whether `Ġ` or `▁` is a space.
"""

from __future__ import annotations

import json
import re
from typing import Any

from astune.engine.tokenizer import ModelTokenizer
from astune.schema import Vocabulary

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BEFORE = "a"
"""Prefix added before decoding a token: decoders strip a leading space."""


def vocabulary_of(tokenizer: ModelTokenizer) -> Vocabulary:
    """Added tokens read as their own names.

    Ġthe -> b" the"     byte-level (GPT-2 and most since); Ġ is how it spells the byte 0x20
    ▁the -> b" the"     SentencePiece
    <0xE4> -> b"\\xe4"   SentencePiece with byte fallback
    """
    backend = tokenizer.backend
    decoder = backend.decoder
    kinds = _kinds(json.loads(decoder.__getstate__())) if decoder is not None else set[str]()
    added_tokens = backend.get_added_tokens_decoder()
    spelled = [backend.id_to_token(token_id) for token_id in range(backend.get_vocab_size(with_added_tokens=True))]
    added = {token_id: token.content.encode() for token_id, token in added_tokens.items()}
    pieces = [_piece(token, decoder, kinds) for token in spelled]
    for token_id, piece in added.items():
        pieces += [b""] * (token_id + 1 - len(pieces))  # ids may have gaps
        pieces[token_id] = piece
    special = [token_id for token_id, token in added_tokens.items() if token.special]
    return Vocabulary(pieces, frozenset(special))


def _piece(token: str | None, decoder: Any, kinds: set[str]) -> bytes:
    if token is None:
        return b""
    if "ByteLevel" in kinds:
        return token.translate(_BYTES_OF).encode("latin-1")
    byte = _BYTE.fullmatch(token) if "ByteFallback" in kinds else None
    if byte is not None:
        return bytes.fromhex(byte[1])
    if decoder is None:
        return token.encode()
    return decoder.decode([_BEFORE, token]).removeprefix(_BEFORE).encode("utf-8", "replace")


def _kinds(decoder: dict[str, Any]) -> set[str]:
    """The type of a decoder, or the types of those that it is a sequence of."""
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


class _BytesOf(dict[int, str]):
    """Map from a character of a byte-level token to its bytes, as Latin-1, for `str.translate`.

    A byte is spelled as its Latin-1 character where that is printable, others from U+0100 on. Any other character maps
    to itself.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", 2.2, and its code.
    """

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        spelled = {byte: byte for byte in printable} | {0x100 + n: byte for n, byte in enumerate(others)}
        super().__init__({character: chr(byte) for character, byte in spelled.items()})

    def __missing__(self, character: int) -> str:
        return chr(character).encode().decode("latin-1")


_BYTES_OF = _BytesOf()
