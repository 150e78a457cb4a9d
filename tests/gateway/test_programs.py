"""Agents that are programs of their own: Python with OpenAI's SDK, and a shell script with curl."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from examples import some
from rollout_stage import build_stage
from rollout_stage import task as task_of
from waiting import eventually

from astune.config.schema import ProgramConfig
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.schema import ConfigError, Episode
from astune.workflow.agent_result import AgentResult
from astune.workflow.program import program_workflow, run_once

SDK_AGENT = """
import json, os, sys
from openai import OpenAI
task = json.load(sys.stdin)
assert task == json.load(open(os.environ["ASTUNE_TASK"]))
answer = OpenAI().chat.completions.create(
    model=os.environ["ASTUNE_MODEL"], messages=[{"role": "user", "content": task["main_query"]}], stream=True)
text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
open("left behind", "w").write(text)
print("working in", os.getcwd())
print(json.dumps({"final_answer": text, "reward": 7.0, "seen": sorted(task)}))
"""
ASKS_ONCE = """
import json, os, signal, sys
from http.client import HTTPConnection
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
gateway = HTTPConnection(url.hostname, url.port)
asked = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hi"}]})
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
gateway.request("POST", url.path + "/chat/completions", asked, headers)
assert gateway.getresponse().status == 200
print(json.dumps({"final_answer": "Four", "reward": 7.0}), flush=True)
"""
CURL_AGENT = """#!/bin/sh
curl -s "$OPENAI_BASE_URL/chat/completions" >/dev/null \\
  -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \\
  -d "{\\"model\\": \\"any\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"$1\\"}]}"
echo "the answer is $2"
"""


def play(renderer: Renderer, command: list[str], *, memory_mb: int | None = None, **rollout: Any) -> Episode:
    """The only episode of a program."""
    settings = ProgramConfig(command=command, memory_mb=memory_mb)
    ids = renderer.answer_ids([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], [])
    stage = build_stage(renderer, program_workflow(settings), replies=lambda *_: ids, **rollout)
    return asyncio.run(stage.play_one(metadata={"answer": "SECRET", "repo": "a/b"}))


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_a_program_with_openais_sdk_is_an_episode(renderer: Renderer, tmp_path: Path) -> None:
    agent = written(tmp_path / "agent.py", SDK_AGENT)
    episode = play(renderer, [sys.executable, agent, "{repo}"])
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "Four"
    assert episode.reward is not None
    assert episode.reward.raw_reward == 1.0  # the judge's, not the program's
    assert json.loads(episode.judge_inputs["stdout"].splitlines()[-1])["seen"] == [
        "init_messages",
        "main_query",
        "repo",
        "task_id",
    ]
    assert not Path(episode.judge_inputs["stdout"].split()[2]).exists()
    assert not list(faults(episode.forest, renderer))


def test_its_reward_counts_only_where_it_is_trusted(renderer: Renderer, tmp_path: Path) -> None:
    agent = written(tmp_path / "agent.py", ASKS_ONCE)
    episode = play(renderer, [sys.executable, agent], trust_program_reward=True)
    assert episode.reward is not None
    assert episode.reward.raw_reward == 7.0


def test_a_shell_script_with_curl_gets_fields_of_the_task(renderer: Renderer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    script = written(tmp_path / "agent.sh", CURL_AGENT)
    episode = play(renderer, [script, "{main_query}", "{repo} {unknown}"])
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "the answer is a/b {unknown}"


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\u2029"])
def test_a_line_of_json_may_hold_other_ends_of_lines(mark: str) -> None:
    result = {"final_answer": f"one{mark}two", "reward": 1.0}
    printed = "\n".join(["working\r", json.dumps(result, ensure_ascii=False), ""])
    assert AgentResult.printed(printed).values == result


def test_an_object_that_the_model_wrote_is_its_answer_and_no_result() -> None:
    printed = 'In JSON it is:\n{"total": 4}'
    assert AgentResult.printed(f"{printed}\n").values == {"final_answer": printed}


@pytest.mark.parametrize("last", ['{"is_success": true}', '{"reward": 5}', '{"metrics": [1]}'])
def test_a_result_without_a_final_answer_has_the_whole_text_as_one(last: str) -> None:
    printed = f"In JSON it is:\n{last}"
    assert AgentResult.printed(printed).values == {"final_answer": printed} | json.loads(last)
    assert AgentResult.answered(last).values == {"final_answer": last} | json.loads(last)


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        ("[1]", {}),
        ("5", {}),
        ('{"accuracy": "high", "steps": 3}', {"steps": 3.0}),
        ('{"a": NaN, "b": 1e999, "c": null, "d": [1], "e": true}', {"e": 1.0}),
        (f'{{"a": {"9" * 400}}}', {}),
    ],
)
def test_metrics_that_are_no_numbers_are_ignored_since_a_model_may_have_written_them(
    renderer: Renderer, tmp_path: Path, metrics: str, kept: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "astune.workflow.agent_result")
    agent = written(tmp_path / "agent.py", f"{ASKS_ONCE}print('{{\"metrics\": {metrics}}}')\n")
    episode = play(renderer, [sys.executable, agent])
    assert episode.status == "success", episode.error
    assert {name: value for name, value in episode.metrics.items() if name in ("steps", *"abcde", "accuracy")} == kept
    assert "metrics are named numbers" in caplog.text
    assert episode.judge_inputs["final_answer"].endswith("}")


def test_an_answer_beyond_the_largest_number_is_text_for_the_judge(renderer: Renderer, tmp_path: Path) -> None:
    agent = ASKS_ONCE.replace('json.dumps({"final_answer": "Four", "reward": 7.0})', "'{\"final_answer\": [1e999, 2]}'")
    episode = play(renderer, [sys.executable, written(tmp_path / "agent.py", agent)])
    assert episode.judge_inputs["final_answer"] == "[Infinity, 2]"


def test_a_program_that_fails_says_with_what(renderer: Renderer) -> None:
    episode = play(renderer, ["sh", "-c", "echo it broke >&2; exit 3"])
    assert episode.status == "error"
    assert "exit status 3" in (episode.error or "")
    assert "it broke" in (episode.error or "")


OWN_ENDS = {
    "an exception": "json.loads('what the model wrote')",
    "a status": "sys.exit(3)",
    "a segmentation fault": "os.kill(os.getpid(), signal.SIGSEGV)",
    "too much memory": "kept = bytearray(900 << 20); import time; time.sleep(60)",
}
ENDS_OF_OTHERS = {
    "told to try again": "sys.exit(75)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated, in a shell": "sys.exit(143)",
}


@pytest.mark.parametrize("how", some(OWN_ENDS, 2))
@pytest.mark.parametrize("trusted", [False, True])
def test_a_program_that_fails_after_it_asked_the_model_is_judged(
    renderer: Renderer, tmp_path: Path, how: str, trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What a model writes can make a program fail, and must not get its episode thrown away."""
    agent = written(tmp_path / "agent.py", ASKS_ONCE + OWN_ENDS[how])
    episode = play(renderer, [sys.executable, agent], memory_mb=600, trust_program_reward=trusted)
    assert episode.error is None
    assert episode.reward is not None
    assert episode.reward.raw_reward == (0.0 if trusted else 1.0)  # the judge goes by the answer
    assert episode.judge_inputs["exit_status"] != 0
    assert episode.metrics["agent_failed"] == 1.0


@pytest.mark.parametrize("how", ENDS_OF_OTHERS)
def test_a_program_that_others_ended_is_a_failed_attempt(renderer: Renderer, tmp_path: Path, how: str) -> None:
    agent = written(tmp_path / "agent.py", ASKS_ONCE + ENDS_OF_OTHERS[how])
    episode = play(renderer, [sys.executable, agent])
    assert episode.status == "error"
    assert "agent.py" in (episode.error or "") or sys.executable in (episode.error or "")


NESTS = """
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""


def test_what_a_program_leaves_in_its_folder_decides_nothing(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 folders within each other were a RecursionError of the cleanup, and so a failed attempt."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # in memory, where folders are removed in no time
    agent = written(tmp_path / "agent.py", ASKS_ONCE.replace("flush=True)", "os.getcwd(), flush=True)") + NESTS)
    episode = play(renderer, [sys.executable, agent])
    assert episode.error is None
    assert episode.reward is not None
    assert not Path(episode.judge_inputs["stdout"].split()[-1]).exists()


@pytest.mark.slow
def test_a_program_ends_with_its_episode_and_all_that_it_started(renderer: Renderer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    start = time.monotonic()
    episode = play(renderer, ["sh", "-c", f"sleep 100 & echo $! > {pid_file}; wait"], episode_timeout_s=10)
    assert episode.status == "error"
    assert time.monotonic() - start < 60
    assert is_gone(int(pid_file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
async def test_a_program_that_floods_its_output_is_cancelled_as_fast_as_another_and_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for begun in (tmp_path / "first", tmp_path / "second"):
        floods = f"while True: print('y' * 100_000); open({str(begun)!r}, 'w')"
        running = asyncio.ensure_future(
            run_once([sys.executable, "-c", floods], {"task_id": "t", "main_query": "q"}, {})
        )
        await asyncio.to_thread(eventually, begun.exists, "a flood")
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - began < 5.0
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_secrets_of_ours_do_not_reach_the_program(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-users-own")
    agent = written(tmp_path / "agent.py", ASKS_ONCE + "\nprint(dict(os.environ))")
    episode = play(renderer, [sys.executable, agent])
    assert episode.status == "success", episode.error
    assert "hf_secret" not in episode.judge_inputs["stdout"]
    assert "sk-users-own" not in episode.judge_inputs["stdout"]
    assert os.environ["OPENAI_API_KEY"] == "sk-users-own"


def test_a_program_that_is_not_there_is_found_out_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no program no-such-agent"):
        program_workflow(ProgramConfig(command=["no-such-agent"]))


def test_what_a_program_moved_into_another_session_ends_with_it(renderer: Renderer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hide = f"env -i setsid sleep 100 >/dev/null 2>&1 & echo $! > {pid_file}; exit 3"
    episode = play(renderer, ["sh", "-c", hide])
    assert "exit status 3" in (episode.error or "")
    assert is_gone(int(pid_file.read_text()))


def test_a_program_that_holds_too_much_memory_is_ended_and_named(renderer: Renderer) -> None:
    code = "import time; kept = bytearray(300 << 20); time.sleep(100)"
    settings = ProgramConfig(command=[sys.executable, "-c", code], memory_mb=200)
    (group,) = asyncio.run(build_stage(renderer, program_workflow(settings)).play([task_of()]))
    (episode,) = group.failed_attempts
    assert "MiB of memory and was ended" in (episode.error or "")
    assert "rollout.workflow.memory_mb" in (episode.error or "")


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from astune.processes.program import run_program
folder = Path(sys.argv[1])
command = ["sh", "-c", "setsid sleep 100 & echo $! > child; echo $$ > leader; mv leader ready; wait"]
asyncio.run(run_program(command, source=Path("/dev/null"), environment={"PATH": "/usr/bin:/bin"}, folder=folder))
"""


def test_a_program_does_not_outlive_a_trainer_that_was_killed(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)])
    eventually((tmp_path / "ready").exists, "the program runs")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    for name in ("ready", "child"):
        pid = int((tmp_path / name).read_text())
        eventually(lambda pid=pid: is_gone(pid), f"{name} has ended")


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True
