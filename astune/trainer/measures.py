"""Metrics of a step: its episodes, its engine and its clock, as flat `group/name` numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

from astune.engine.base import EngineStats
from astune.runs.held_out import SUCCESS, UNFINISHED
from astune.schema import EpisodeGroup


def episode_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Means over the finished episodes; rates are parts of 1.

    An episode that the judge counts as a success is one, also where it was truncated. A workflow's own metrics
    are `episodes/<name>_mean`, and a target's rewards `reward/target_<tag>_mean`, each over the episodes that have it.
    Without a finished episode there is no mean, and only the counts are there.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    counts = {
        "episodes/finished": float(len(episodes)),
        "episodes/failed_attempts": float(sum(len(group.failed_attempts) for group in groups)),
        "groups/used": float(sum(group.dropped is None for group in groups)),
        "groups/dropped": float(sum(group.dropped is not None for group in groups)),
    }
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    if not rewards:
        return counts
    means: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            means.setdefault(f"episodes/{name}_mean", []).append(value)
    for reward in rewards:
        for target, value in (reward.per_target or {}).items():
            means.setdefault(f"reward/target_{target}_mean", []).append(value)
    calls = [sum(node.sampled for node in episode.forest.nodes) for episode in episodes]
    return (
        counts
        | {name: _mean(values) for name, values in means.items()}
        | {
            "reward/mean": fmean(reward.raw_reward for reward in rewards),
            "reward/success_rate": fmean(reward.is_success for reward in rewards),
            "episodes/truncated_rate": fmean(episode.status == "truncated" for episode in episodes),
            "episodes/turns_mean": fmean(calls),
            "episodes/sampled_tokens_mean": fmean(episode.forest.sampled_tokens() for episode in episodes),
        }
    )


def _mean(values: Sequence[float]) -> float:
    """Average numbers that an agent chose, whose sum may overflow or be undefined."""
    try:
        return fmean(values)
    except (OverflowError, ValueError):
        return sum(value / len(values) for value in values)


def of_all(measures: Mapping[str, float], expected: int) -> dict[str, float]:
    """The part of `expected` episodes that succeeded, and how many of them did not finish.

        55 of 150 that finished, 55 of 180; 200 expected   ->   0.275 both, to the last bit

    What was not measured counts as failed, so that an outage neither ends a run nor chooses its best model.
    """
    finished = measures["episodes/finished"]
    return {
        SUCCESS: round(measures.get("reward/success_rate", 0.0) * finished) / max(1, expected),
        UNFINISHED: expected - finished,
    }


def engine_metrics(counted: EngineStats, seconds: float) -> dict[str, float]:
    """Measure the engine by the difference of two readings of its counters, `seconds` apart."""
    prompt, sampled = counted.prompt_tokens, counted.sampled_tokens
    return {
        "engine/prompt_tokens": float(prompt),
        "engine/cached_rate": 1.0 - counted.prefilled_tokens / prompt if prompt else 0.0,
        "engine/sampled_tokens": float(sampled),
        "engine/tokens_per_s_in": prompt / seconds,
        "engine/tokens_per_s_out": sampled / seconds,
    }


class PhaseClock:
    """Seconds a phase since the last restart; reports which phase begins."""

    def __init__(self, on_phase: Callable[[str], None]) -> None:
        self._on_phase = on_phase
        self._seconds: dict[str, float] = {}

    def restart(self) -> None:
        self._seconds = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._on_phase(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each phase so far."""
        return dict(self._seconds)
