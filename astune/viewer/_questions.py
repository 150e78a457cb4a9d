"""Queries of episodes, for the rows of lists: each episode is read once for it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from astune.runs import EpisodeReader, EpisodeRow, message_text
from astune.schema import Episode, RunStoreError
from astune.viewer._answers import plain_text

_REMEMBERED = 20_000
_CHARACTERS = 300


class Questions:
    """Safe to ask from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, float], str] = OrderedDict()

    def of(self, reader: EpisodeReader, row: EpisodeRow) -> str:
        """The question; empty if the episode cannot be read, which is reported when it is opened."""
        key = row.episode_id, row.created_at
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        try:
            found = _line(reader.main_query(row.episode_id)) or question_of(reader.read(row.episode_id))
        except RunStoreError:
            return ""
        with self._lock:
            self._known[key] = found
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found


def question_of(episode: Episode) -> str:
    """The task's query, or the last message to the model before it first answered; on one line, cut."""
    text = episode.task.main_query
    if not text:
        nodes = episode.forest.nodes
        answer = next((node for node in nodes if node.sampled), None)
        path = episode.forest.path(answer.node_id)[:-1] if answer is not None else nodes
        asked = [node for node in path if node.role == "user"]
        text = message_text(asked[-1].content, []) if asked else ""
    return _line(text)


def _line(text: str) -> str:
    return plain_text(" ".join(text[: 4 * _CHARACTERS].split())[:_CHARACTERS])
