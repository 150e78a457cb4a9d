from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_helpers import episode, group, node

from astune.algorithm import (
    DAPO,
    GRPO,
    Algorithm,
    ReinforcePlusPlus,
    TokenLoss,
    Tokens,
    advantages_of,
    group_advantages,
    without_variance,
)
from astune.algorithm.base import loss_of
from astune.schema import Advantage, Episode, TrainerError

NAN = float("nan")
FLOAT32_OF_0_3 = 0.30000001192092896


@pytest.mark.parametrize(
    ("rewards", "normalise", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], False, [0.75, -0.25, -0.25, -0.25]),
        ([1.0, 0.0, 0.0, 0.0], True, [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        ([1.0, 1.0, 1.0, 1.0], True, [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, NAN], True, [1.0, -1.0, NAN]),
        ([NAN, NAN], True, [NAN, NAN]),
        ([0.1 + 0.2, 0.3, 0.3], True, [0.0, 0.0, 0.0]),
        ([0.3, FLOAT32_OF_0_3, 0.3, NAN], True, [0.0, 0.0, 0.0, NAN]),
        ([0.3, 0.300001, 0.3, 0.299999], True, [0.0] * 4),
        ([0.0, 1e-6, 0.0, 0.0], False, [0.0] * 4),
        ([-2000.001, -2000.0, -2000.0], True, [0.0] * 3),
        ([0.999, 0.9991], True, [-1.0, 1.0]),
        ([-2000.1, -2000.0], True, [-1.0, 1.0]),
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
        if normalise and max(rewards) - min(rewards) > 0.01:
            assert float(advantages.square().mean()) == pytest.approx(1.0, abs=1e-6)


def test_a_baseline_counts_episodes_and_not_their_tokens_or_branches() -> None:
    def short(reward: float) -> list[Advantage]:
        branching = [node(0, None, [1]), node(1, 0, [2] * 50, sampled=50), node(2, 0, [3] * 50, sampled=50)]
        plain = [node(0, None, [1]), node(1, 0, [2], sampled=1)]
        groups = [group([episode(branching, reward=reward), episode(plain, reward=0.0), episode(plain, reward=0.0)])]
        return advantages_of(GRPO(normalise_advantages=False), groups)[0]

    assert short(3.0) == pytest.approx([2.0, -1.0, -1.0])


def test_groups_may_differ_in_size_and_hold_an_episode_without_a_reward() -> None:
    nodes = [node(0, None, [1]), node(1, 0, [2], sampled=1)]
    groups = [
        group([episode(nodes, reward=reward) for reward in (1.0, 0.0, None)]),
        group([episode(nodes, reward=reward) for reward in (0.0, 1.0)]),
    ]
    first, second = advantages_of(GRPO(), groups)
    assert first[:2] == [1.0, -1.0]
    assert math.isnan(first[2])
    assert second == [-1.0, 1.0]
    assert advantages_of(GRPO(), []) == []


def talk(agents: Sequence[str], **reward: Any) -> Episode:
    """One message an agent, in this order."""
    said = [node(number, number - 1, [2], sampled=1, agent=agent) for number, agent in enumerate(agents, start=1)]
    return episode([node(0, None, [1]), *said], **reward)


def by_message(episodes: Sequence[Episode], *, normalise: bool = False) -> list[list[float]]:
    [row] = advantages_of(GRPO(normalise_advantages=normalise), [group(episodes)])
    return [list(each.values()) if isinstance(each, dict) else [each] for each in row]


def test_a_target_is_compared_with_the_episodes_of_the_group_that_have_it() -> None:
    rewards = [(1.0, 0.0), (0.0, 1.0), (None, 0.0), (1.0, 1.0)]
    episodes = [
        talk(["farmer", "wolf"], per_target={"wolf": wolf, "farmer": farmer})
        if wolf is not None
        else talk(["farmer", "farmer"], per_target={"farmer": farmer})
        for wolf, farmer in rewards
    ]
    assert by_message(episodes) == [
        pytest.approx([-0.5, 1 / 3]),
        pytest.approx([0.5, -2 / 3]),
        pytest.approx([-0.5, -0.5]),
        pytest.approx([0.5, 1 / 3]),
    ]


def test_the_baseline_of_a_target_counts_episodes_and_not_how_often_it_spoke() -> None:
    chatty = talk(["wolf"] * 7, per_target={"wolf": 3.0})
    silent = [talk(["wolf"], per_target={"wolf": 0.0}) for _ in range(2)]
    assert by_message([chatty, *silent]) == [[2.0] * 7, [-1.0], [-1.0]]


def test_agents_of_one_tag_are_one_target_and_a_target_without_a_reward_has_that_of_the_episode() -> None:
    tags = {"Ann": "wolf", "Bob": "wolf"}
    episodes = [
        talk(["Ann", "Bob", "Eve"], reward=reward, per_target={"wolf": wolf}, targets=tags)
        for reward, wolf in ((0.0, 4.0), (1.0, 0.0))
    ]
    assert by_message(episodes) == [[2.0, 2.0, -0.5], [-2.0, -2.0, 0.5]]


def test_the_worked_example_of_rewards_by_turn_holds() -> None:
    episodes = [talk(["agent"] * 3, per_turn=[0.0, 0.0, 1.0]), talk(["agent"] * 2, per_turn=[0.0, 1.0])]
    assert by_message(episodes) == [[0.0, 0.0, 0.5], [0.0, 0.0]]


@given(st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=6), st.booleans())
def test_rewards_by_turn_that_come_at_the_end_are_those_of_the_episode(rewards: list[float], normalise: bool) -> None:
    whole = by_message([talk(["agent"] * 3, reward=reward) for reward in rewards], normalise=normalise)
    late = by_message([talk(["agent"] * 3, per_turn=[0.0, 0.0, reward]) for reward in rewards], normalise=normalise)
    for one, other in zip(whole, late, strict=True):
        assert other == pytest.approx(one * 3)


def test_what_was_earned_before_a_turn_is_no_reason_to_repeat_it() -> None:
    episodes = [talk(["agent"] * 2, per_turn=[1.0, 0.0]), talk(["agent"] * 2, per_turn=[0.0, 0.0])]
    assert by_message(episodes, normalise=True) == [[1.0, 0.0], [-1.0, 0.0]]


@pytest.mark.parametrize("finer", [{"per_turn": [1.0]}, {"per_target": {"agent": 1.0}}])
def test_an_episode_without_a_reward_has_no_advantage_and_no_place_in_a_finer_baseline(finer: dict[str, Any]) -> None:
    other = {"per_turn": [3.0]} if "per_turn" in finer else {"per_target": {"agent": 3.0}}
    row = by_message([talk(["agent"], **finer), talk(["agent"], reward=None), talk(["agent"], **other)])
    assert (row[0], row[2]) == ([-1.0], [1.0])
    assert math.isnan(row[1][0])


def test_with_a_baseline_over_the_batch_a_wolf_is_compared_with_wolves_alone() -> None:
    def game(wolf: float, farmer: float) -> Episode:
        return talk(["wolf", "farmer"], per_target={"wolf": wolf, "farmer": farmer})

    groups = [group([game(1.0, 0.0), game(1.0, 0.0)]), group([game(1.0, 0.0), game(0.0, 1.0)])]
    rows = [one for row in advantages_of(ReinforcePlusPlus(), groups) for one in row if isinstance(one, dict)]
    wolf, farmer = zip(*([*one.values()] for one in rows), strict=True)
    assert wolf == pytest.approx([0.5773503, 0.5773503, 0.5773503, -1.7320508])
    assert farmer == pytest.approx([-0.5773503, -0.5773503, -0.5773503, 1.7320508])


def rows(algorithm: Algorithm, groups: Sequence[Sequence[Episode]]) -> list[list[float]]:
    found = advantages_of(algorithm, [group(episodes) for episodes in groups])
    return [list(each.values()) if isinstance(each, dict) else [each] for row in found for each in row]


def test_with_a_baseline_over_the_batch_a_turn_is_compared_with_the_same_turn_and_counts_episodes() -> None:
    short = [talk(["agent"], per_turn=[1.0]) for _ in range(2)]
    long = [talk(["agent"] * 3, per_turn=[0.0, 0.0, 0.0]) for _ in range(2)]
    assert rows(ReinforcePlusPlus(), [short, long]) == [[1.0], [1.0], [-1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]
    [first, second] = rows(
        ReinforcePlusPlus(), [[talk(["agent"], per_turn=[1.0]), talk(["agent"] * 10, per_turn=[0.0] * 10)]]
    )
    assert (first, second) == ([1.0], [-1.0, *[0.0] * 9])


def wordy(lengths: Sequence[tuple[str, int]], **reward: Any) -> Episode:
    """One message an agent, of so many tokens."""
    said = [node(at, at - 1, [2] * n, sampled=n, agent=agent) for at, (agent, n) in enumerate(lengths, start=1)]
    return episode([node(0, None, [1]), *said], **reward)


def dapo() -> DAPO:
    algorithm = DAPO(normalise_advantages=False)
    algorithm.max_response_tokens = 100
    return algorithm


def test_a_target_pays_for_its_own_overlong_message_alone() -> None:
    same = {"per_target": {"wolf": 0.0, "farmer": 1.0}}
    games = [wordy([("farmer", 3), ("wolf", n)], **same) for n in (100, 3)]
    assert rows(dapo(), [games]) == [[0.0, -0.5], [0.0, 0.5]]


def test_a_turn_pays_for_overlong_messages_from_it_on_alone() -> None:
    games = [wordy([("agent", n), ("agent", 3)], per_turn=[0.0, 1.0]) for n in (100, 3)]
    assert rows(dapo(), [games]) == [[-0.5, 0.0], [0.5, 0.0]]
    games = [wordy([("agent", 3), ("agent", n)], per_turn=[0.0, 1.0]) for n in (100, 3)]
    assert rows(dapo(), [games]) == [[-0.5, -0.5], [0.5, 0.5]]
    games = [wordy([("agent", 3), ("agent", n)]) for n in (100, 3)]
    assert rows(dapo(), [games]) == [[-0.5], [0.5]]


def test_a_group_with_two_kinds_of_rewards_is_refused() -> None:
    episodes = [talk(["agent"], per_turn=[1.0]), talk(["agent"], per_target={"agent": 1.0})]
    with pytest.raises(TrainerError, match="per target and per turn"):
        advantages_of(GRPO(), [group(episodes)])


def test_a_group_says_something_where_any_of_its_advantages_does() -> None:
    def says_nothing(episodes: list[Episode]) -> bool:
        return bool(without_variance(GRPO(), [group(episodes)]))

    assert says_nothing([talk(["agent"], per_turn=[1.0]), talk(["agent"], per_turn=[1.0])])
    assert not says_nothing([talk(["agent"] * 2, per_turn=[1.0, 0.0]), talk(["agent"] * 2, per_turn=[0.0, 1.0])])
    assert says_nothing([talk(["a"], reward=0.3), talk(["a"], reward=FLOAT32_OF_0_3), talk(["a"], reward=0.300001)])
    assert says_nothing([talk(["a"] * 2, per_turn=[0.0, 0.3]), talk(["a"] * 2, per_turn=[1e-6, 0.3])])
    assert not says_nothing([talk(["a"], per_target={"a": 1.0}), talk(["a"], per_target={"a": 2.0})])
    assert says_nothing([talk(["a"], reward=1.0), talk(["a"], reward=1.0), talk(["a"], reward=None)])
    # The rewards of others than the trained agents differ, and say nothing of these.
    assert says_nothing([talk(["a"], per_target={"a": 1.0, "b": 0.0}), talk(["a"], per_target={"a": 1.0, "b": 1.0})])


class Own(Algorithm):
    """An algorithm whose methods return what a test hands in, or raise."""

    def __init__(self, returned: Any = None) -> None:
        self.returned = returned

    def advantages(self, reward_BK: torch.Tensor) -> torch.Tensor:
        return self.returned["x"] if isinstance(self.returned, dict) else self.returned

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return self.returned["x"] if isinstance(self.returned, dict) else self.returned


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ({}, r"Own.token_loss \(.*test_advantages.py:\d+\): KeyError: 'x'; this is in the algorithm's own code"),
        (torch.ones(3), r"Own.token_loss returned tensor.* for 3 tokens; return TokenLoss"),
        (TokenLoss(torch.tensor(1.0)), r"Own.token_loss returned a loss of shape \[\] for 3 tokens"),
    ],
)
def test_a_loss_of_an_algorithm_of_ones_own_is_checked(returned: Any, complaint: str) -> None:
    """A scalar, broadcast over the tokens, would train something else without a word."""
    with pytest.raises(TrainerError, match=complaint):
        loss_of(Own(returned), Tokens(torch.zeros(3), torch.zeros(3), torch.ones(3)))


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ({}, r"Own.advantages \(.*test_advantages.py:\d+\): KeyError: 'x'"),
        ([[1.0, 0.0]], r"Own.advantages returned list for rewards of shape \[1, 2\]"),
        (torch.tensor([[math.inf, 0.0]]), r"Own.advantages returned \[\[inf, 0.0\]\] for the rewards \[\[1.0, 0.0\]\]"),
    ],
)
def test_advantages_of_an_algorithm_of_ones_own_are_checked(returned: Any, complaint: str) -> None:
    rewarded = [episode([node(0, None, [1]), node(1, 0, [2], sampled=1)], reward=reward) for reward in (1.0, 0.0)]
    with pytest.raises(TrainerError, match=complaint):
        advantages_of(Own(returned), [group(rewarded)])
