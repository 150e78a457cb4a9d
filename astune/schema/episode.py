"""An episode: one run of the workflow on one task, with its outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from astune.schema.forest import Forest, MessageNode
from astune.schema.grammar import ConstrainedTokens
from astune.schema.task import Task
from astune.schema.timeline import Timeline

if TYPE_CHECKING:
    from astune.schema.reward import Reward

EpisodeStatus = Literal["success", "failed", "truncated", "error"]
Split = Literal["train", "validation"]
Advantage = float | dict[int, float]
"""An episode's advantage: one number for all of its sampled tokens, or one per trained message by node id; NaN if it
has no reward."""


GIVEN_TOKENS = "demonstrated_tokens"
"""The metric of an episode whose answers were given."""


@dataclass
class Episode:
    """An attempt at a task. `status` is the judge's verdict (success, failed), truncated when the context or the turns
    ran out, or error when something other than the agent failed; only an error has no reward. `error` is the cause of
    an error, and of a truncation by the context.

    `timings` are seconds per phase: `wait`, `model`, `env`, `judge`, `total`.
    """

    episode_id: str
    """Id, unique within the run."""
    task: Task
    split: Split
    """`train` or `validation`."""
    step: int
    """Training step; of a measurement, the number of steps before it."""
    repeat: int
    """Index of the episode in its group, from 0."""
    attempt: int
    """Number of the attempt at this episode, from 1."""
    seed: int
    forest: Forest
    """Every message that the model read and wrote, with its tokens."""
    status: EpisodeStatus
    """`success`, `failed`, `truncated` or `error`."""
    reward: Reward | None = None
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of the workflow, the judge and the run, such as `cut_answers`."""
    timings: dict[str, float] = field(default_factory=dict)
    judge_inputs: dict[str, Any] = field(default_factory=dict)
    """Values that the workflow registered for the judge, as far as JSON can hold them; kept for the viewer and for
    rejudging."""
    targets: dict[str, str] = field(default_factory=dict)
    """Target tag of each agent whose tag differs from its name."""
    constrained_tokens: ConstrainedTokens = "replay"
    """Treatment, in its timelines, of tokens that were sampled under a grammar."""

    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """Sampled messages that are excluded from training, by node id, with the reason; not recorded."""

    @cached_property
    def timelines(self) -> list[Timeline]:
        """Timelines, flattened once; the forest of a finished episode does not change."""
        return self.forest.timelines(self.constrained_tokens, self.left_out)

    @property
    def given(self) -> bool:
        """Return whether its answers were given, as demonstrations are: no engine sampled them."""
        return GIVEN_TOKENS in self.metrics

    def leave_out(self, node_id: int, cause: str) -> None:
        """Exclude a sampled message from training; its tokens are masked with this reason."""
        self.left_out[node_id] = cause
        self.__dict__.pop("timelines", None)

    @property
    def n_trained(self) -> int:
        """Number of sampled tokens with loss if the episode is trained."""
        return self.forest.trained_tokens(self.constrained_tokens, self.left_out)

    @property
    def trained_messages(self) -> list[MessageNode]:
        """Messages of the trained agents, in the order in which they were asked for."""
        return self.forest.trained_answers()

    def target_of(self, agent: str) -> str:
        """The tag under which an agent is rewarded and trained."""
        return self.targets.get(agent, agent)

    @property
    def raw_reward(self) -> float:
        """Reward as a number; NaN for an episode in error, which is excluded from baselines."""
        return self.reward.raw_reward if self.reward is not None else float("nan")


@dataclass
class EpisodeGroup:
    """The K episodes of one task, over which the baseline is computed.

    `failed_attempts` are episodes in error that were retried or given up; their tokens are accounted for but never
    trained. `dropped` is the reason why the whole group is excluded from training; None if it is used.
    """

    task: Task
    episodes: list[Episode]
    failed_attempts: list[Episode] = field(default_factory=list)
    dropped: str | None = None

    @property
    def rewards(self) -> list[float]:
        return [episode.raw_reward for episode in self.episodes]


@dataclass
class TrainingBatch:
    """Input of one optimiser step: groups with the advantages of their episodes.

    `flat` are finished groups that are excluded from `groups` because all their advantages are zero: nothing of them is
    computed, and they count in the mean over groups.
    """

    step: int
    groups: list[EpisodeGroup]
    advantages: list[list[Advantage]]
    """[groups][episodes of the group]"""
    flat: list[EpisodeGroup] = field(default_factory=list[EpisodeGroup])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Sampled tokens of the groups that are excluded from training, by account."""
