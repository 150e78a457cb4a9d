"""Several judges as one: the sum of their rewards by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from astune.config.schema import AstuneConfig
from astune.helper_model import Usage
from astune.schema import JudgeError, Reward, call_user_code, gathered
from astune.task_judge.calibration import Calibration
from astune.task_judge.judge_base import GroupJudgeBase, JudgeBase, Verdict, reward_of
from astune.task_judge.judged import Inputs, task_of


@dataclass(frozen=True, slots=True)
class Part:
    """A judge of several; with a calibration, its reward is the calibrated value."""

    judge: JudgeBase
    weight: float = 1.0
    calibration: Calibration | None = None

    def reward(self, verdict: Verdict, inputs: Inputs) -> Reward:
        reward = self._own(verdict, inputs)
        if self.calibration is None:
            return reward
        worth = self.calibration.worth(reward.raw_reward, task_of(inputs))
        metadata = reward.metadata | {"uncalibrated": reward.raw_reward}
        return reward.model_copy(update={"raw_reward": worth, "metadata": metadata})

    def _own(self, verdict: Verdict, inputs: Inputs) -> Reward:
        name = type(self.judge).__name__
        reward = reward_of(verdict, f"judge {name} on task {task_of(inputs).task_id}")
        if reward.per_target is not None or reward.per_turn is not None:
            raise JudgeError(
                f"{name} rewards targets or turns, which cannot be added to another judge's reward",
                hint="make it the only judge of task_judge.judge_protocol",
            )
        return reward


class WeightedJudges(JudgeBase):
    """The weighted sum of its judges' rewards; the first judge decides on success.

    The reward's metadata and metrics have each judge's own reward, under its class's name.
    """

    def __init__(self, config: AstuneConfig, parts: Sequence[Part]) -> None:
        super().__init__(config)
        self._parts = parts

    async def compute_reward(self, judge_input_dictionary: Inputs) -> Reward:
        inputs = judge_input_dictionary
        return _sum([(part, part.reward(await _asked(part.judge, inputs), inputs)) for part in self._parts])


class WeightedGroupJudges(GroupJudgeBase):
    """`WeightedJudges` of which one or several judge groups; those that ask an environment cannot be among them."""

    def __init__(self, config: AstuneConfig, parts: Sequence[Part]) -> None:
        super().__init__(config)
        self._parts = parts

    async def compute_rewards(self, judge_input_dictionaries: list[Inputs]) -> list[Reward]:
        verdicts = [await self._rewards(part.judge, judge_input_dictionaries) for part in self._parts]
        return [
            _sum([(part, part.reward(own[i], inputs)) for part, own in zip(self._parts, verdicts, strict=True)])
            for i, inputs in enumerate(judge_input_dictionaries)
        ]

    async def _rewards(self, judge: JudgeBase, inputs: list[Inputs]) -> Sequence[Verdict]:
        if not isinstance(judge, GroupJudgeBase):
            return await gathered(*(_asked(judge, each) for each in inputs))
        rewards = await judge.rewards_of(inputs)
        if len(rewards) != len(inputs):
            raise JudgeError(f"{type(judge).__name__} gave {len(rewards)} rewards to {len(inputs)} episodes")
        return rewards


async def _asked(judge: JudgeBase, inputs: Inputs) -> Verdict:
    return await call_user_code(judge.compute_reward, inputs, name=f"astune-judge {type(judge).__name__}")


def _sum(judged: Sequence[tuple[Part, Reward]]) -> Reward:
    metrics: dict[str, float] = _together([reward.metrics for _, reward in judged])
    metadata: dict[str, Any] = {}
    for name, (_, reward) in zip(_names([part.judge for part, _ in judged]), judged, strict=True):
        metrics[f"reward_{name}"] = reward.raw_reward
        metadata[name] = {"reward": reward.raw_reward} | reward.metadata
    return Reward(
        raw_reward=sum(part.weight * reward.raw_reward for part, reward in judged),
        is_success=judged[0][1].is_success,
        metadata=metadata,
        metrics=metrics,
    )


def _names(judges: Sequence[JudgeBase]) -> list[str]:
    """The name of each judge's class, numbered from the second one of a class on: LlmJudge, LlmJudge_2."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for judge in judges:
        name = type(judge).__name__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _together(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sum the usage of helper models; other numbers are the mean of the judges that have them."""
    values: dict[str, list[float]] = {}
    for name, value in (item for each in metrics for item in each.items()):
        values.setdefault(name, []).append(value)
    return {name: sum(each) if name in Usage().metrics() else fmean(each) for name, each in values.items()}
