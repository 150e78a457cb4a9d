"""The frozen lake tutorial: its maps, and its agent."""

from __future__ import annotations

import sys

import pytest
from tutorial_stage import Play, tutorial_config

from astune.config.schema import FileConfig, JsonlReaderConfig, TaskReaderConfig
from astune.environments.frozenlake import FrozenLake, shortest_way
from astune.runs.report import mean_baseline
from astune.schema import Task, TaskReaderError
from astune.task_reader import open_task_reader
from tutorial.example_frozen_lake import tasks
from tutorial.example_frozen_lake.frozen_lake import EXAMPLE_MAPS, EXAMPLES
from tutorial.example_frozen_lake.rules import ONE_LOOK, TWO_LOOKS, part_crossed
from tutorial.example_frozen_lake.tasks import main as write_tasks
from tutorial.example_frozen_lake.tasks import make_tasks, split_of

CONF = "example_frozen_lake/frozen_lake.yaml"


def maps(tasks) -> list[tuple[str, ...]]:
    return [tuple(task.metadata["map"]) for task in tasks]


@pytest.mark.parametrize(("split", "ways"), [("train", [2, 3, 4]), ("train", [4]), ("validation", [4])])
def test_every_lake_can_be_crossed_within_the_turns(split, ways):
    for task in make_tasks(split, 40, ways=ways):
        environment = FrozenLake(task, seed=0)
        environment.get_init_state()
        steps = [
            environment.step({"role": "assistant", "content": way}) for way in shortest_way(task.metadata["map"]) or []
        ]
        assert steps[-1].is_terminated
        assert len(steps) == task.metadata["way"]
        assert environment.evaluate() == 1.0


@pytest.mark.slow
def test_no_held_out_lake_is_trained_on_whatever_the_seeds():
    training = [*maps(make_tasks("train", 80)), *maps(make_tasks("train", 80, seed=1))]
    held_out = [*maps(make_tasks("validation", 30)), *maps(make_tasks("validation", 30, seed=2))]
    assert not set(training) & set(held_out)
    assert len(set(maps(make_tasks("train", 80)))) == 80
    assert {split_of(list(lake)) for lake in held_out} == {"validation"}


@pytest.mark.slow
def test_only_who_heeds_both_the_goal_and_the_holes_crosses_most_lakes():
    lakes = make_tasks("validation", 96)
    crossed = {name: part_crossed(lakes, rule) for name, rule in ONE_LOOK.items()}
    assert max(crossed.values()) < 0.2, crossed
    assert all(part_crossed(lakes, rule) > 0.7 for rule in TWO_LOOKS.values())


def test_the_example_games_are_ones_that_the_environment_plays():
    played: list[tuple[str, str]] = []
    for lake_map in EXAMPLE_MAPS:
        silent = Task(task_id="t", init_messages=[{"role": "user", "content": ""}], metadata={"map": lake_map})
        environment = FrozenLake(silent, seed=0)
        told = environment.get_init_state().state
        while told:
            word = EXAMPLES[len(played) + 1][1]
            played += [("user", str(told[0]["content"])), ("assistant", word)]
            told = environment.step({"role": "assistant", "content": word}).state
        assert environment.evaluate() == 1.0
        assert split_of(lake_map) == "train"
    assert tuple(played) == EXAMPLES


def test_lakes_depend_on_the_seed_alone():
    assert make_tasks("train", 20) == make_tasks("train", 40)[:20]
    assert maps(make_tasks("train", 20)) != maps(make_tasks("train", 20, seed=1))


def test_more_lakes_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setattr(tasks, "PATIENCE", 3)
    with pytest.raises(TaskReaderError, match=r"only \d+ of 100 different lakes"):
        make_tasks("validation", 100)


def test_a_way_that_no_lake_has_is_an_error():
    with pytest.raises(TaskReaderError, match=r"ways are \[2, 5\]"):
        make_tasks("train", 10, ways=[2, 5])


def test_the_file_that_the_command_writes_reads_back_as_the_same_tasks(tmp_path, monkeypatch):
    path = tmp_path / "lakes.jsonl"
    arguments = ["--split", "train", "--number", "15", "--seed", "3", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["tasks.py", *arguments])
    write_tasks()
    reader = TaskReaderConfig(jsonl=JsonlReaderConfig(training=FileConfig(file_path=str(path))))
    assert open_task_reader(reader).training_tasks() == make_tasks("train", 15, seed=3)


@pytest.mark.slow
def test_the_configuration_names_tasks_that_can_be_read():
    splits = open_task_reader(tutorial_config(CONF).task_reader).read()
    assert len(splits.validation) >= 96
    assert {task.env_type for task in splits.training} == {"frozenlake"}
    assert {task.metadata["way"] for task in splits.training} == {2, 3, 4}
    assert {task.metadata["way"] for task in splits.validation} == {4}
    assert 0.1 < (mean_baseline(splits.validation) or 0) < 0.25


async def test_the_agent_crosses_the_lake_in_four_turns(play: Play):
    task = make_tasks("train", 1)[0]
    group = await play(CONF, task, shortest_way(task.metadata["map"]))
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("success", 1.0)] * 2
    [timeline] = group.episodes[0].timelines
    assert [span.sampled for span in timeline.spans].count(True) == 4


async def test_an_agent_that_does_not_walk_earns_nothing(play: Play):
    group = await play(CONF, make_tasks("train", 1)[0], ["I would rather not."])
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("failed", 0.0)] * 2
