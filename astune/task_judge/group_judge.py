"""The judge that has a helper model compare the episodes of a group, as RULER does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import create_model

from astune.config.schema import AstuneConfig
from astune.helper_model import Form, HelperModel, data, metered
from astune.schema import Reward, stable_seed
from astune.task_judge.judge_base import GroupJudgeBase
from astune.task_judge.judged import Inputs, task_of
from astune.task_judge.llm_judge import Scale, Sees, asked, require_settings, shown


class _Place(Form):
    attempt: int
    reason: str
    score: float


class _Ranking(Form):
    places: list[_Place]


class GroupJudge(GroupJudgeBase):
    """Scores from 0 to 1 that a helper model gives to all episodes of a group together. A model ranks two answers more
    reliably than it rates one. What all attempts have in common, the task, is shown once. Attempts come in another
    order for each vote, so that none gains by its place; equal scores are a tie, and a group of equal ones teaches
    nothing.

    Args:
        criteria: what a good answer is, in words; empty asks how well it does what the task asks.
        scale, success, sees, votes: as `LlmJudge` has them; two votes by default, for the two orders.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        criteria: str = "",
        scale: Sequence[float] = (0, 10),
        success: float | None = None,
        sees: Sees = "conversation",
        votes: int = 2,
    ) -> None:
        super().__init__(config)
        require_settings(votes, sees)
        self._scale = Scale(scale, success)
        self._sees: Sees = sees
        self._votes = votes
        self._model = HelperModel(config.helper_model)
        place: Any = create_model("Place", __base__=_Place, score=(self._scale.score_type, ...))
        places: Any = list.__class_getitem__(place)
        self._form: type[_Ranking] = create_model("Ranking", __base__=_Ranking, places=(places, ...))
        self._instruction = self._model.prompts.get(
            "judge_group",
            criteria=criteria or self._model.prompts.get("judge_group_criteria"),
            lowest=f"{self._scale.lowest:g}",
            highest=f"{self._scale.highest:g}",
        )

    async def compute_rewards(self, judge_input_dictionaries: list[Inputs]) -> list[Reward]:
        n = len(judge_input_dictionaries)
        orders = _orders(n, self._votes, task_of(judge_input_dictionaries[0]).task_id)
        with metered() as usage:
            votes = await asyncio.gather(
                *(self._vote(judge_input_dictionaries, order, number) for number, order in enumerate(orders))
            )
        share, of_each = usage.shared_by(n), zip(*votes, strict=True)
        return [self._scale.reward([at.score for at in own], share, [at.reason for at in own]) for own in of_each]

    async def _vote(self, inputs: list[Inputs], order: list[int], number: int) -> list[_Place]:
        """A vote on the attempts, shown in `order`; the places by the attempts' own order."""
        attempts = [{"attempt": at + 1} | shown(inputs[i], self._sees) for at, i in enumerate(order)]
        question = data(**asked(inputs[0], self.config), attempts=attempts)
        ranking = await self._model.ask_json(
            self._instruction, question, self._form, number=number, check=_has_each_of(len(inputs))
        )
        placed = {order[place.attempt - 1]: place for place in ranking.places}
        return [placed[i] for i in range(len(inputs))]


def _orders(n: int, votes: int, task_id: str) -> list[list[int]]:
    """An order of n attempts for each vote: a shuffled one, its reverse, another shuffled one and so on."""
    shuffle = random.Random(stable_seed(0, task_id))
    orders: list[list[int]] = []
    while len(orders) < votes:
        order = shuffle.sample(range(n), n)
        orders += [order, order[::-1]]
    return orders[:votes]


def _has_each_of(n: int) -> Callable[[_Ranking], None]:
    """A check that a ranking places each of the attempts 1 to n once."""

    def check(ranking: _Ranking) -> None:
        if sorted(place.attempt for place in ranking.places) != list(range(1, n + 1)):
            raise ValueError(f"places must have each of the attempts 1 to {n} once")

    return check
