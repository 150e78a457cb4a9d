"""Request for an episode: the task, the position in the run, and the attempt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from astune.schema import Episode, EpisodeStatus, Forest, Split, Task


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """An attempt at one of the K episodes of a task; `attempt` counts from 1.

    `lost` earlier attempts were lost with their machines.
    """

    task: Task
    split: Split
    step: int
    repeat: int
    temperature: float
    attempt: int = 1
    lost: int = 0

    @property
    def episode_id(self) -> str:
        """Episode id, also the name of the engine session; unique within a run."""
        return f"{self.split}-{self.step:06d}-{self.task.task_id}-{self.repeat:03d}-{self.attempt}"

    def retried(self, *, lost: bool) -> EpisodeRequest:
        return replace(self, attempt=self.attempt + 1, lost=self.lost + lost)

    def episode(self, *, seed: int, forest: Forest, status: EpisodeStatus, error: str | None = None) -> Episode:
        return Episode(
            episode_id=self.episode_id,
            task=self.task,
            split=self.split,
            step=self.step,
            repeat=self.repeat,
            attempt=self.attempt,
            seed=seed,
            forest=forest,
            status=status,
            error=error,
        )
