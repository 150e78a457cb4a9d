"""Interface of a judge. Calling one, and handling its result, is `astune.rollout.verdict`'s business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeAlias

from astune.config.schema import AstuneConfig
from astune.schema import Reward

Verdict: TypeAlias = tuple[float, bool] | Reward
"""(raw_reward, is_success), or a Reward."""


class JudgeBase(ABC):
    """One instance judges every episode of a run, several at once.

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
        ordinary one does not), `task_core_arg` (with `.task.metadata`), `grouped_steps` (every timeline as a list of
        messages), and whatever the workflow registered, `final_answer` among it. A judge that cannot tell raises; it
        does not return 0.
        """
