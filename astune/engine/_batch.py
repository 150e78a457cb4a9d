"""One forward pass over several sequences, packed without padding: which tokens, where, and who attends to what.

Keys and values go into the slot cache first; attention then reads each sequence's slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from astune.engine._attention import Group, Rule, Segment, attend_alone
from astune.engine._slots import Slot, SlotCache

_SCORES = 1 << 20
"""Scores of one head that a group may write out; longer pieces of a prompt go through the fused kernel, alone."""


class _Part(NamedTuple):
    """Segments that attend together, or one that goes through the fused kernel."""

    segments: list[Segment]
    alone: bool


class PackedBatch:
    """What a model's forward pass needs to know.

    Args:
        work: slots and the tokens that are new in them. Those with similarly many tokens must stand together: they
            attend as one group.
        logit_rows: the tokens of the pack whose next token is to be sampled.
    """

    def __init__(
        self,
        cache: SlotCache,
        work: Sequence[tuple[Slot, Sequence[int]]],
        logit_rows: Sequence[int],
        device: torch.device,
    ) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        segments: list[Segment] = []
        for slot, new in work:
            start, past = len(tokens), len(slot.tokens)
            tokens.extend(new)
            positions.extend(range(past, past + len(new)))
            slots.extend([slot.index] * len(new))
            segments.append(Segment(start, len(tokens), slot.index, past))
        self.input_ids = torch.tensor(tokens, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.logit_rows = torch.tensor(logit_rows, dtype=torch.long, device=device)
        self._slots_N = torch.tensor(slots, device=device)
        self._cache = cache
        self._rows: dict[int, Tensor] = {}
        self._parts = [part for _, alike in groupby(segments, key=_size) for part in _parts(list(alike))]
        self._groups: dict[int, Group] = {}

    def attend(
        self,
        layer: int,
        q_NHD: Tensor,
        k_NHD: Tensor,
        v_NHD: Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Store the new keys and values and attend: [tokens, heads, value dim]."""
        self._cache.write(layer, self._rows_of(k_NHD.shape[1]), k_NHD, v_NHD)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        rule = Rule(scale, window, softcap)
        outs: list[Tensor] = []
        for index, part in enumerate(self._parts):
            q = q_NHD[part.segments[0].start : part.segments[-1].end]
            if part.alone and softcap is None:  # the fused kernel has none
                outs.append(attend_alone(keys, values, q, part.segments[0], rule))
            else:
                outs.append(self._group(index).attend(keys, values, q, rule))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _group(self, index: int) -> Group:
        if index not in self._groups:
            self._groups[index] = Group(self._parts[index].segments, self._cache.capacity, self.input_ids.device)
        return self._groups[index]

    def _rows_of(self, kv_heads: int) -> Tensor:
        if kv_heads not in self._rows:
            self._rows[kv_heads] = self._cache.row_index(self._slots_N, self.positions, kv_heads)
        return self._rows[kv_heads]


def _size(segment: Segment) -> int:
    """Segments of one size differ by less than a factor of two, and may be padded to the same length."""
    return (segment.end - segment.start).bit_length()


def _parts(alike: list[Segment]) -> Iterator[_Part]:
    """Segments of one size in parts of bounded size."""
    scores = max(s.end - s.start for s in alike) * max(s.length for s in alike)
    one_token = len(alike) == 1 and alike[0].end - alike[0].start == 1
    alone = one_token or scores > _SCORES
    together = 1 if alone else max(1, _SCORES // scores)
    for first in range(0, len(alike), together):
        yield _Part(alike[first : first + together], alone)
