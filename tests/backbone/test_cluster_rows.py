from __future__ import annotations

import pytest
import torch
from cluster_stage import local_timelines, recorded, told_rows

from astune.algorithm import TokenWeights
from astune.backbone.verl import estimator

SCHEMES: list[TokenWeights] = ["episode", "timeline", "token", "constant"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_verl_is_given_as_advantages_are_those_of_the_local_trainer_times_their_weights(
    scheme: TokenWeights,
) -> None:
    batch = recorded()
    rows, timelines = told_rows(batch, scheme), local_timelines(batch, scheme)
    width = max(len(row.mask) for _, row in rows)

    def padded(values: list[float]) -> list[float]:
        return [*values, *[0.0] * (width - len(values))]

    rewards = torch.tensor(
        [padded([one * row.token_weight for one in row.advantages]) for _, row in rows] + [[0.0] * width]
    )
    mask = torch.tensor([padded([*map(float, row.mask)]) for _, row in rows] + [[0.0] * width])
    index = [
        *(estimator.group_name(uid, row) for uid, row in rows),
        f"{estimator.PADDING}01",
    ]  # verl fills batches up
    given, _ = estimator.advantages(rewards, mask, index, scheme=scheme, config=None)
    for (_, row), timeline, given_T in zip(rows, timelines, given, strict=False):
        first = timeline.positions[0]
        assert row.prompt_ids + row.response_ids == timeline.token_ids[: timeline.positions[-1] + 1]
        wanted = torch.zeros(width)
        wanted[[position - first for position in timeline.positions]] = (
            torch.tensor(timeline.advantages) * timeline.token_weight
        )
        torch.testing.assert_close(given_T, wanted, rtol=1e-6, atol=1e-9)
    assert len(rows) == len(timelines) + len(batch.quiet) + 1
    assert not given[len(timelines) :].any()


def test_a_batch_of_which_nothing_can_be_learnt_has_no_advantages() -> None:
    given, _ = estimator.advantages(torch.zeros(2, 1), torch.ones(2, 1), ["a", "b"], scheme="episode")
    assert not given.any()
