"""The frozen lake in words, against gymnasium's own environment."""

from __future__ import annotations

import re
import sys
from collections import Counter

import gymnasium
import pytest
from examples import examples
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.environments.frozenlake import DIRECTIONS, FrozenLake, observation, shortest_way
from astune.schema import EnvError, Task, install_extra

MAP = ["SFFF", "FHFH", "FFFH", "HFFG"]


def lake(seed: int = 0, **metadata) -> FrozenLake:
    return FrozenLake(Task(task_id="t", main_query="Cross.", metadata={"map": MAP} | metadata), seed)


def say(environment: FrozenLake, text: str):
    return environment.step({"role": "assistant", "content": text})


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10_000),
    actions=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    is_slippery=st.booleans(),
    turned=st.booleans(),
)
def test_every_step_equals_gymnasiums_own(seed, actions, is_slippery, turned):
    lake_map = generate_random_map(size=4, p=0.8, seed=seed)
    if turned:
        lake_map = [row[::-1] for row in lake_map[::-1]]
    theirs = gymnasium.make("FrozenLake-v1", desc=lake_map, is_slippery=is_slippery)
    ours = lake(seed, map=lake_map, is_slippery=is_slippery, max_turns=100)
    position, _ = theirs.reset(seed=seed)
    assert ours.get_init_state().info["position"] == position
    reached = 0.0
    for action in actions:
        position, reward, terminated, _, _ = theirs.step(action)
        step = say(ours, DIRECTIONS[action])
        assert (step.info["position"], step.reward, step.is_terminated) == (position, reward, terminated)
        reached = max(reached, float(reward))
        assert ours.evaluate() == reached
        if terminated:
            break
        assert step.state == [{"role": "user", "content": observation(lake_map, position)}]


def read(observed: str) -> tuple[set[str], set[str]]:
    goal, safe = observed.removesuffix(".").split(". ")
    return set(goal.removeprefix("Goal: ").split(", ")), set(safe.removeprefix("Safe: ").split(", "))


def test_the_agent_reads_what_lies_around_it_and_where_the_goal_is():
    assert read(observation(MAP, 0)) == ({"3 down", "3 right"}, {"down", "right"})
    assert read(observation(MAP, 6)) == ({"1 right", "2 down"}, {"down", "up"})
    assert read(observation(MAP, 14)) == ({"1 right"}, {"right", "left", "up"})
    assert read(observation(["FFG", "FHF", "FFS"], 6)) == ({"2 up", "2 right"}, {"up", "right"})
    opening = lake().get_init_state().state
    assert opening[0]["role"] == "system"
    assert opening[1:] == [{"role": "user", "content": f"Cross.\n{observation(MAP, 0)}"}]


def test_directions_are_listed_in_an_order_that_says_nothing():
    ice = ["SFFFFFFF", *["F" * 8] * 6, "FFFFFFFG"]
    inner = [observation(ice, row * 8 + column) for row in range(1, 7) for column in range(1, 7)]
    assert inner == [observation(list(ice), row * 8 + column) for row in range(1, 7) for column in range(1, 7)]
    first_safe = Counter(observed.split("Safe: ")[1].split(",")[0] for observed in inner)
    first_goal = Counter(observed.split()[2] for observed in inner)
    assert min(first_safe[direction] for direction in DIRECTIONS) >= 4
    assert min(first_goal["down,"], first_goal["right,"]) >= 12


def test_a_shortest_way_reaches_the_goal():
    environment = lake()
    environment.get_init_state()
    steps = [say(environment, word) for word in shortest_way(MAP) or []]
    assert [step.is_terminated for step in steps] == [False] * 5 + [True]
    assert environment.evaluate() == 1.0


def test_the_dense_evaluation_is_half_of_the_part_of_the_way_that_was_covered():
    environment = lake()
    environment.get_init_state()
    say(environment, "down")
    say(environment, "down")
    assert environment.evaluate(sparse=False) == pytest.approx(0.5 * 2 / 6)
    say(environment, "up")
    assert environment.evaluate(sparse=False) == pytest.approx(0.5 * 2 / 6)
    assert say(environment, "right").is_terminated
    assert (environment.evaluate(sparse=False), environment.evaluate()) == (pytest.approx(0.5 * 2 / 6), 0.0)


def test_the_last_direction_word_counts_in_any_case():
    environment = lake()
    environment.get_init_state()
    assert say(environment, "Not right but DOWN.").info["position"] == 4


def test_a_message_without_a_direction_ends_the_episode():
    environment = lake()
    environment.get_init_state()
    step = say(environment, "upwards, downtown")
    assert (step.is_terminated, step.reward, environment.evaluate()) == (True, 0.0, 0.0)


def test_the_episode_ends_with_its_turns():
    environment = lake(max_turns=2)
    environment.get_init_state()
    assert not say(environment, "left").is_terminated
    assert say(environment, "left").is_terminated


@pytest.mark.parametrize(
    "lake_map", [None, "SFFG", [], ["SF", "F"], ["SX", "FG"], ["FF", "FG"], ["SF", "FF"], ["SS", "FG"], [1, 2]]
)
def test_a_map_that_is_none_is_refused(lake_map):
    with pytest.raises(EnvError, match="no usable metadata 'map'"):
        lake(map=lake_map)


def test_without_gymnasium_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(EnvError, match=re.escape(install_extra("frozenlake"))):
        lake()


def test_a_blocked_lake_has_no_way():
    assert shortest_way(["SH", "HG"]) is None
