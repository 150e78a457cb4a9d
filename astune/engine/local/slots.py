"""The key-value cache: one slot a sequence, all of one length, within a memory budget.

Compiled kernels read a slot in place, as far as it is filled, and memory is taken by what is written: there, each slot
has an equal share of the budget from the beginning, and all become longer when one needs more. Elsewhere slots are as
long as the longest one needs now, because matrix products over unused columns would have to copy the used part first
(measured: half the time of a decoding step).

A slot remembers which tokens its keys and values belong to. A new prompt takes over the slot that begins with the most
of its tokens, or shares that beginning: compiled kernels read it in place, once for a whole group; elsewhere it is
copied. The cache knows nothing of requests or sampling.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from astune.engine.local.allocator import zeros

_log = logging.getLogger(__name__)

PIECE_TOKENS = 64
"""A batch-invariant engine computes prompts in pieces that begin at multiples of this, and keeps whole ones."""
_CAPACITY_STEP = 64
"""Slots grow in steps of this many tokens: seldom enough to cost nothing, often enough to compute little padding."""
_FIRST_SLOTS = 8
"""Places that are added where each takes memory, this many at least or a quarter more: a short chat does not touch the
whole budget."""
_LEAST_SHARED = 64
"""Tokens of a beginning that is shared; a shorter one is copied."""


class LayerShape(NamedTuple):
    """Cached state of one token in one layer."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(slots=True)
class Slot:
    """A sequence's place in the cache. `tokens` are those whose keys and values are present."""

    index: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    session: str = ""
    busy: bool = False
    total: int = 0
    """Tokens that the running request may still grow to; room for them is set aside."""
    last_used: int = 0
    policy: str = ""
    """Policy of the keys and values; those of another policy differ."""
    reusable: int | None = None
    """Leading tokens that other requests may take over, and that stay when this one is done; None: all."""
    prefix: Slot | None = None
    """The slot whose buffers hold the first `shared` tokens; it has none itself."""
    shared: int = 0


class SlotCache:
    """Keys and values [slots, kv heads, capacity, head dim] of every layer.

    The buffers begin as zeros and only ever hold finite numbers, so that positions behind a sequence's end
    contribute exactly nothing once they are masked.
    """

    def __init__(
        self,
        shapes: list[LayerShape],
        *,
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int,
        max_slots: int,
        shares: bool = False,
    ) -> None:
        """`shares`: slots are read in place, and with them the beginnings that they share with others."""
        self._shapes = shapes
        self._shares = shares
        self._dtype = dtype
        self._device = device
        self._max_slots = max_slots
        self.token_bytes = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize
        self.max_tokens = budget_bytes // self.token_bytes
        """Tokens of all slots together."""
        self._clock = 0
        self._forgotten = 0
        """Tokens of open sessions whose place was needed, and which are computed again; -1 after the warning."""
        self.reset()

    def reset(self) -> None:
        """Forget everything, and give the memory back."""
        self.capacity = 0
        self.slots: list[Slot] = []
        self._places = 0
        """Slots that the buffers have room for."""
        self.keys = [torch.empty(0) for _ in self._shapes]
        self.values = [torch.empty(0) for _ in self._shapes]

    def take(
        self,
        source: Slot | None,
        shared: int,
        *,
        total: int,
        session: str,
        open_sessions: set[str],
        policy: str = "",
        reusable: int | None = None,
    ) -> Slot | None:
        """A busy slot that begins with `source`'s first `shared` tokens and has room for `total`; None: wait.

        The source itself is taken where the prompt continues all that it holds; otherwise its beginning is copied, so
        that other agents of the episode and other episodes of the group can go on from it.
        """
        busy = [slot for slot in self.slots if slot.busy]
        longest = max([total, *(slot.total for slot in busy)])
        if (len(busy) + 1) * self._rounded(longest) > self.max_tokens or len(busy) == self._max_slots:
            return None
        if not self.slots:
            share = self.max_tokens // self._max_slots // _CAPACITY_STEP * _CAPACITY_STEP
            capacity = self._rounded(share if self._shares else 1)
            self._resize([], self._room_for(_FIRST_SLOTS, capacity), capacity)
        if source is not None and not source.busy and shared == len(source.tokens):
            slot = source
        else:
            slot = self._free_slot(source, open_sessions)
            self._leave_alone(slot)
            if slot is source:
                slot.tokens = slot.tokens[:shared]
                slot.shared = min(slot.shared, shared)
            else:
                slot.tokens, slot.prefix, slot.shared = array("q"), None, 0
                if source is not None:
                    self._begin_with(slot, source, shared)
                    self._touch(source)
        slot.busy, slot.session, slot.total, slot.reusable = True, session, total, reusable
        slot.policy = policy
        self._touch(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """The sequence is done for now; its tokens stay until the place is needed."""
        slot.busy = False
        if slot.reusable is not None:
            slot.tokens = slot.tokens[: slot.reusable]
        self._touch(slot)

    def clear(self, slot: Slot) -> None:
        """Take numbers that are not finite out of the buffers, where they would reach other sequences."""
        self._leave_alone(slot)
        for buffer in (*self.keys, *self.values):
            buffer[slot.index, :, slot.shared : len(slot.tokens)].zero_()
        slot.tokens, slot.prefix, slot.shared = array("q"), None, 0

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def grow(self, length: int) -> None:
        """Make every slot hold `length` tokens; the longest unused idle ones go where memory would not suffice."""
        if length <= self.capacity:
            return
        capacity = self._rounded(length)
        if self._shares:  # a quarter more, as far as it may become so long and no other has to go for it
            longest = max((slot.total for slot in self.slots if slot.busy), default=length)
            room = self.max_tokens // len(self.slots) // _CAPACITY_STEP * _CAPACITY_STEP
            capacity = max(capacity, min(self._rounded(min(longest, length + length // 4)), room))
        limit = self._slot_limit(capacity)
        by_use = sorted(self.slots, key=lambda slot: (slot.busy, slot.last_used), reverse=True)
        for slot in by_use[limit:]:
            self._leave_alone(slot)
        kept = by_use[:limit] if len(by_use) > limit else self.slots
        self._resize(kept, self._room_for(self._places, capacity), capacity)

    def _room_for(self, places: int, capacity: int) -> int:
        """Count the places that buffers get: all that there can be, where those that nobody uses take no memory."""
        limit = self._slot_limit(capacity)
        return limit if self._shares else min(places, limit)

    def _slot_limit(self, capacity: int) -> int:
        return min(self._max_slots, self.max_tokens // capacity)

    def _rounded(self, length: int) -> int:
        return max(1, min(-(-length // _CAPACITY_STEP) * _CAPACITY_STEP, self.max_tokens))

    def _free_slot(self, source: Slot | None, open_sessions: set[str]) -> Slot:
        """An empty slot, else a new one, else the longest unused one; those of open sessions go last."""
        idle = [slot for slot in self.slots if not slot.busy]
        empty = next((slot for slot in idle if not slot.tokens), None)
        if empty is not None:
            return empty
        closed = [slot for slot in idle if slot.session not in open_sessions and slot is not source]
        count, limit = len(self.slots), self._slot_limit(self.capacity)
        if not idle and count >= limit:  # a long sequence of the past left the slots longer than those that run need
            capacity = self._rounded(max(len(slot.tokens) for slot in self.slots))
            self._resize(self.slots, self._room_for(count, capacity), capacity)
            limit = self._slot_limit(self.capacity)
        least = _FIRST_SLOTS if self._shares else self._places
        if count < limit and (count < max(limit // 2, least) or not closed):
            if count == self._places:
                places = self._room_for(count + max(_FIRST_SLOTS, count // 4), self.capacity)
                self._resize(self.slots, places, self.capacity)
            self.slots.append(Slot(count))
            return self.slots[count]
        read = {id(slot.prefix) for slot in self.slots}
        closed = [slot for slot in closed if id(slot) not in read] or closed
        candidates = closed or [slot for slot in idle if slot is not source] or idle
        forgotten = min(candidates, key=lambda slot: slot.last_used)
        if not closed:
            self._count_forgotten(len(forgotten.tokens))
        return forgotten

    def _count_forgotten(self, n_tokens: int) -> None:
        """Warn once if the cache is too small for what runs: conversations then displace each other at every turn."""
        if self._forgotten < 0:
            return
        self._forgotten += n_tokens
        if self._forgotten > 2 * self.max_tokens:
            self._forgotten = -1
            _log.warning(
                f"the KV cache holds {self.max_tokens:,} tokens in up to {self._max_slots} conversations, too few for "
                "those that run at once: they displace each other and are computed again. Raise engine.kv_cache_gb (on "
                "a CPU only what is used takes memory), or lower rollout.max_env_worker"
            )

    def _begin_with(self, slot: Slot, source: Slot, shared: int) -> None:
        """Let an empty slot begin with the first `shared` tokens of another one."""
        slot.tokens = source.tokens[:shared]
        own = 0
        if self._shares and shared >= _LEAST_SHARED:
            if source.prefix is not None and 2 * source.shared < shared:  # most of it is the source's own
                self._take_copy(source)
            slot.prefix = source.prefix or source
            slot.shared = own = min(source.shared, shared) if source.prefix is not None else shared
        elif source.prefix is not None:
            self._copy(source.prefix.index, slot.index, 0, min(source.shared, shared))
            own = min(source.shared, shared)
        self._copy(source.index, slot.index, own, shared)

    def _take_copy(self, slot: Slot) -> None:
        """Have a slot hold all of its tokens itself."""
        if slot.prefix is not None:
            self._copy(slot.prefix.index, slot.index, 0, slot.shared)
        slot.prefix, slot.shared = None, 0

    def _leave_alone(self, slot: Slot) -> None:
        """Have nobody else read from a slot whose numbers are about to change."""
        for other in self.slots:
            if other.prefix is slot:
                self._take_copy(other)

    def _resize(self, kept: list[Slot], places: int, capacity: int) -> None:
        """Move the kept slots to the front of new buffers, one layer at a time, and only what they hold themselves."""
        held = [(place, slot.index, slot.shared, len(slot.tokens)) for place, slot in enumerate(kept)]
        for layer, (kv_heads, key_dim, value_dim) in enumerate(self._shapes):
            for buffers, dim in ((self.keys, key_dim), (self.values, value_dim)):
                new = zeros((places, kv_heads, capacity, dim), self._dtype, self._device)
                for place, index, first, end in held:
                    new[place, :, first:end] = buffers[layer][index, :, first:end]
                buffers[layer] = new
        for position, slot in enumerate(kept):
            slot.index = position
        self.slots = list(kept)
        self._places = places
        self.capacity = capacity

    def _copy(self, source: int, target: int, first: int, end: int) -> None:
        if first < end:
            for buffers in (self.keys, self.values):
                for buffer in buffers:
                    buffer[target, :, first:end] = buffer[source, :, first:end]

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
    """Count the leading tokens that the two have in common."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length
