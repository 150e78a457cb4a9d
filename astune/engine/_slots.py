"""The key-value cache: one slot a sequence, all slots of one length, kept within a memory budget.

A slot remembers which tokens its keys and values belong to. That is all the prefix sharing there is:
a new prompt takes over or copies the slot that begins with the most of its tokens. The cache knows
nothing of requests or sampling.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_CAPACITY_STEP = 256
"""Slots are as long as the longest reservation, rounded up to this, so that they seldom have to grow."""
_FIRST_SLOTS = 8
"""Slots doubled from here as they are needed, so that a short chat does not touch the whole budget."""


class LayerShape(NamedTuple):
    """What one layer keeps of one token."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(slots=True)
class Slot:
    """One sequence's place in the cache. `tokens` are those whose keys and values are present."""

    index: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    session: str = ""
    busy: bool = False
    last_used: int = 0


class SlotCache:
    """Keys and values [slots, kv heads, capacity, head dim] of every layer.

    The buffers begin as zeros and only ever hold finite numbers, so that positions behind a sequence's end
    contribute exactly nothing once they are masked.
    """

    def __init__(
        self, shapes: list[LayerShape], *, dtype: torch.dtype, device: torch.device, budget_bytes: int, max_slots: int
    ) -> None:
        self._shapes = shapes
        self._dtype = dtype
        self._device = device
        self._max_slots = max_slots
        self.token_bytes = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize
        self.max_tokens = budget_bytes // self.token_bytes
        """Tokens of all slots together."""
        self._clock = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything, and give the memory back."""
        self.capacity = 0
        self.slots: list[Slot] = []
        self.keys = [torch.empty(0) for _ in self._shapes]
        self.values = [torch.empty(0) for _ in self._shapes]

    def longest_prefix(self, prompt: np.ndarray) -> tuple[Slot | None, int]:
        """The slot that shares the most leading tokens with the prompt, and how many; idle ones first."""
        best, length = None, 0
        for slot in self.slots:
            shared = common_prefix(prompt, as_tokens(slot.tokens)) if slot.tokens else 0
            if shared > length or (shared == length and best is not None and best.busy and not slot.busy):
                best, length = slot, shared
        return (best, length) if length else (None, 0)

    def take(
        self, source: Slot | None, shared: int, *, total: int, session: str, open_sessions: set[str]
    ) -> Slot | None:
        """A busy slot that begins with `source`'s first `shared` tokens and has room for `total`; None: wait.

        The source itself is taken where the prompt continues all that it holds; otherwise its beginning is copied, so
        that other agents of the episode and other episodes of the group can go on from it.
        """
        if not self._make_room(total, source):
            return None
        if source is not None and not source.busy and shared == len(source.tokens):
            slot = source
        else:
            slot = self._free_slot(source, open_sessions)
            if slot is None:
                return None
            if slot is not source and source is not None:
                self._copy(source.index, slot.index, shared)
                self._touch(source)
                slot.tokens = source.tokens[:shared]
            else:
                slot.tokens = slot.tokens[:shared] if slot is source else array("q")
        slot.busy, slot.session = True, session
        self._touch(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """The sequence is done for now; its tokens stay until the place is needed."""
        slot.busy = False
        self._touch(slot)

    def clear(self, slot: Slot) -> None:
        """Take numbers that are not finite out of the buffers, where they would reach other sequences."""
        for buffer in (*self.keys, *self.values):
            buffer[slot.index].zero_()
        slot.tokens = array("q")

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _make_room(self, total: int, source: Slot | None) -> bool:
        """Lengthen the slots to `total` tokens, dropping idle ones that no longer fit the budget."""
        if total <= self.capacity:
            return True
        capacity = min(-(-total // _CAPACITY_STEP) * _CAPACITY_STEP, self.max_tokens)
        limit = self._slot_limit(capacity)
        busy = [slot for slot in self.slots if slot.busy]
        if len(busy) >= limit:
            return False
        idle = [slot for slot in self.slots if slot.tokens and not slot.busy]
        idle.sort(key=lambda slot: (slot is source, slot.last_used), reverse=True)
        kept = busy + idle[: limit - len(busy)]
        self._resize(kept, max(len(kept), min(_FIRST_SLOTS, limit)), capacity)
        return True

    def _slot_limit(self, capacity: int) -> int:
        return min(self._max_slots, self.max_tokens // capacity)

    def _free_slot(self, source: Slot | None, open_sessions: set[str]) -> Slot | None:
        """An empty slot, else a new one, else the longest unused one; those of open sessions go last."""
        idle = [slot for slot in self.slots if not slot.busy]
        empty = next((slot for slot in idle if not slot.tokens), None)
        if empty is not None:
            return empty
        closed = [slot for slot in idle if slot.session not in open_sessions and slot is not source]
        limit = self._slot_limit(self.capacity)
        if len(self.slots) < limit and (len(self.slots) < limit // 2 or not closed):
            count = len(self.slots)
            self._resize(self.slots, min(2 * count, limit), self.capacity)
            return self.slots[count]
        candidates = closed or [slot for slot in idle if slot is not source] or idle
        return min(candidates, key=lambda slot: slot.last_used, default=None)

    def _resize(self, kept: list[Slot], count: int, capacity: int) -> None:
        """Move the kept slots to the front of new buffers, one layer at a time."""
        index = torch.tensor([slot.index for slot in kept], dtype=torch.long, device=self._device)
        used = max((len(slot.tokens) for slot in kept), default=0)
        for layer, (kv_heads, key_dim, value_dim) in enumerate(self._shapes):
            for buffers, dim in ((self.keys, key_dim), (self.values, value_dim)):
                new = torch.zeros((count, kv_heads, capacity, dim), dtype=self._dtype, device=self._device)
                if kept:
                    new[: len(kept), :, :used] = buffers[layer][index, :, :used]
                buffers[layer] = new
        for position, slot in enumerate(kept):
            slot.index = position
        self.slots = kept + [Slot(position) for position in range(len(kept), count)]
        self.capacity = capacity

    def _copy(self, source: int, target: int, length: int) -> None:
        for buffers in (self.keys, self.values):
            for buffer in buffers:
                buffer[target, :, :length] = buffer[source, :, :length]

    def write(self, layer: int, rows: Tensor, k_NHD: Tensor, v_NHD: Tensor) -> None:
        """Store the new tokens' keys and values; `rows` [N * kv heads] are from `row_index`."""
        for buffer, new in ((self.keys[layer], k_NHD), (self.values[layer], v_NHD)):
            dim = buffer.shape[-1]
            buffer.view(-1, dim).index_copy_(0, rows, new.reshape(-1, dim))

    def row_index(self, slots_N: Tensor, positions_N: Tensor, kv_heads: int) -> Tensor:
        """Row of every new (token, kv head) in a buffer flattened to [slots * kv heads * capacity, head dim]."""
        heads = torch.arange(kv_heads, device=self._device)
        return ((slots_N[:, None] * kv_heads + heads) * self.capacity + positions_N[:, None]).reshape(-1)


def as_tokens(tokens: array[int]) -> np.ndarray:
    return np.frombuffer(tokens, dtype=np.int64)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens the two have in common."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
