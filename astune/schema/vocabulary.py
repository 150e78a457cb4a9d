"""A vocabulary: the bytes of each token. It turns ids into text, never text into ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of each token, `pieces[id]`: UTF-8, possibly a part of a character.

    Empty in a run whose ids are code points (see `astune/engine/remote/written.py`): then id 97 is "a". An unknown id
    gives an empty text. `special` are the ids of control tokens, whose bytes are their names.
    """

    pieces: Sequence[bytes] | None
    special: frozenset[int] = field(default_factory=frozenset[int])

    def piece(self, token_id: int) -> bytes:
        if self.pieces is None:
            return chr(token_id).encode("utf-8", "surrogatepass") if 0 <= token_id < 0x110000 else b""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode the tokens; invalid bytes become replacement characters."""
        return b"".join(map(self.piece, token_ids)).decode("utf-8", "replace")
