"""The observer that records every episode and passes it on to the display."""

from __future__ import annotations

from astune.rollout import RolloutObserver
from astune.runs import EpisodeStore
from astune.schema import Episode, Task


class Recorder:
    """Observer that writes every attempt into the store as it ends, and forwards all events to `observer`."""

    def __init__(self, store: EpisodeStore, observer: RolloutObserver) -> None:
        self._store = store
        self._observer = observer

    def on_started(self, episode_id: str, task: Task) -> None:
        self._observer.on_started(episode_id, task)

    def on_waits_for(self, episode_id: str, what: str) -> None:
        self._observer.on_waits_for(episode_id, what)

    def on_finished(self, episode: Episode) -> None:
        self._store.append(episode)
        self._observer.on_finished(episode)

    def on_attempt_failed(self, episode: Episode) -> None:
        self._store.append(episode)
        self._observer.on_attempt_failed(episode)
