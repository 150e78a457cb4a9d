"""When a run ends because no episode of it ever finishes."""

from __future__ import annotations

from collections.abc import Sequence

from astune.schema import EpisodeGroup, TrainerError

_BEFORE_GIVING_UP = 3
"""Consecutive empty steps allowed: an outage passes, a defect stays."""


class EmptySteps:
    """Counts steps and measurements of which no episode finished, one after the other."""

    def __init__(self) -> None:
        self._empty = 0

    def look_at(self, groups: Sequence[EpisodeGroup], *, at_start: bool) -> None:
        """Raises TrainerError, with the first failure's own words, at the start of a run or after some empty ones."""
        if any(group.episodes for group in groups):
            self._empty = 0
            return
        self._empty += 1
        if at_start or self._empty >= _BEFORE_GIVING_UP:
            first = next((episode.error for group in groups for episode in group.failed_attempts), "there was none")
            raise TrainerError(f"no episode finished; the first failure: {first}")
