from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_helpers import episode, group, node

from astune.trainer.advantages import advantages_of, group_advantages

NAN = float("nan")


@pytest.mark.parametrize(
    ("rewards", "normalise", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], False, [0.75, -0.25, -0.25, -0.25]),
        ([1.0, 0.0, 0.0, 0.0], True, [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        ([1.0, 1.0, 1.0, 1.0], True, [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, NAN], True, [1.0, -1.0, NAN]),
        ([NAN, NAN], True, [NAN, NAN]),
        ([0.1 + 0.2, 0.3, 0.3], True, [0.0, 0.0, 0.0]),
    ],
)
def test_the_worked_examples_hold(rewards: list[float], normalise: bool, expected: list[float]) -> None:
    advantages = group_advantages(torch.tensor([rewards], dtype=torch.float64), normalise=normalise)
    torch.testing.assert_close(
        advantages, torch.tensor([expected], dtype=torch.float64), rtol=1e-6, atol=1e-9, equal_nan=True
    )


@given(st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=9))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    for normalise in (True, False):
        advantages = group_advantages(torch.tensor([rewards], dtype=torch.float64), normalise=normalise)[0]
        assert abs(float(advantages.sum())) < 1e-6 * max(1.0, *map(abs, rewards))
        ordered = advantages[torch.tensor(rewards).argsort(stable=True)]
        assert (ordered.diff() >= -1e-9).all()
        if normalise and len(set(rewards)) > 1:
            assert float(advantages.square().mean()) == pytest.approx(1.0, abs=1e-6)


def test_a_baseline_counts_episodes_and_not_their_tokens_or_branches() -> None:
    def short(reward: float) -> list[float]:
        branching = [node(0, None, [1]), node(1, 0, [2] * 50, sampled=50), node(2, 0, [3] * 50, sampled=50)]
        plain = [node(0, None, [1]), node(1, 0, [2], sampled=1)]
        groups = [group([episode(branching, reward=reward), episode(plain, reward=0.0), episode(plain, reward=0.0)])]
        return advantages_of(groups, normalise=False)[0]

    assert short(3.0) == pytest.approx([2.0, -1.0, -1.0])


def test_groups_may_differ_in_size_and_hold_an_episode_without_a_reward() -> None:
    nodes = [node(0, None, [1]), node(1, 0, [2], sampled=1)]
    groups = [
        group([episode(nodes, reward=reward) for reward in (1.0, 0.0, None)]),
        group([episode(nodes, reward=reward) for reward in (0.0, 1.0)]),
    ]
    first, second = advantages_of(groups, normalise=True)
    assert first[:2] == [1.0, -1.0]
    assert math.isnan(first[2])
    assert second == [-1.0, 1.0]
    assert advantages_of([], normalise=True) == []
