"""gymnasium's environments in text, with the real library."""

from __future__ import annotations

from typing import Any

import pytest

from astune.env_service.base import Environment
from astune.env_service.built_in import environment_class
from astune.schema import EnvError, Task

pytest.importorskip("gymnasium")
MOVES = ["up", "right", "down", "left"]


def made(name: str, task_id: str = "train-3", **metadata: Any) -> Environment:
    return environment_class(name, asked_by="--env")(Task(task_id=task_id, main_query=task_id, metadata=metadata), 0)


def say(environment: Environment, text: str) -> Any:
    return environment.step({"role": "assistant", "content": text})


def test_an_agent_that_walks_by_words_reaches_its_goal_and_is_paid_as_gymnasium_says() -> None:
    walk = made("gymnasium:CliffWalking-v1", actions=MOVES, success_at=-13)
    (opening,) = walk.get_init_state().state
    assert "x" in opening["content"]
    assert opening["content"].endswith("one of: up, right, down, left")
    assert not say(walk, "Not right yet, first UP.").is_terminated
    for _ in range(11):
        assert not say(walk, "right").is_terminated
    assert say(walk, "down").is_terminated
    assert (walk.evaluate(), walk.evaluate(sparse=False)) == (1.0, -13.0)
    walk.close()


def test_an_action_whose_name_begins_with_another_ones_is_the_one_that_was_written() -> None:
    walk = made("gymnasium:CliffWalking-v1", actions=["go", "go right", "go down", "right"])
    walk.get_init_state()
    say(walk, "I go.")
    assert not say(walk, "Now go right.").is_terminated, "on the cliff's edge, not in the cliff"
    assert walk.evaluate(sparse=False) == -2.0
    say(walk, "go down")
    assert walk.evaluate(sparse=False) == -102.0, "the cliff"
    walk.close()


def test_a_task_is_the_same_world_each_time_and_another_one_another() -> None:
    def world(task_id: str) -> Any:
        return made("gymnasium:Taxi-v4", task_id).get_init_state().state

    assert world("train-3") == world("train-3")
    assert len({str(world(f"train-{number}")) for number in range(8)}) > 1
    assert "[" in str(world("train-3")), "the taxi is marked without colours"
    assert "\x1b" not in str(world("train-3"))


def test_what_is_no_action_ends_the_episode_without_success() -> None:
    game = made("gymnasium:Blackjack-v1", actions=["stick", "hit"])
    assert "stick, hit" in game.get_init_state().state[0]["content"]
    ended = say(game, "I fold")
    assert (ended.is_terminated, ended.info, game.evaluate()) == (True, {"stray": True}, 0.0)


@pytest.mark.parametrize(
    ("name", "metadata", "said"),
    [
        ("gymnasium:NoSuchGame-v1", {}, "cannot be made"),
        ("gymnasium:Taxi-v4", {"settings": {"cold": 1}}, "cannot be made"),
        ("gymnasium:Taxi-v4", {"actions": ["left"]}, "1 names, and there are 6 actions"),
        ("gymnasium:Pendulum-v1", {}, "only numbered actions"),
    ],
)
def test_what_cannot_be_played_is_an_error_that_names_it(name: str, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvError, match=said):
        made(name, **metadata)
