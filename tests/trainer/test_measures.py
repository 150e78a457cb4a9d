"""A step's numbers: means over finished episodes, counts of the others."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
from trainer_helpers import episode, group, node

from astune.runs.held_out import SUCCESS
from astune.trainer.measures import episode_metrics, of_all


def test_means_are_over_finished_episodes_and_a_workflows_own_numbers_over_those_that_have_them() -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4, 5], sampled=2)]
    first = replace(episode(nodes, reward=1.0), metrics={"calls": 3.0, "cost": 0.5})
    second = replace(episode(nodes, reward=0.0), metrics={"calls": 1.0}, status="truncated")
    metrics = episode_metrics([group([first, second])])
    assert metrics["reward/mean"] == metrics["reward/success_rate"] == metrics["episodes/truncated_rate"] == 0.5
    assert metrics["episodes/calls_mean"] == pytest.approx(2.0)
    assert metrics["episodes/cost_mean"] == pytest.approx(0.5)
    assert metrics["episodes/sampled_tokens_mean"] == 2.0


@pytest.mark.parametrize(
    ("numbers", "mean"), [((1e308, 1e308), 1e308), ((math.inf, 1.0), math.inf), ((math.inf, -math.inf), math.nan)]
)
def test_numbers_of_an_agent_may_be_of_any_size(numbers: tuple[float, float], mean: float) -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4, 5], sampled=2)]
    episodes = [replace(episode(nodes), metrics={"error": number}) for number in numbers]
    assert episode_metrics([group(episodes)])["episodes/error_mean"] == pytest.approx(mean, nan_ok=True)


def test_each_target_has_a_mean_over_the_episodes_that_reward_it() -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4, 5], sampled=2)]
    episodes = [
        episode(nodes, per_target={"wolf": 1.0, "farmer": 0.0}),
        episode(nodes, per_target={"wolf": 0.0}),
        episode(nodes),
    ]
    metrics = episode_metrics([group(episodes)])
    assert (metrics["reward/target_wolf_mean"], metrics["reward/target_farmer_mean"]) == (0.5, 0.0)
    assert metrics["reward/mean"] == 1.0


def test_without_a_finished_episode_there_are_only_counts() -> None:
    assert set(episode_metrics([group([])])) == {
        "episodes/finished",
        "episodes/failed_attempts",
        "groups/used",
        "groups/dropped",
    }


def test_equally_many_successes_are_equal_whatever_did_not_finish() -> None:
    rates = {n: fmean([1.0] * 55 + [0.0] * (n - 55)) for n in range(55, 201)}
    measures = [{"episodes/finished": float(n), "reward/success_rate": rate} for n, rate in rates.items()]
    assert {of_all(each, 200)[SUCCESS] for each in measures} == {55 / 200}
