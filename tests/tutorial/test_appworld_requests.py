"""The world of `make bench-appworld-learning`: what is held out, and that AppWorld's tests know right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorial_stage import Play

from benchmarks.appworld_requests import KINDS, WORDINGS, WORDS, solution, world
from benchmarks.bench_appworld_learning import demonstrated, served, task_of
from tutorial.example_appworld.appworld import EXAMPLES

CONF = "example_appworld/appworld.yaml"


def test_held_out_requests_share_no_word_that_is_asked_about():
    for kind, words in WORDS["train"].items():
        assert not set(words.split()) & set(WORDS["dev"][kind].split())
    assert all(len(wordings) == len(set(wordings)) for wordings in WORDINGS.values())


def test_a_world_has_a_request_of_each_kind_for_each_person():
    made = world({"shown": 2, "train": 3, "dev": 1}, seed=3)
    assert made == world({"shown": 2, "train": 3, "dev": 1}, seed=3)
    assert len({person["first_name"] for person in made["people"]}) == 6
    assert len(made["tasks"]) == 6 * len(KINDS)
    assert all("{" not in task["instruction"] for task in made["tasks"].values())


@pytest.mark.slow
async def test_demonstrations_pass_appworlds_tests_and_another_requests_code_does_not(
    appworld_python: Path, tmp_path: Path, play: Play
):
    made = world({"shown": 1, "dev": 1}, seed=3)
    with served(tmp_path, made) as url:
        tasks = await demonstrated(made, url)
        for asked, other in zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True):
            for kind, reward in ((asked, 1.0), (other, 0.0)):
                group = await play(CONF, task_of(f"dev0_{asked}", url), [solution(f"dev0_{kind}", made)])
                assert [episode.raw_reward for episode in group.episodes] == [reward] * 2, (asked, kind)
    for kind, task in zip(KINDS, tasks, strict=True):
        messages = task.metadata["messages"]
        assert [message["content"] for message in messages if message.get("weight") != 0] == [
            solution(f"shown0_{kind}", made)
        ]
        assert messages[0]["role"] == "system"
        assert [message["content"] for message in messages[1:-2]] == [text for _, text in EXAMPLES]
