"""Tasks of an environment that is explored first, with a model of rules and a small world."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import house_world
import pytest
from answering import answering
from house_world import ROOMS, House
from rule_models import command, use_own_cache
from service_stage import running

from astune.data_generator import Draft
from astune.env_service.handle import open_environment
from astune.schema import EnvError, Task
from astune.task_reader.data_reader import tasks_in

HOUSE = f"{house_world.__file__}->House"
STEADY = f"{house_world.__file__}->SteadyHouse"


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smol_folder: Path) -> None:
    use_own_cache(tmp_path / "cache", monkeypatch)


def explorer(instruction: str, question: dict[str, Any]) -> Any:
    """Opens the rooms in turn, and sets as objective to find the thing of one; of some, what cannot be kept."""
    walked, number = question["steps"], question["try"]
    if "step" not in (walked or [{}])[0]:
        return {"action": f"open {ROOMS[len(walked) % 5]}"}
    step = walked[number % 5]
    reached = re.search(r"thing \S+-\d+|The door is \w+", step["observation"])
    text = reached[0] if reached else step["observation"]
    if (number + len(step["observation"])) % 7 == 6:
        text = "House"
    objective = f"Find out what is in room {step['step']}, in way {number}."
    return {"objective": objective, "step": step["step"], "reached": text}


def test_objectives_are_kept_where_executing_them_again_reaches_them(tmp_path: Path) -> None:
    House.opened = 0
    seeds = tmp_path / "worlds.jsonl"
    rows = [{"task_id": f"h{n}", "main_query": f"h{n}", "env_type": HOUSE} for n in range(4)]
    seeds.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with answering(explorer) as server:
        words = ["data", "expand", str(seeds), "--env", "local", "--out", str(tmp_path / "t.jsonl"), "--num", "12"]
        assert command([*words, "--set", f"helper_model.base_url={server.url}"]) == 0
    tasks = tasks_in(tmp_path / "t.jsonl") + tasks_in(tmp_path / "t.held_out.jsonl")
    assert len(tasks) == 12
    for task in tasks:
        assert "thing" in task.metadata["objective"]["reached"]
        assert task.metadata["actions"][-1].startswith("open ")
        assert task.env_type == HOUSE


@pytest.mark.slow
async def test_objectives_of_a_world_behind_a_service_are_made_and_judged_over_it(tmp_path: Path) -> None:
    seeds = tmp_path / "worlds.jsonl"
    seeds.write_text(
        "".join(json.dumps({"task_id": f"h{n}", "main_query": f"h{n}", "env_type": STEADY}) + "\n" for n in range(3))
    )
    with running(STEADY) as service, answering(explorer) as server:
        words = ["data", "expand", str(seeds), "--env", service.url, "--out", str(tmp_path / "t.jsonl"), "--num", "6"]
        assert await asyncio.to_thread(command, [*words, "--set", f"helper_model.base_url={server.url}"]) == 0
        tasks = tasks_in(tmp_path / "t.jsonl") + tasks_in(tmp_path / "t.held_out.jsonl")
        assert len(tasks) == 6
        for task in tasks:
            handle = open_environment(task.env_type, task, 0)
            assert handle is not None
            begun = await handle.create()
            assert begun.state[-1]["content"] == task.main_query
            rewards = [
                (await handle.step({"role": "assistant", "content": action})).reward
                for action in task.metadata["actions"]
            ]
            assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
            assert await handle.evaluate() == 1.0
            await handle.release()
        assert service.capacity()[0] == 0, "every instance is released"


async def test_an_objective_is_reached_by_what_is_observed_and_not_by_what_is_said() -> None:
    objective = {"world": {"task_id": "h1"}, "reached": "thing h1-4"}
    task = Task("made-1", main_query="Find the thing in the hall.", env_type=HOUSE, metadata={"objective": objective})
    handle = open_environment(HOUSE, task, 0)
    assert handle is not None
    begun = await handle.create()
    assert [message["content"] for message in begun.state] == ["Find the thing in the hall."]
    cheating = await handle.step({"role": "assistant", "content": "open thing h1-4"})
    assert (cheating.reward, cheating.is_terminated, await handle.evaluate()) == (0.0, False, 0.0)
    found = await handle.step({"role": "assistant", "content": "open hall"})
    assert (found.reward, found.is_terminated, await handle.evaluate()) == (1.0, True, 1.0)
    await handle.release()


def test_the_same_objective_in_two_worlds_is_two_tasks() -> None:
    drafts = [
        Draft("Open it.", "it is open", world, {"objective": {"world": {"task_id": world}, "reached": "it is open"}})
        for world in ("h1", "h2")
    ]
    assert len({draft.task().task_id for draft in drafts}) == 2
    assert drafts[0].task() == drafts[0].task()


def test_an_objective_of_another_form_is_named() -> None:
    for objective in ({}, {"world": {}}, {"world": {"task_id": "h1"}}, "reach it", None):
        task = Task("made-1", main_query="q", env_type=HOUSE, metadata={"objective": objective})
        with pytest.raises(EnvError, match=r"metadata\.objective"):
            open_environment(HOUSE, task, 0)


def test_examples_without_an_environment_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text('{"main_query": "q", "task_id": "plain"}\n')
    assert command(["data", "expand", str(seeds), "--env", "local", "--out", str(tmp_path / "t.jsonl")]) == 1
    assert "task plain has no environment" in " ".join(capsys.readouterr().err.split())
