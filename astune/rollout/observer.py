"""Observers of episodes, such as the run store and the live display."""

from __future__ import annotations

from typing import Protocol

from astune.schema import Episode, Task


class RolloutObserver(Protocol):
    """Callbacks on the event loop's thread; they return quickly. An exception in one ends the step."""

    def on_started(self, episode_id: str, task: Task) -> None:
        """An attempt at an episode begins."""

    def on_waits_for(self, episode_id: str, what: str) -> None:
        """The episode waits: for `environment`, `workflow`, `model` or `judge`."""

    def on_finished(self, episode: Episode) -> None:
        """The episode has a reward."""

    def on_attempt_failed(self, episode: Episode) -> None:
        """The attempt ended in an error, or was interrupted; `episode.error` is the reason."""


class NullObserver(RolloutObserver):
    """No-op."""
