"""What a judge is. How one is asked, and what becomes of its answer, is `astune.rollout.verdict`'s business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeAlias

from astune.config.imports import import_class
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
    """

    def __init__(self, config: AstuneConfig) -> None:
        self.config = config

    @abstractmethod
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Verdict | Awaitable[Verdict]:
        """Judge one episode; an ordinary method runs in a thread.

        `judge_input_dictionary` holds `env` (the environment's handle, or None), `task_core_arg` (with
        `.task.metadata`), `grouped_steps` (every timeline as a list of messages), and whatever the workflow registered,
        `final_answer` among it. A judge that cannot tell raises; it does not return 0.
        """


def load_judge(config: AstuneConfig, *, base_dir: Path | None = None) -> JudgeBase | None:
    """The judge that `task_judge.judge_protocol` names; None where it names none."""
    reference = config.task_judge.judge_protocol
    if not reference:
        return None
    judge_class: Any = import_class(reference, key="task_judge.judge_protocol", base=JudgeBase, base_dir=base_dir)
    return judge_class(config)
