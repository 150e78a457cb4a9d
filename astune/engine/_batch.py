"""One forward pass over several sequences, packed without padding: which tokens, where, and who attends to what.

The first rows bring one token each (they decode), then come segments of several tokens (they prefill).
Keys and values go into the slot cache first; attention then reads each sequence's slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine._slots import Slot, SlotCache

_COPY_COST = 3
"""Reading, writing and reading again: what attending to a copy costs, against attending in place."""


class Segment(NamedTuple):
    """Tokens [start, end) of the pack continue `slot`, which already holds `past` tokens."""

    start: int
    end: int
    slot: int
    past: int


class PackedBatch:
    """What `attend` needs to know of a forward pass. Rows of `decode` come first, then those of `prefill`.

    Args:
        decode: slots that get one token each.
        prefill: slots that get several.
        logit_rows: the tokens of the pack whose next token is to be sampled.
    """

    def __init__(
        self,
        cache: SlotCache,
        decode: Sequence[tuple[Slot, int]],
        prefill: Sequence[tuple[Slot, Sequence[int]]],
        logit_rows: Sequence[int],
        device: torch.device,
    ) -> None:
        self.cache = cache
        self.device = device
        tokens = [token for _, token in decode]
        positions = [len(slot.tokens) for slot, _ in decode]
        slots = [slot.index for slot, _ in decode]
        self.decode_slots = list(slots)
        self.decode_lengths = [position + 1 for position in positions]
        self.segments: list[Segment] = []
        for slot, chunk in prefill:
            start, past = len(tokens), len(slot.tokens)
            tokens.extend(chunk)
            positions.extend(range(past, past + len(chunk)))
            slots.extend([slot.index] * len(chunk))
            self.segments.append(Segment(start, len(tokens), slot.index, past))
        self.input_ids = torch.tensor(tokens, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.logit_rows = torch.tensor(logit_rows, device=device)
        self._slots_N = torch.tensor(slots, device=device)
        self._rows: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        if decode:
            self._plan_decode()

    def _plan_decode(self) -> None:
        """Attend over a range of whole slots where most of that is needed, else over a copy of what is."""
        count, longest = len(self.decode_slots), max(self.decode_lengths)
        low, high = min(self.decode_slots), max(self.decode_slots) + 1
        self.gathered = (high - low) * self.cache.capacity > _COPY_COST * count * longest
        self.length = longest if self.gathered else self.cache.capacity
        self.range = slice(low, high)
        places = list(range(count)) if self.gathered else [slot - low for slot in self.decode_slots]
        self.spread = 0 if self.gathered or places == list(range(high - low)) else high - low
        """Rows of the queries once each stands at its slot's place; 0 where they do already."""
        self.places = torch.tensor(places, device=self.device)
        self.gather = torch.tensor(self.decode_slots, device=self.device)
        lengths = [1] * (self.spread or count)
        for place, length in zip(places, self.decode_lengths, strict=True):
            lengths[place] = length
        self.lengths_S = torch.tensor(lengths, device=self.device)

    def rows(self, kv_heads: int) -> Tensor:
        if kv_heads not in self._rows:
            self._rows[kv_heads] = self.cache.row_index(self._slots_N, self.positions, kv_heads)
        return self._rows[kv_heads]

    def decode_mask(self, dtype: torch.dtype, kv_heads: int, window: int | None) -> Tensor:
        """0 where a slot may be attended to and -inf elsewhere, [slots * kv heads, 1, length]."""
        key = (kv_heads, window)
        if key not in self._masks:
            at_T = torch.arange(self.length, device=self.device)
            hidden = at_T >= self.lengths_S[:, None]
            if window is not None:
                hidden |= at_T < self.lengths_S[:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=self.device).masked_fill_(hidden, float("-inf"))
            self._masks[key] = mask[:, None].expand(-1, kv_heads, -1).reshape(-1, 1, self.length)
        return self._masks[key]

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
        self.cache.write(layer, self.rows(k_NHD.shape[1]), k_NHD, v_NHD)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        count = len(self.decode_slots)
        parts = [self._decode(keys, values, q_NHD[:count], scale, window, softcap)] if count else []
        for segment in self.segments:
            q = q_NHD[segment.start : segment.end]
            parts.append(_prefill(keys, values, q, segment, scale, window, softcap))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(
        self, keys: Tensor, values: Tensor, q_BHD: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Two matrix products a slot and kv head; a single query is too little work for a fused kernel on a CPU."""
        _, heads, dim = q_BHD.shape
        kv_heads = keys.shape[1]
        if self.gathered:
            keys, values = keys[self.gather, :, : self.length], values[self.gather, :, : self.length]
        else:
            keys, values = keys[self.range], values[self.range]
        if self.spread:
            q_BHD = q_BHD.new_zeros((self.spread, heads, dim)).index_copy_(0, self.places, q_BHD)
        q_ZGD = q_BHD.reshape(-1, heads // kv_heads, dim)
        k_ZDT = keys.flatten(0, 1).transpose(1, 2)
        mask = self.decode_mask(q_ZGD.dtype, kv_heads, window)
        if softcap is None:
            scores = torch.baddbmm(mask, q_ZGD, k_ZDT, alpha=scale)
        else:
            scores = torch.tanh(torch.bmm(q_ZGD, k_ZDT) * (scale / softcap)) * softcap + mask
        out = torch.bmm(torch.softmax(scores, dim=-1), values.flatten(0, 1)).view(-1, heads, values.shape[-1])
        return out[self.places] if self.spread else out


def _prefill(
    keys: Tensor,
    values: Tensor,
    q_NHD: Tensor,
    segment: Segment,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Causal attention of one segment over its slot."""
    length = segment.past + len(q_NHD)
    k = keys[segment.slot, None, :, :length]
    v = values[segment.slot, None, :, :length]
    q = q_NHD.transpose(0, 1)[None]
    grouped = q.shape[1] != k.shape[1]
    whole = segment.past == 0 and (window is None or window >= length)
    if whole and softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return out[0].transpose(0, 1)
    at_T = torch.arange(length, device=q.device)
    behind = at_T[segment.past :, None] - at_T
    seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    if softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
        return out[0].transpose(0, 1)
    groups = q.shape[1] // k.shape[1]
    scores = torch.matmul(q, k.repeat_interleave(groups, 1).transpose(2, 3)) * scale
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v.repeat_interleave(groups, 1))[0].transpose(0, 1)
