"""The tutorial that trains adapters: its tasks, its agent, and that only adapters are trained."""

from __future__ import annotations

import pytest
import yaml
from tutorial_stage import ROOT, Play, tutorial_config

from astune.schema import Task
from astune.task_reader import open_task_reader

CONF = "example_lora/lora.yaml"


def test_every_fifth_pair_is_held_out():
    splits = open_task_reader(tutorial_config(CONF).task_reader).read()
    assert (len(splits.training), len(splits.validation)) == (320, 80)
    asked = {task.main_query for task in splits.training}
    assert asked.isdisjoint(task.main_query for task in splits.validation)


@pytest.mark.parametrize(
    ("reply", "verdict"), [(r"20 + 14 = \boxed{34}", ("success", 1.0)), (r"\boxed{33}", ("failed", 0.0))]
)
async def test_the_agent_is_judged_by_what_it_boxes(reply: str, verdict: tuple[str, float], play: Play):
    task = Task(task_id="sum", main_query="What is 20 + 14?", metadata={"answer": "34"})
    group = await play(CONF, task, [reply])
    assert {(episode.status, episode.raw_reward) for episode in group.episodes} == {verdict}


def test_two_lines_of_the_experiment_are_about_adapters():
    text = (ROOT / "tutorial" / CONF).read_text()
    lines = [line for line in text.splitlines() if "# LoRA:" in line]
    assert [next(iter(yaml.safe_load(line))) for line in lines] == ["lora", "optim"]
    assert tutorial_config(CONF).model.lora.rank == 16
