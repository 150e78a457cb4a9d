"""One forward pass over several sequences, packed without padding: which tokens, where, and who attends to what.

Keys and values go into the slot cache first; attention then reads each sequence's slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from astune.engine._attention import Group, Rule, Segment, attend_alone
from astune.engine._slots import Slot, SlotCache

_ALONE_FROM = 512
"""New tokens of one sequence from which the fused kernel is faster than products that write all scores."""


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
        self.logit_rows = torch.tensor(logit_rows, device=device)
        self._slots_N = torch.tensor(slots, device=device)
        self._cache = cache
        self._rows: dict[int, Tensor] = {}
        self._alike = [list(group) for _, group in groupby(segments, key=_size)]
        self._groups = [
            None if _size(alike[0]) > _ALONE_FROM.bit_length() else Group(alike, cache.capacity, device)
            for alike in self._alike
        ]

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
        parts: list[Tensor] = []
        for alike, group in zip(self._alike, self._groups, strict=True):
            if group is not None:
                parts.append(group.attend(keys, values, q_NHD[alike[0].start : alike[-1].end], rule))
                continue
            for segment in alike:
                q = q_NHD[segment.start : segment.end]
                alone = Group([segment], self._cache.capacity, q.device) if softcap is not None else None
                parts.append(
                    alone.attend(keys, values, q, rule) if alone else attend_alone(keys, values, q, segment, rule)
                )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rows_of(self, kv_heads: int) -> Tensor:
        if kv_heads not in self._rows:
            self._rows[kv_heads] = self._cache.row_index(self._slots_N, self.positions, kv_heads)
        return self._rows[kv_heads]


def _size(segment: Segment) -> int:
    """Segments of one size differ by less than a factor of two, and may be padded to the same length."""
    return (segment.end - segment.start).bit_length()
