"""A vocabulary: what each token of a run reads as, in bytes. It turns ids into text, and never text into ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces[id]` are a token's bytes: UTF-8, of which a token may hold a part of a character.

    None of them in a run whose ids are characters themselves (see `astune/engine/remote/written.py`): then id 97 is
    "a". An id that the vocabulary does not have reads as nothing. `special` are ids of control tokens, whose bytes
    are their names.
    """

    pieces: Sequence[bytes] | None
    special: frozenset[int] = field(default_factory=frozenset[int])

    def piece(self, token_id: int) -> bytes:
        if self.pieces is None:
            return chr(token_id).encode("utf-8", "surrogatepass") if 0 <= token_id < 0x110000 else b""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def text(self, token_ids: Sequence[int]) -> str:
        """The tokens' text; bytes that are no characters are shown as replacement characters."""
        return b"".join(map(self.piece, token_ids)).decode("utf-8", "replace")
