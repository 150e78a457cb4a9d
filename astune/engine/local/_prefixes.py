"""Indices of sequences: the one that begins the most like a prompt, without comparing it with each of them.

Among sequences in sorted order, the one that shares the longest beginning with a prompt stands beside the prompt's own
place. Sequences of different policies are never compared.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Generic, TypeVar

from astune.engine.local.slots import Slot, as_tokens, common_prefix

Item = TypeVar("Item")
_Key = tuple[str, "array[int]"]


class PrefixIndex(Generic[Item]):
    """Items by the tokens of their sequence; several may have the same."""

    def __init__(self) -> None:
        self._keys: list[_Key] = []
        self._items: list[Item] = []

    def add(self, policy: str, tokens: array[int], item: Item) -> None:
        place = bisect_left(self._keys, (policy, tokens))
        self._keys.insert(place, (policy, tokens))
        self._items.insert(place, item)

    def remove(self, policy: str, tokens: array[int], item: Item) -> None:
        """Take out what was added with these arguments."""
        place = bisect_left(self._keys, (policy, tokens))
        while self._items[place] is not item:
            place += 1
        del self._keys[place], self._items[place]

    def longest(self, policy: str, prompt: array[int]) -> tuple[Item | None, int]:
        """The item that shares the most leading tokens with the prompt, and how many; one that has no others first."""
        place = bisect_left(self._keys, (policy, prompt))
        length = max(self._shared(neighbour, policy, prompt) for neighbour in (place - 1, place))
        if length == 0:
            return None, 0
        return self._items[bisect_left(self._keys, (policy, prompt[:length]))], length

    def _shared(self, place: int, policy: str, prompt: array[int]) -> int:
        if not 0 <= place < len(self._keys) or self._keys[place][0] != policy:
            return 0
        return common_prefix(as_tokens(prompt), as_tokens(self._keys[place][1]))


class SlotIndex:
    """Slots by the tokens that others may take over."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._indices: tuple[PrefixIndex[Slot], PrefixIndex[Slot]] = PrefixIndex(), PrefixIndex()
        """The first is of idle slots, the second of busy ones."""
        self._added: dict[int, tuple[bool, str, array[int]]] = {}
        for slot in slots:
            self.update(slot)

    def update(self, slot: Slot) -> None:
        """Have it found by what it holds now."""
        if id(slot) in self._added:
            busy, policy, tokens = self._added.pop(id(slot))
            self._indices[busy].remove(policy, tokens, slot)
        tokens = slot.tokens if slot.reusable is None else slot.tokens[: slot.reusable]
        if tokens:
            self._added[id(slot)] = slot.busy, slot.policy, tokens
            self._indices[slot.busy].add(slot.policy, tokens, slot)

    def longest(self, policy: str, prompt: array[int]) -> tuple[Slot | None, int]:
        """The slot that shares the most leading tokens with the policy's prompt, and how many; idle ones first."""
        return max((index.longest(policy, prompt) for index in self._indices), key=lambda found: found[1])
