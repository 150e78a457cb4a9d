"""Texts, policies and questions found in the episodes of one store; each episode is read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from astune.config.policies import DEFAULT_POLICY
from astune.runs import EpisodeFilter, EpisodeReader, EpisodeRow, message_text
from astune.schema import Episode, RunStoreError
from astune.viewer._answers import plain_text

_SEARCHES = 8
_QUESTIONS = 20_000
_CHARACTERS = 300


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
            while len(self._found) > _SEARCHES:
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


class PoliciesOfEpisodes:
    """Policies per episode of one store; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, float], frozenset[str]] = {}

    def of(self, reader: EpisodeReader, policies: Mapping[str, str]) -> dict[int, frozenset[str]]:
        """The policies that answered, by the episode's `seq`.

        Who has which target may change from episode to episode, so it stands in the episode itself.

        Args:
            policies: of each target.
        """
        recorded = reader.select("seq, created_at, episode_id", EpisodeFilter())
        with self._lock:
            known = self._known
            self._known = {
                (seq, at): known[seq, at] if (seq, at) in known else _policies_in(reader, episode_id, policies)
                for seq, at, episode_id in recorded
            }
            return {seq: found for (seq, _), found in self._known.items()}


def _policies_in(reader: EpisodeReader, episode_id: str, policies: Mapping[str, str]) -> frozenset[str]:
    try:
        episode = reader.read(episode_id)
    except RunStoreError:  # a damaged one, of which its own page says so
        return frozenset()
    agents = {node.agent for node in episode.forest.nodes if node.sampled}
    return frozenset(policies.get(episode.target_of(agent), DEFAULT_POLICY) for agent in agents)


class Questions:
    """Queries of episodes, for the rows of lists; thread-safe."""

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
            while len(self._known) > _QUESTIONS:
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
