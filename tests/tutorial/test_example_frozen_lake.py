"""The frozen lake tutorial: its maps, and its agent."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tutorial_stage import ROOT, Play, tutorial_config

from astune.config.schema import FileConfig, JsonlReaderConfig, TaskReaderConfig
from astune.env_service.frozenlake import FrozenLake, shortest_way
from astune.schema import Task, TaskReaderError
from astune.task_reader import open_task_reader
from tutorial.example_frozen_lake.frozen_lake import EXAMPLES
from tutorial.example_frozen_lake.tasks import make_tasks, split_of

CONF = "example_frozen_lake/frozen_lake.yaml"


def maps(tasks) -> list[tuple[str, ...]]:
    return [tuple(task.metadata["map"]) for task in tasks]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_lake_can_be_crossed_within_the_turns(split):
    for task in make_tasks(split, 150):
        environment = FrozenLake(task, seed=0)
        environment.get_init_state()
        steps = [environment.step({"role": "assistant", "content": way}) for way in shortest_way(task.metadata["map"])]
        assert steps[-1].is_terminated
        assert environment.evaluate() == 1.0


def test_no_held_out_lake_is_trained_on_whatever_the_seeds():
    training = [*maps(make_tasks("train", 400)), *maps(make_tasks("train", 400, seed=1))]
    held_out = [*maps(make_tasks("validation", 100)), *maps(make_tasks("validation", 100, seed=2))]
    assert not set(training) & set(held_out)
    assert len(set(maps(make_tasks("train", 400)))) == 400
    assert {split_of(list(lake)) for lake in held_out} == {"validation"}


@pytest.mark.slow
def test_the_example_game_is_one_that_the_environment_plays():
    lake_map = ["SFFF", "FHFH", "FFFH", "HFFG"]
    environment = FrozenLake(
        Task(task_id="t", main_query="", init_messages=[{"role": "user", "content": ""}], metadata={"map": lake_map}),
        seed=0,
    )
    told = environment.get_init_state().state
    played: list[tuple[str, str]] = []
    for role, text in EXAMPLES:
        played.append((role, told[0]["content"] if role == "user" else text))
        if role == "assistant":
            told = environment.step({"role": "assistant", "content": text}).state
    assert tuple(played) == EXAMPLES
    assert environment.evaluate() == 1.0
    assert lake_map not in [task.metadata["map"] for task in make_tasks("validation", 400)]


def test_lakes_depend_on_the_seed_alone():
    assert make_tasks("train", 20) == make_tasks("train", 60)[:20]
    assert maps(make_tasks("train", 20)) != maps(make_tasks("train", 20, seed=1))


@pytest.mark.slow
def test_more_lakes_than_there_are_is_an_error():
    with pytest.raises(TaskReaderError, match=r"only \d+ of 100000 different lakes"):
        make_tasks("validation", 100_000)


def test_the_file_that_the_command_writes_reads_back_as_the_same_tasks(tmp_path):
    path = tmp_path / "lakes.jsonl"
    arguments = ["--split", "train", "--number", "15", "--seed", "3", "--output", str(path)]
    subprocess.run([sys.executable, "-m", "tutorial.example_frozen_lake.tasks", *arguments], cwd=ROOT, check=True)
    reader = TaskReaderConfig(jsonl=JsonlReaderConfig(training=FileConfig(file_path=str(path))))
    assert open_task_reader(reader).training_tasks() == make_tasks("train", 15, seed=3)


def test_the_configuration_names_tasks_that_can_be_read():
    splits = open_task_reader(tutorial_config(CONF).task_reader).read()
    assert len(splits.validation) >= 96
    assert {task.env_type for task in splits.training} == {"frozenlake"}


async def test_the_agent_crosses_the_lake_in_six_turns(play: Play):
    task = make_tasks("train", 1)[0]
    group = await play(CONF, task, shortest_way(task.metadata["map"]))
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("success", 1.0)] * 2
    [timeline] = group.episodes[0].timelines
    assert [span.sampled for span in timeline.spans].count(True) == 6


async def test_an_agent_that_does_not_walk_earns_nothing(play: Play):
    task = make_tasks("train", 1)[0]
    for replies in (["I would rather not."], ["left"] * 6):
        group = await play(CONF, task, replies)
        assert [(e.status, e.raw_reward) for e in group.episodes] == [("failed", 0.0)] * 2
