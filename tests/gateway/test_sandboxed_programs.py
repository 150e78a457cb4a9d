"""Agents that are programs, in the sandbox: unchanged ones train, and hostile ones reach nothing but their model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of
from test_programs import ASKS_ONCE, CURL_AGENT, SDK_AGENT, written
from waiting import eventually

from astune.config.schema import ProgramConfig
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.sandbox.jail import Jail
from astune.schema import ConfigError, Episode, SandboxError
from astune.workflow.program import program_workflow

SPY = """
import glob, json, os, sys
from http.client import HTTPConnection
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
def asked(key):
    gateway = HTTPConnection("127.0.0.1", url.port)
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hi"}]})
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    gateway.request("POST", url.path + "/chat/completions", body, headers)
    return gateway.getresponse().status
places = ["/proc/*/environ", "/tmp/**/*.json", "/scratch/*.json"]
paths = {os.path.realpath(path) for place in places for path in glob.glob(place, recursive=True)}
found = [open(path, errors="replace").read() for path in paths]
print(json.dumps({"final_answer": [asked(os.environ["OPENAI_API_KEY"]), asked("astune-guessed"), found]}))
"""


@pytest.fixture(autouse=True, scope="module")
def _confines() -> None:
    try:
        Jail([], 64).try_out()
    except SandboxError as cause:
        pytest.skip(f"this machine has no {cause.message}")


def play(
    renderer: Renderer, command: list[str], *, episodes: int = 1, timeout_s: float = 60, **settings: Any
) -> list[Episode]:
    """The episodes of a sandboxed program, at once."""
    program = ProgramConfig(command=command, sandboxed=True, **settings)
    ids = renderer.answer_ids([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], [])
    stage = build_stage(
        renderer, program_workflow(program), replies=lambda *_: ids, num_repeat=episodes, episode_timeout_s=timeout_s
    )
    (group,) = asyncio.run(stage.play([task_of(metadata={"answer": "SECRET", "repo": "a/b"})]))
    return [*group.episodes, *group.failed_attempts]


@pytest.mark.slow
def test_an_agent_with_openais_sdk_trains_unchanged(renderer: Renderer, tmp_path: Path) -> None:
    agent = written(tmp_path / "agent.py", SDK_AGENT)
    (episode,) = play(renderer, [sys.executable, agent, "{repo}"])
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "Four"
    assert "working in /scratch/work" in episode.judge_inputs["stdout"]
    assert episode.forest.sampled_tokens()
    assert not list(faults(episode.forest, renderer))


def test_a_shell_script_with_curl_trains_unchanged(renderer: Renderer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    script = written(tmp_path / "agent.sh", CURL_AGENT)
    (episode,) = play(renderer, [script, "{main_query}", "{repo} {unknown}"])
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "the answer is a/b {unknown}"
    assert episode.forest.sampled_tokens()


def test_episodes_beside_each_other_share_nothing_but_the_gateway(renderer: Renderer, tmp_path: Path) -> None:
    agent = written(tmp_path / "spy.py", SPY)
    for episode in play(renderer, [sys.executable, agent], episodes=3):
        assert episode.status == "success", episode.error
        own, guessed, found = episode.judge_inputs["final_answer"]
        assert (own, guessed) == (200, 401)
        assert len(found) == 1  # its own task
        assert json.loads(found[0])["task_id"] == "t"


def test_too_much_memory_ends_it_and_is_named(renderer: Renderer) -> None:
    code = "import time; kept = bytearray(300 << 20); time.sleep(100)"
    episodes = play(renderer, [sys.executable, "-c", code], memory_mb=200)
    assert "MiB of memory and was ended" in (episodes[0].error or "")


@pytest.mark.slow
def test_an_episode_that_is_over_ends_all_that_its_program_started(renderer: Renderer) -> None:
    mark = f"over-{uuid.uuid4().hex}"
    episode, *_ = play(renderer, ["sh", "-c", f"setsid sh -c 'sleep 100; : {mark}' & sleep 100; : {mark}"], timeout_s=2)
    assert episode.status == "error"
    eventually(lambda: not processes_called(mark), "no process of the program is left")


LAUNCHER = """
import asyncio, sys
from astune.sandbox.jail import Jail
from astune.workflow.program import run_once, variables_of
command = ["/bin/sh", "-c", "setsid sh -c 'sleep 100; : " + sys.argv[1] + "' & sleep 100; : " + sys.argv[1]]
asyncio.run(run_once(command, {}, variables_of("http://127.0.0.1:9/v1", "k", "m"), jail=Jail([], 64)))
"""


@pytest.mark.slow
def test_a_program_does_not_outlive_a_trainer_that_was_killed() -> None:
    mark = f"killed-{uuid.uuid4().hex}"
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, mark])
    inside = lambda: [pid for pid in processes_called(mark) if pid != launcher.pid]  # noqa: E731
    eventually(lambda: len(inside()) >= 4, "guardian, jail and program run")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    eventually(lambda: not inside(), "all have ended")


def processes_called(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_modules_beside_the_agent_are_shown_where_they_are_named(renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "helper.py").write_text("WORD = 'helped'")
    imports = f"sys.path.insert(0, {str(tmp_path)!r})\nfrom mine.helper import WORD\nprint(WORD)"
    agent = written(tmp_path / "agent.py", ASKS_ONCE + imports)
    (episode, *_) = play(renderer, [sys.executable, agent])
    assert "No module named 'mine'" in episode.judge_inputs["stderr"]
    (episode,) = play(renderer, [sys.executable, agent], readable=[str(tmp_path / "mine")])
    assert episode.judge_inputs["stdout"].endswith("helped\n")


def test_what_the_sandbox_does_not_show_is_found_out_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    with pytest.raises(ConfigError, match="there is no missing"):
        program_workflow(ProgramConfig(command=["sh"], sandboxed=True, readable=["missing"]))
    odd = tmp_path / "bin" / "agent"
    odd.parent.mkdir()
    odd.write_text("#!/bin/sh\n")
    odd.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(odd.parent), prepend=":")
        with pytest.raises(ConfigError, match=r"does not show .*/bin/agent"):
            program_workflow(ProgramConfig(command=["agent"], sandboxed=True))
        program_workflow(ProgramConfig(command=["agent"], sandboxed=True, readable=[str(odd.parent)]))


@pytest.mark.parametrize(
    "wrong", [{"url": "http://127.0.0.1:9/run", "sandboxed": True}, {"command": ["sh"], "readable": ["/opt"]}]
)
def test_settings_without_effect_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="goes with"):
        ProgramConfig.model_validate(wrong)
