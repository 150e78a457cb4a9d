"""A forward pass over several sequences, packed without padding: which tokens, where, and who attends to what.

Keys and values go into the slot cache first; attention then reads each sequence's slot.

A pack can be batch-invariant: every token attends alone, or where no kernel does that every sequence, in pieces that
begin at the same positions always, and a matrix product sums a row in the same order whatever the other rows hold, some
(oneDNN's) only as long as their number stays the same. So a token's numbers are a function of its sequence, and of
nothing that is computed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local._adapters import PolicyRows
from astune.engine.local.attention import Rule, Segment, Tokens, Way, parts_of, way_of, way_of_each
from astune.engine.local.slots import PIECE_TOKENS, Slot, SlotCache


class PackedBatch:
    """Inputs of a model's forward pass.

    Args:
        work: slots and the tokens that are new in them. Those with similarly many tokens must stand together: they
            attend as one group.
        logit_rows: the tokens of the pack whose next token is to be sampled.
        rows: pad the pack, and `logit_rows` where there are any, to this many rows; None for no padding. Padded rows
            repeat the last token; nothing of them is stored or read.
        invariant: attend batch-invariantly.
    """

    def __init__(
        self,
        cache: SlotCache,
        work: Sequence[tuple[Slot, Sequence[int]]],
        logit_rows: Sequence[int],
        device: torch.device,
        *,
        rows: int | None,
        invariant: bool,
    ) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        segments: list[Segment] = []
        rows_of: dict[str, list[int]] = {}
        for slot, new in work:
            start, past = len(tokens), len(slot.tokens)
            if slot.policy:
                rows_of.setdefault(slot.policy, []).extend(range(start, start + len(new)))
            tokens.extend(new)
            positions.extend(range(past, past + len(new)))
            slots.extend([slot.index] * len(new))
            prefix = slot.prefix.index if slot.prefix is not None else 0
            segments.append(Segment(start, len(tokens), slot.index, past, prefix, slot.shared))
        self.n_tokens = len(tokens)
        """Rows of the pack that are tokens; padded ones come behind."""
        self._padding = 0 if rows is None else rows - len(tokens)
        self.input_ids = torch.tensor(_padded(tokens, rows), device=device)
        self.positions = torch.tensor(_padded(positions, rows), device=device)
        self.logit_rows = torch.tensor(_padded(logit_rows, rows), dtype=torch.long, device=device)
        self.slots = torch.tensor(slots, device=device)
        self.policies = [PolicyRows(name, torch.tensor(own, device=device)) for name, own in sorted(rows_of.items())]
        """Rows that adapters are added to; those of the model itself are in none of them."""
        self.is_invariant = invariant
        self.cache = cache
        self._rows: dict[int, Tensor] = {}
        if invariant:
            self._way_of = way_of_each
            pieces = (piece for segment in segments for piece in _pieces(segment))
            self._parts = [list(alike) for _, alike in groupby(pieces, key=lambda piece: piece.new == 1)]
        else:
            self._way_of = way_of
            self._parts = [part for _, alike in groupby(segments, key=_size) for part in parts_of(list(alike))]
        self._ways: dict[tuple[int, type[Way]], Way] = {}

    def attend(self, layer: int, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, rule: Rule) -> Tensor:
        """Store the new keys and values and attend: [rows, heads, value dim]."""
        n = self.n_tokens
        self.cache.write(layer, self._rows_of(k_NHD.shape[1]), k_NHD[:n], v_NHD[:n])
        return self.attend_to_stored(layer, q_NHD, rule)

    def attend_to_stored(self, layer: int, q_NHD: Tensor, rule: Rule) -> Tensor:
        """[rows, heads, value dim]; the new tokens' keys and values are in their slots already."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        outs = [
            self._way(index, keys, values, rule).attend(keys, values, q_NHD[part[0].start : part[-1].end], rule)
            for index, part in enumerate(self._parts)
        ]
        out_NHD = outs[0] if len(outs) == 1 else torch.cat(outs)
        return F.pad(out_NHD, (0, 0, 0, 0, 0, self._padding)) if self._padding else out_NHD

    def tokens(self, rule: Rule) -> Tokens | None:
        """The attention of all rows where each token attends alone, alike in every layer."""
        if len(self._parts) > 1 or self._padding:
            return None
        way = self._way(0, self.cache.keys[0], self.cache.values[0], rule)
        return way if isinstance(way, Tokens) else None

    def _way(self, index: int, keys: Tensor, values: Tensor, rule: Rule) -> Way:
        """Attention of a part in layers of this kind."""
        kind = self._way_of(self._parts[index], keys, values, rule)
        if (index, kind) not in self._ways:
            self._ways[index, kind] = kind(self._parts[index], keys)
        return self._ways[index, kind]

    def _rows_of(self, kv_heads: int) -> Tensor:
        if kv_heads not in self._rows:
            self._rows[kv_heads] = self.cache.row_index(self.slots, self.positions[: self.n_tokens], kv_heads)
        return self._rows[kv_heads]


def _padded(numbers: Sequence[int], rows: int | None) -> list[int]:
    """`rows` numbers where there are any: the last one again and again behind them."""
    missing = (rows or 0) - len(numbers)
    return [*numbers, *list(numbers[-1:]) * missing]


def _pieces(segment: Segment) -> Iterator[Segment]:
    """A segment in pieces; where they attend as a whole it begins where one does, or is one token."""
    for start in range(segment.start, segment.end, PIECE_TOKENS):
        end = min(start + PIECE_TOKENS, segment.end)
        yield segment._replace(start=start, end=end, past=segment.past + start - segment.start)


def _size(segment: Segment) -> int:
    """Segments of one size differ by less than a factor of two, and may be padded to the same length."""
    return segment.new.bit_length()
