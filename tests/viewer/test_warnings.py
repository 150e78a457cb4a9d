"""What a run's metrics warn of."""

from __future__ import annotations

import math

import pytest

from astune.runs import MetricsLine
from astune.viewer.warnings import warnings_of


def lines(*metrics: dict[str, float]) -> list[MetricsLine]:
    return [MetricsLine(step, "train", 0.0, 0.0, each) for step, each in enumerate(metrics, start=1)]


def told(*metrics: dict[str, float]) -> list[tuple[str, int | None]]:
    return [(warning.kind, warning.step) for warning in warnings_of(lines(*metrics))]


def test_a_healthy_run_is_warned_of_nothing():
    healthy = {
        "train/engine_correlation": 0.9995,
        "train/versions_behind_0/tokens": 2000.0,
        "watch/asks_back": 0.1,
        "groups/used": 6.0,
        "groups/dropped": 2.0,
        "episodes/finished": 64.0,
        "episodes/failed_attempts": 1.0,
    }
    assert told(*[healthy] * 20) == []
    assert told() == []


def test_engine_and_trainer_that_disagree_are_a_warning_where_enough_tokens_say_so():
    many, few = {"train/versions_behind_0/tokens": 2000.0}, {"train/versions_behind_0/tokens": 20.0}
    assert told(few | {"train/engine_correlation": 0.5}) == []
    steps = [many | {"train/engine_correlation": value} for value in (0.999, 0.93, 0.98)]
    assert told(*steps) == [("mismatch", 2)]
    [warning] = warnings_of(lines(*steps))
    assert "correlate by 0.930 in step 2" in warning.text


@pytest.mark.parametrize("values", [(math.nan, 0.93), (0.93, math.nan), (math.nan, math.inf, 0.93, math.nan)])
def test_a_correlation_that_is_no_number_is_a_warning_and_hides_no_other(values):
    steps = [{"train/versions_behind_0/tokens": 2000.0, "train/engine_correlation": value} for value in values]
    worst, unknown = values.index(0.93) + 1, next(at for at, value in enumerate(values, 1) if math.isnan(value))
    assert told(*steps) == [("mismatch", unknown), ("mismatch", worst)]
    assert warnings_of(lines(*steps))[0].text.startswith(f"train/engine_correlation is not a number in step {unknown}:")
    assert told(*(step | {"train/engine_correlation": math.nan} for step in steps)) == [("mismatch", 1)]


def test_a_sign_of_reward_hacking_that_jumps_is_a_warning_once():
    steps = [{"watch/repeated_text": 0.05}] * 8 + [{"watch/repeated_text": 0.6}] * 4
    assert told(*steps) == [("jump", 9)]
    [warning] = warnings_of(lines(*steps))
    assert "watch/repeated_text rose to 0.60 in step 9, from 0.05" in warning.text


def test_dropped_groups_and_failed_attempts_are_warnings_where_they_are_many():
    assert told(
        {"groups/used": 1.0, "groups/dropped": 7.0, "episodes/finished": 60.0, "episodes/failed_attempts": 4.0}
    ) == [("dropped", None), ("failed", None)]
