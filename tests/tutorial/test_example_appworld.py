"""The AppWorld tutorial: its agent on the real engine, played by scripts, and by a model from the command line."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from appworld_stage import COMPLETE, WRITE_EGGS, WRITE_MILK, fenced, serving
from astune_command import astune
from ports import free_port
from service_stage import Service
from tutorial_stage import ROOT, Play
from viewer_stage import require_shown

from astune.config import load_config
from astune.runs import RunDirectory, resolve_run
from astune.schema import Task
from astune.task_reader import open_task_reader
from tutorial.example_appworld.appworld import EXAMPLES

CONF = "example_appworld/appworld.yaml"


@pytest.fixture(scope="module")
def service(appworld_python: Path, appworld_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(appworld_python, appworld_root, tmp_path_factory.mktemp("temporary")) as service:
        yield service


@pytest.fixture
def groceries(service: Service) -> Task:
    return Task(task_id="groceries_1", main_query="groceries_1", env_type="appworld", metadata={"env_url": service.url})


@pytest.mark.slow
def test_the_tasks_come_from_the_service(service):
    reader = load_config(ROOT / "tutorial" / CONF, [f"task_reader.env_service.env_url={service.url}"]).task_reader
    splits = open_task_reader(reader).read()
    assert [task.task_id for task in splits.training] == ["travel_1", "groceries_1"]
    assert [task.task_id for task in splits.validation] == ["music_1"]


@pytest.mark.slow
async def test_a_scripted_agent_that_does_the_request_is_rewarded(play: Play, groceries: Task):
    replies = ["Let me see.", f"I write the note.\n{fenced(WRITE_MILK)}", fenced(COMPLETE)]
    group = await play(CONF, groceries, replies)
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("success", 1.0)] * 2
    read = [node.content for node in group.episodes[0].forest.nodes if node.role == "user"]
    assert read[-3].startswith("I am Joe Hill")
    assert read[-2].startswith("There is no code in your answer.")
    assert read[-1] == "Output:\n```\nExecution successful.\n```"


@pytest.mark.slow
async def test_one_that_does_it_wrongly_is_not(play: Play, groceries: Task):
    group = await play(CONF, groceries, [fenced(WRITE_EGGS), fenced(COMPLETE)])
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("failed", 0.0)] * 2


@pytest.mark.slow
async def test_a_model_that_writes_nonsense_is_answered_until_its_turns_are_over(play: Play, groceries: Task):
    group = await play(CONF, groceries, ["Milk :: truffles", "```python\nassert esethas<script>\n```", ""] * 3)
    assert {episode.status for episode in group.episodes} <= {"failed", "truncated"}
    assert [episode.raw_reward for episode in group.episodes] == [0.0, 0.0]


@pytest.mark.slow
def test_the_example_is_one_that_the_engine_plays(service):
    """Word for word: what its agent reads is what the environment answers to what it writes."""
    service.create("example", "travel_1")
    for (_, written), (role, expected) in zip(EXAMPLES[1::2], EXAMPLES[2::2], strict=False):
        data = service.step("example", written).json()["data"]
        assert (role, [message["content"] for message in data["state"]]) == ("user", [expected])
    assert service.step("example", EXAMPLES[-1][1]).json()["data"]["is_terminated"]
    assert service.post("evaluate", instance_id="example").json()["data"] == 1.0


@pytest.mark.e2e
def test_the_small_model_acts_in_the_world_from_the_command_line(smol_folder, request, tmp_path, capfd):
    """The tutorial's own file in debug, `--with-appworld`; AppWorld's environment is made where it is missing."""
    subprocess.run([ROOT / "scripts" / "make_peer_env.sh", "appworld"], check=True)
    root = request.getfixturevalue("appworld_root")
    (tmp_path / ".env").write_text(
        f"APPWORLD_PATH={root}\nAPPWORLD_ACTIVATION=source {ROOT}/.venv-appworld/bin/activate\n"
    )
    port = free_port()
    settings = {
        "model.path": smol_folder,
        "task_reader.env_service.env_url": f"http://127.0.0.1:{port}",
        "rollout.multi_turn.max_steps": 3,
        "rollout.max_response_length_in_one_turn": 48,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    conf = str(ROOT / "tutorial" / CONF)
    out = astune(tmp_path, "--conf", conf, "--backbone", "debug", "--with-appworld", *words)
    with capfd.disabled():
        print(f"\n{out}")  # noqa: T201 (shown as a user sees it)
    assert "companion appworld: process" in out
    assert "I am Joe Hill" in out
    run = RunDirectory.open(resolve_run("appworld", record_dir=tmp_path / "launcher_record"))
    assert run.info().status == "finished"
    assert "hosts appworld on" in (run.path / "companions" / "appworld.log").read_text()
    with run.episodes() as episodes:
        played = list(episodes.episodes())
    assert sorted(episode.task.task_id for episode in played) == ["groceries_1", "travel_1"]
    assert all(episode.status in ("failed", "truncated", "success") for episode in played)
    assert all(episode.timelines for episode in played)
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0
    require_shown(run.path)
