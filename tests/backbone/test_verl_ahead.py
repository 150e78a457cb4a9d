from __future__ import annotations

from typing import Any

import pytest
from engine_side import answer_of, needs

from astune.schema import stable_seed

pytestmark = needs("verl")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answer_of("verl", "verl_ahead_side.py")


def test_an_answer_that_is_broken_off_goes_on_where_it_was_with_other_random_numbers(found: dict[str, Any]) -> None:
    assert found["completion"] == {
        "token_ids": [11, 12, 13, 14, 15],
        "logprobs": [-0.1, -0.2, -0.3, -0.4, -0.5],
        "finish_reason": "stop",
        "weights_version": 3,
        "cached_tokens": 7,  # of the first request, whose prompt is the caller's
    }
    assert [one["prompt"] for one in found["asked"]] == [
        [1, 2, 3],
        [1, 2, 3, 11, 12],
        [1, 2, 3, 11, 12],
        [1, 2, 3, 11, 12, 13],
    ]
    assert [one["max_tokens"] for one in found["asked"]] == [8, 6, 6, 5]
    seeds = [one["seed"] for one in found["asked"]]
    assert seeds == [5, stable_seed(5, 2), stable_seed(5, 2), stable_seed(5, 3)]
    stats = found["stats"]
    assert (stats["prompt_tokens"], stats["sampled_tokens"], stats["running"]) == (3, 5, 0)


def test_an_answer_in_a_form_that_is_broken_off_is_begun_anew(found: dict[str, Any]) -> None:
    begun = found["in a form"]
    assert [one["prompt"] for one in begun["asked"]] == [[1, 2, 3]] * 4
    assert all(one["max_tokens"] == 8 and one["grammar"].endswith("\nstart: /(yes|no)/") for one in begun["asked"])
    assert begun["completion"]["token_ids"] == [14, 15]
    assert begun["completion"]["weights_version"] == 5


def test_a_step_waits_for_its_own_groups_whatever_else_is_finished(found: dict[str, Any]) -> None:
    assert (found["too early"], found["enough"], found["picked"]) == (False, True, ["2/0", "2/1"])
    assert found["measured"] is True
