"""Signs that a reward is earned without doing the task, measured in each training step; a jump is a warning.

Each sign is a number of an episode, of the messages of its trained agents, and its mean over the step is a metric:
`watch/<name>`. Rises are compared with the run's first steps and with its last ones. Both hacks known from production
show here: tool calls broken to avoid a bad score, and needless questions in place of work.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from astune.schema import Episode, EpisodeGroup, MessageNode

PREFIX = "watch/"
_LENGTH = "reward_length_correlation"
_GRAM = 4
_FIRST, _LAST = 5, 10
"""Steps that a rise is compared with: the first of the run, and the last ones."""
_RISE = 0.2
"""A rise by less is no jump: shares of some tens of episodes waver by so much."""
_SHOWN = 3
_log = logging.getLogger(__name__)


def _repeated_text(episode: Episode) -> float | None:
    """The part of the sampled runs of four tokens that the agent had sampled before."""
    seen: set[tuple[int, ...]] = set()
    n = 0
    for node in episode.trained_messages:
        tokens = node.sampled_ids
        grams = [tuple(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1)]
        seen.update(grams)
        n += len(grams)
    return 1.0 - len(seen) / n if n else None


def _no_tool_call(episode: Episode) -> float | None:
    """1 where tools were offered and the agent tried none."""
    answers = _with_tools(episode)
    return float(not any(node.tool_calls or node.malformed_calls for node in answers)) if answers else None


def _broken_tool_call(episode: Episode) -> float | None:
    """1 where tools were offered and a call could not be read."""
    answers = _with_tools(episode)
    return float(any(node.malformed_calls for node in answers)) if answers else None


def _asks_back(episode: Episode) -> float | None:
    """1 where the last thing the agent wrote is a question."""
    written = [node for node in episode.trained_messages if isinstance(node.content, str) and node.content.strip()]
    return float(written[-1].content.rstrip().endswith(("?", "？"))) if written else None


SIGNS: dict[str, Callable[[Episode], float | None]] = {
    "repeated_text": _repeated_text,
    "no_tool_call": _no_tool_call,
    "broken_tool_call": _broken_tool_call,
    "asks_back": _asks_back,
    "judge_disagreement": lambda episode: episode.metrics.get("judge_disagreement"),  # of its votes, of its scale
}


class RewardWatch:
    """Remembers the signs of a run's training steps.

    Args:
        earlier: the metrics of the training steps before, in order, of a run that is resumed.
    """

    def __init__(self, earlier: Iterable[Mapping[str, float]] = ()) -> None:
        self._history: dict[str, list[float]] = {}
        self._warned: dict[str, int] = {}
        for metrics in earlier:
            self._remember({name: value for name, value in metrics.items() if name.startswith(PREFIX)})

    def look_at(self, step: int, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """The signs of a step as metrics; warns of those that jumped, with the episodes that show them most."""
        episodes = [episode for group in groups for episode in group.episodes if episode.reward is not None]
        values = {name: [(sign(episode), episode) for episode in episodes] for name, sign in SIGNS.items()}
        known = {name: [(v, e) for v, e in each if v is not None] for name, each in values.items()}
        lengths = [(_length(episode), episode) for episode in episodes]
        metrics = {f"{PREFIX}{name}": fmean(v for v, _ in each) for name, each in known.items() if each}
        if (correlation := _within_groups(groups)) is not None:
            metrics[f"{PREFIX}{_LENGTH}"] = correlation
        for name, value in metrics.items():
            if self._jumped(name, value, step):
                self._warn(name, value, step, known.get(name.removeprefix(PREFIX), lengths))
        self._remember(metrics)
        return metrics

    def _remember(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._history.setdefault(name, []).append(value)

    def _jumped(self, name: str, value: float, step: int) -> bool:
        history = self._history.get(name, [])
        return step - self._warned.get(name, -_LAST) >= _LAST and has_jumped(history, value)

    def _warn(self, name: str, value: float, step: int, episodes: Sequence[tuple[float, Episode]]) -> None:
        self._warned[name] = step
        most = sorted(episodes, key=lambda each: (each[0], each[1].raw_reward), reverse=True)[:_SHOWN]
        _log.warning(
            "step %d: %s rose to %.2f, from %.2f in the first steps. Look whether the reward is earned without doing "
            "the task, in episodes %s",
            step,
            name.removeprefix(PREFIX),
            value,
            fmean(self._history[name][:_FIRST]),
            ", ".join(episode.episode_id for _, episode in most),
        )


def has_jumped(history: Sequence[float], value: float) -> bool:
    """Whether a sign rose against the steps before, `history`: its first ones, or its last ones."""
    if len(history) < _FIRST:
        return False
    return any(value > fmean(steps) + max(_RISE, 3 * pstdev(steps)) for steps in (history[:_FIRST], history[-_LAST:]))


def _length(episode: Episode) -> float:
    return float(sum(node.n_sampled for node in episode.trained_messages))


def _with_tools(episode: Episode) -> list[MessageNode]:
    return [node for node in episode.trained_messages if episode.forest.path(node.node_id)[0].tools]


def _within_groups(groups: Sequence[EpisodeGroup]) -> float | None:
    """Pearson's correlation of reward and sampled tokens, both as differences to their group's mean: what is hard is
    long in all episodes of a group, and says nothing. None where one of them does not differ."""
    xs: list[float] = []
    ys: list[float] = []
    for group in groups:
        judged = [episode for episode in group.episodes if episode.reward is not None]
        if not judged:
            continue
        lengths = [_length(episode) for episode in judged]
        rewards = [episode.raw_reward for episode in judged]
        xs += [length - fmean(lengths) for length in lengths]
        ys += [reward - fmean(rewards) for reward in rewards]
    spread = math.sqrt(sum(x * x for x in xs) * sum(y * y for y in ys))
    return sum(x * y for x, y in zip(xs, ys, strict=True)) / spread if spread > 1e-9 else None
