"""One forward pass over several sequences, packed without padding: which tokens, where, and who attends to what.

Keys and values go into the slot cache first; attention then reads each sequence's slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from astune.engine._attention import Rule, Segment, Way, parts_of, way_of
from astune.engine._slots import Slot, SlotCache


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
        self.slots = torch.tensor(slots, device=device)
        self.cache = cache
        self._rows: dict[int, Tensor] = {}
        self._parts = [part for _, alike in groupby(segments, key=_size) for part in parts_of(list(alike))]
        self._ways: dict[tuple[int, type[Way]], Way] = {}

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
        self.cache.write(layer, self._rows_of(k_NHD.shape[1]), k_NHD, v_NHD)
        return self.attend_to_stored(layer, q_NHD, Rule(scale, window, softcap))

    def attend_to_stored(self, layer: int, q_NHD: Tensor, rule: Rule) -> Tensor:
        """[tokens, heads, value dim]; the new tokens' keys and values are in their slots already."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        outs = [
            self._way(index, keys, values, rule).attend(keys, values, q_NHD[part[0].start : part[-1].end], rule)
            for index, part in enumerate(self._parts)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _way(self, index: int, keys: Tensor, values: Tensor, rule: Rule) -> Way:
        """How a part attends in layers like this one."""
        kind = way_of(self._parts[index], keys, values, rule)
        if (index, kind) not in self._ways:
            self._ways[index, kind] = kind(self._parts[index], keys)
        return self._ways[index, kind]

    def _rows_of(self, kv_heads: int) -> Tensor:
        if kv_heads not in self._rows:
            self._rows[kv_heads] = self.cache.row_index(self.slots, self.positions, kv_heads)
        return self._rows[kv_heads]


def _size(segment: Segment) -> int:
    """Segments of one size differ by less than a factor of two, and may be padded to the same length."""
    return segment.new.bit_length()
