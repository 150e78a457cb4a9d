"""Groups of episodes as Trinity's experiences, and the strategy that reads whole groups of them.

Trinity counts a batch in experiences, of which a group has as many as its episodes have timelines. A step of astune's
is a number of groups: each experience knows its group and how many belong to it, so the trainer's reader takes one,
and then those that follow it. A group that teaches nothing, or could not be completed, is one experience without
tokens to train, which is counted and does not reach the trainer's engine.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.buffer import get_buffer_reader
from trinity.common.experience import EID, CustomField, Experience

from astune.algorithm import TokenWeights
from astune.backbone.cluster.rows import BatchScale, Row
from astune.schema import TrainerError

_KEY, _WEIGHT = "astune", "token_weight"
_FIELDS = [CustomField(_WEIGHT, "token_weights", torch.float32)]
"""Additional inputs of the loss: each experience's token weights."""


def experiences_of(rows: Sequence[Row], *, uid: str) -> list[Experience]:
    """The rows of one group, with advantages weighted within it."""
    batch, _, task = uid.rpartition("/")
    return [
        Experience(
            eid=EID(batch=batch, task=task, run=number),
            tokens=torch.tensor(row.prompt_ids + row.response_ids, dtype=torch.int32),
            prompt_length=len(row.prompt_ids),
            logprobs=torch.tensor(row.logprobs, dtype=torch.float32),
            action_mask=torch.tensor(row.mask, dtype=torch.bool),
            advantages=torch.tensor(row.advantages, dtype=torch.float32),
            returns=torch.tensor(row.advantages, dtype=torch.float32),
            reward=0.0,
            info={
                _KEY: {"uid": uid, "of": len(rows), "dropped": row.dropped, "origin": row.origin()},
                _WEIGHT: row.token_weight,
            },
            custom_fields=_FIELDS,
        )
        for number, row in enumerate(rows)
    ]


def group_info(experience: Experience) -> dict[str, Any]:
    """An experience's group, how many belong to it, and where its tokens come from."""
    return experience.info[_KEY]


def teaches(experience: Experience) -> bool:
    return bool(group_info(experience)["origin"]["episode"])


def scaled(experiences: Sequence[Experience], scheme: TokenWeights, *, n_ranks: int) -> list[Experience]:
    """The experiences that teach, advantages and weights scaled to the batch, of which dropped groups are no part.

    Gradients are averaged over ranks, and law 4's loss is a sum: hence `n_ranks`. Experiences of no weight fill a
    batch up that ranks cannot share equally.
    """
    counted = [one for one in experiences if not group_info(one)["dropped"]]
    scale = BatchScale.count([(group_info(one)["uid"], int(one.action_mask.sum()), teaches(one)) for one in counted])
    teaching = [one for one in counted if teaches(one)]
    for one in teaching:
        one.advantages = one.returns = one.advantages * scale.share
        one.info[_WEIGHT] *= scale.of_weights(scheme) * n_ranks
    return [*teaching, *_filling(teaching, n_ranks)]


def _filling(teaching: Sequence[Experience], n_ranks: int) -> list[Experience]:
    if not teaching:
        return []
    shortest = min(teaching, key=lambda one: len(one.tokens))
    filling: list[Experience] = []
    for number in range(-len(teaching) % n_ranks):
        one = copy(shortest)
        one.eid, one.info = EID(batch="filling", task=number), {_KEY: {"uid": ""}, _WEIGHT: 0.0}
        filling.append(one)
    return filling


class WholeGroups(SampleStrategy):
    """Reads the groups of one step.

    Args:
        groups: how many.
    """

    def __init__(self, buffer_config: Any, *, groups: int) -> None:
        super().__init__(buffer_config)
        self._reader = get_buffer_reader(buffer_config.trainer_input.experience_buffer)
        self._groups = groups

    async def sample(self, step: int, **_: Any) -> tuple[list[Experience], dict[str, float], list[Any]]:
        began = time.perf_counter()
        batch: list[Experience] = []
        for _number in range(self._groups):
            [first] = await self._reader.read(batch_size=1)
            if (uid := str(group_info(first)["uid"])).partition("/")[0] != str(step):
                raise TrainerError(
                    f"Trinity's trainer was given the group {uid} in step {step}: one of that step was lost",
                    hint="a process that ran it died; look into Trinity's log",
                )
            batch.append(first)
            rest = group_info(first)["of"] - 1
            if rest:
                batch += await self._reader.read(batch_size=rest)
        measures: dict[str, float] = {"time/read_experience": time.perf_counter() - began}
        self.set_model_version_metric(batch, measures)
        return batch, measures, []

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"groups": 1}

    def state_dict(self) -> dict[str, Any]:
        return self._reader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self._reader.load_state_dict(state_dict)
