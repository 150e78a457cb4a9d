from __future__ import annotations

from collections import defaultdict

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_helpers import episode, group, node, random_batch

from astune.schema import EpisodeGroup, MessageNode, TrainerError, TrainingBatch
from astune.trainer.samples import account, weighted


def linear(n_tokens: int) -> list[MessageNode]:
    return [node(0, None, [1, 2]), node(1, 0, [3] * n_tokens, sampled=n_tokens)]


def weights(batch: TrainingBatch, scheme: str) -> dict[str, float]:
    """What each episode weighs in all."""
    total: dict[str, float] = defaultdict(float)
    for number, members in enumerate(batch.groups):
        for member in members.episodes:
            only = [[0.0 if other is member else float("nan") for other in others.episodes] for others in batch.groups]
            alone = weighted(batch.groups, only, scheme)  # type: ignore[arg-type]
            assert sum(t.token_weight * len(t.positions) for t in alone) == pytest.approx(1)
            assert {t.group for t in alone} <= {number}
    for timeline in weighted(batch.groups, batch.advantages, scheme):  # type: ignore[arg-type]
        total[f"{timeline.group}:{timeline.advantages[0]}"] += timeline.token_weight * len(timeline.positions)
    return total


@given(seed=st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_by_default_every_group_and_every_episode_of_it_weighs_the_same(seed: int) -> None:
    batch = random_batch(seed)
    n_groups = len(batch.groups)
    for key, weight in weights(batch, "episode").items():
        n_episodes = len(batch.groups[int(key.split(":")[0])].episodes)
        assert weight == pytest.approx(1 / n_groups / n_episodes)


def test_the_worked_example_of_weights_holds() -> None:
    groups = [group([episode(linear(10)), episode(linear(30))]), group([episode(linear(20)), episode(linear(40))])]
    advantages = [[1.0, 1.0], [1.0, 1.0]]

    def token_weights(scheme: str) -> list[float]:
        return [timeline.token_weight for timeline in weighted(groups, advantages, scheme)]  # type: ignore[arg-type]

    assert token_weights("episode") == pytest.approx([1 / 40, 1 / 120, 1 / 80, 1 / 160])
    assert token_weights("timeline") == pytest.approx([1 / 40, 1 / 120, 1 / 80, 1 / 160])
    assert token_weights("token") == pytest.approx([1 / 100] * 4)


@pytest.mark.parametrize("scheme", ["episode", "timeline", "token"])
def test_the_share_of_groups_scales_advantages_and_no_weight(scheme: str) -> None:
    groups = [group([episode(linear(10)), episode(linear(30))])]
    timelines = weighted(groups, [[1.0, -1.0]], scheme, share=0.25)  # type: ignore[arg-type]
    assert sum(each.token_weight * len(each.positions) for each in timelines) == pytest.approx(1)
    assert [set(each.advantages) for each in timelines] == [{0.25}, {-0.25}]


def test_a_branching_episode_weighs_no_more_than_a_linear_one() -> None:
    branching = [node(0, None, [1]), node(1, 0, [2] * 8, sampled=8), node(2, 0, [3] * 8, sampled=8)]
    groups = [group([episode(branching), episode(linear(4))])]
    timelines = weighted(groups, [[1.0, -1.0]], "episode")
    weight_of = dict.fromkeys((1.0, -1.0), 0.0)
    for timeline in timelines:
        weight_of[timeline.advantages[0]] += timeline.token_weight * len(timeline.positions)
    assert weight_of == pytest.approx({1.0: 0.5, -1.0: 0.5})
    by_timeline = weighted(groups, [[1.0, -1.0]], "timeline")
    assert sum(t.token_weight * len(t.positions) for t in by_timeline if t.advantages[0] > 0) == pytest.approx(2 / 3)


def test_every_sampled_token_is_trained_once_or_masked_with_a_reason() -> None:
    shared = [
        node(0, None, [1]),
        node(1, 0, [2, 2, 2], sampled=3),
        node(2, 1, [3]),
        node(3, 2, [4, 4], sampled=2),
        node(4, 1, [5]),
        node(5, 4, [6], sampled=1),
        node(6, 5, [7, 7, 7, 7], sampled=4, trainable=False),
    ]
    groups = [group([episode(shared), episode(linear(5), reward=None)])]
    accounts = account(TrainingBatch(0, groups, [[0.0, float("nan")]]))
    assert accounts.trained == 3 + 2 + 1
    assert accounts.masked == {"not a training target": 4, "episode without a reward": 5}
    assert sum(len(t.positions) for t in weighted(groups, [[0.0, float("nan")]], "episode")) == accounts.trained


def test_an_episode_without_a_prompt_is_refused_by_name() -> None:
    groups: list[EpisodeGroup] = [group([episode([node(0, None, [1, 2], sampled=2)], name="calc-7")])]
    with pytest.raises(TrainerError, match="calc-7 was sampled without a prompt"):
        weighted(groups, [[1.0]], "episode")


def test_a_recorded_logprob_that_is_not_finite_is_refused_by_name() -> None:
    nodes = [node(0, None, [1]), node(1, 0, [2], sampled=1, logprobs=[float("nan")])]
    with pytest.raises(TrainerError, match="calc-8 has a log-probability") as caught:
        weighted([group([episode(nodes, name="calc-8")])], [[1.0]], "episode")
    assert "float32" in caught.value.hint


def test_each_message_carries_its_own_advantage_where_advantages_are_by_message() -> None:
    """The second message was branched from twice and is trained in the first timeline only."""
    nodes = [
        node(0, None, [1]),
        node(1, 0, [7, 2, 2], sampled=2),
        node(2, 1, [3]),
        node(3, 2, [4, 4, 4], sampled=3),
        node(4, 1, [5]),
        node(5, 4, [6], sampled=1),
    ]
    first, second = weighted([group([episode(nodes)])], [[{1: 0.5, 3: -1.0, 5: 2.0}]], "episode", share=0.5)
    assert (first.positions, first.advantages) == ([2, 3, 5, 6, 7], [0.25, 0.25, -0.5, -0.5, -0.5])
    assert (second.positions, second.advantages) == ([5], [1.0])
    assert first.token_weight == second.token_weight == pytest.approx(1 / 6)
