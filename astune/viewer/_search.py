"""Full-text search with a cache: an episode is searched once for each text."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from astune.runs import EpisodeReader

_REMEMBERED = 8


@dataclass
class _Found:
    """`until` is the last episode that was looked through, as (seq, created_at)."""

    seqs: list[int] = field(default_factory=list[int])
    until: tuple[int, float] | None = None


class TextSearch:
    """The search in one store. Safe to ask from several threads; the same text is looked for once at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[threading.Lock, _Found]] = OrderedDict()

    def matching(self, reader: EpisodeReader, text: str) -> list[int]:
        """`seq` of every episode whose messages hold the text; only episodes that are new are read again."""
        with self._lock:
            lock, found = self._found.setdefault(text, (threading.Lock(), _Found()))
            self._found.move_to_end(text)
            while len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        with lock:
            last = reader.last()
            if found.until is not None and reader.recorded_at(found.until[0]) != found.until[1]:
                found.seqs, found.until = [], None  # a step was run again
            if last is not None and last != found.until:
                after = found.until[0] if found.until is not None else 0
                found.seqs += [seq for seq in reader.search(text, after=after) if seq <= last[0]]
                found.until = last
            return list(found.seqs)
