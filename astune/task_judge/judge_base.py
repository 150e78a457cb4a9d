"""Interface of a judge. `astune.rollout.verdict` calls it and handles its result."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from numbers import Number
from typing import Any, TypeAlias

from astune.config.schema import AstuneConfig
from astune.schema import JudgeError, Reward, call_user_code, shown_value

Verdict: TypeAlias = tuple[float, bool] | Reward
"""(raw_reward, is_success), or a Reward."""

LARGEST_REWARD = 1e6
"""Largest absolute reward; advantages of larger ones overflow in float32."""


class JudgeBase(ABC):
    """An instance judges every episode of a run, several at once.

        class LengthJudge(JudgeBase):
            def compute_reward(self, judge_input_dictionary):
                short = len(judge_input_dictionary["final_answer"]) < 100
                return float(short), short

    `self.config` is the whole resolved configuration.
    """

    def __init__(self, config: AstuneConfig) -> None:
        self.config = config

    @abstractmethod
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Verdict | Awaitable[Verdict]:
        """Judge one episode; an ordinary method runs in a thread.

        `judge_input_dictionary` holds `env` (the environment's handle, or None; an `async def` awaits its methods, an
        ordinary one does not), `task_core_arg` (with `.task.metadata`, and in `.answers` the messages that trained
        agents wrote), `grouped_steps` (every timeline as a list of messages, the one with the newest answer last), and
        whatever the workflow registered, `final_answer` among it. A judge that cannot tell raises; it does not return
        0.
        """


class GroupJudgeBase(JudgeBase):
    """Judges the episodes of a group together, when all of them have ended; one that ended alone is a group of one.

        class Shortest(GroupJudgeBase):
            def compute_rewards(self, judge_input_dictionaries):
                lengths = [len(each["final_answer"]) for each in judge_input_dictionaries]
                return [(float(length == min(lengths)), True) for length in lengths]

    `compute_rewards` may be `async`.
    """

    @abstractmethod
    def compute_rewards(
        self, judge_input_dictionaries: list[dict[str, Any]]
    ) -> Sequence[Verdict] | Awaitable[Sequence[Verdict]]:
        """Judge a group, one verdict for each episode, in their order.

        The dictionaries are those of `JudgeBase.compute_reward`; `env` is None, since their environments are closed,
        and of what the workflow registered they hold what JSON can express.
        """

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Verdict:
        [verdict] = await self.rewards_of([judge_input_dictionary])
        return verdict

    async def rewards_of(self, judge_input_dictionaries: list[dict[str, Any]]) -> Sequence[Verdict]:
        """`compute_rewards`, awaited; an ordinary method runs in a thread."""
        name = f"astune-judge {type(self).__name__}"
        return await call_user_code(self.compute_rewards, judge_input_dictionaries, name=name)


def reward_of(verdict: Any, what: str) -> Reward:
    """Return a verdict as a Reward. Raises JudgeError if it is not one; `what` names the judge and the task."""
    if isinstance(verdict, Reward):
        return verdict
    pair: Any = verdict if isinstance(verdict, tuple | list) and len(verdict) == 2 else (None, False)
    raw, success = pair
    try:
        number = float(raw)
        if isinstance(raw, str) or not math.isfinite(number):
            raise ValueError(raw)
        return Reward(raw_reward=number, is_success=_truth_of(success))
    except (TypeError, ValueError, OverflowError) as cause:
        raise JudgeError(
            f"{what} returned {shown_value(verdict)}",
            hint=f"return (raw_reward, is_success) or a Reward, with a number between -{LARGEST_REWARD:g} and "
            f"{LARGEST_REWARD:g} as raw_reward, and True or False as is_success",
        ) from cause


def _truth_of(success: Any) -> bool:
    """Return whether a judge's second value says success. Raises ValueError for what is true whatever it says."""
    is_score = isinstance(success, Number) and success not in (0, 1)
    if is_score or inspect.isawaitable(success) or (isinstance(success, str | bytes) and success):
        raise ValueError(success)
    return bool(success)
