"""Policies that answered in each episode of a run that trains several; each episode is read once."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from astune.config.policies import DEFAULT_POLICY
from astune.runs import EpisodeFilter, EpisodeReader
from astune.schema import RunStoreError


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
