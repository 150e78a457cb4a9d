"""`--backbone=debug` from outside: what it prints and keeps, where user code runs, and debuggers that stop in it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from astune_command import ROOT, astune, start
from debug_session import DebugSession
from ports import free_port
from terminal import on_a_terminal, read_until
from token_server import serving
from waiting import eventually

from astune.cli.app import run
from astune.engine.scripted import ScriptedEngine
from astune.engine.tokenizer import ModelTokenizer
from astune.runs import RunDirectory, balance_of, resolve_run

pytestmark = pytest.mark.slow

AGENT = """
import json
import threading

from astune import Workflow, WorkflowOutput
from astune.debug import bp
from astune.env_service import Environment, EnvState, EnvStep
from astune.task_judge import JudgeBase


def note(what):
    with open("threads.txt", "a") as file:
        print(what, threading.current_thread() is threading.main_thread(), file=file)


class World(Environment):
    def get_init_state(self):
        note("environment")
        return EnvState(state=[{"role": "user", "content": "Say something."}])

    def step(self, action):
        note("step")
        return EnvStep(state=[{"role": "user", "content": "Seen."}], reward=0.0, is_terminated=True)

    def evaluate(self, sparse=True):
        return 1.0


class Talker(Workflow):
    async def execute(self, task, proxy):
        note("workflow")
        messages = list(proxy.init_messages)
        first = await proxy.achat(messages)
        n_words = len(first["content"].split())
        bp("FIRST")
        proxy.gym_step(first)
        await proxy.achat([*messages, first, {"role": "user", "content": "And again?"}])
        await proxy.achat([*messages, {"role": "user", "content": "Otherwise?"}])
        proxy.update_judge_input_dictionary(n_words=n_words)


class Waits(Workflow):
    def execute(self, task, proxy):
        bp("FIRST")
        return WorkflowOutput(reward=1.0)


class Plain(Workflow):
    running = 0

    def execute(self, task, proxy):
        Plain.running += 1
        proxy.chat(proxy.init_messages)
        note(f"at once {Plain.running}")
        Plain.running -= 1
        return WorkflowOutput(reward=1.0)


class Broken(Workflow):
    async def execute(self, task, proxy):
        await proxy.achat(proxy.init_messages)
        raise KeyError("the agent's own mistake")


class Misreads(Workflow):
    async def execute(self, task, proxy):
        await proxy.achat(proxy.init_messages)
        return json.loads("{" + "the agent's own text")


class Stops(Workflow):
    async def execute(self, task, proxy):
        breakpoint()
        await proxy.achat(proxy.init_messages)


class Judge(JudgeBase):
    def compute_reward(self, judge_input_dictionary):
        note("judge")
        return float(judge_input_dictionary["n_words"] >= 0), True
"""
MAIN_AND_WHAT_IT_IMPORTED = """
import sys
from astune.cli import main
try:
    main()
finally:
    print("imported:", sorted({"torch", "transformers"} & sys.modules.keys()))
"""
DEBUG = ("--conf", "talk.yaml", "--backbone", "debug")
BREAKPOINT = next(number for number, line in enumerate(AGENT.splitlines(), 1) if "n_words = len" in line)
BP_CALL = BREAKPOINT + 1


@pytest.fixture
def folder(tmp_path, tiny_folder) -> Path:
    """A user's folder with an agent, a world and three tasks."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"main_query": "Task {n}.", "task_id": "t{n}", "env_type": "agent.py->World"}}\n' for n in range(3))
    )
    settings = {
        "model": {"path": str(tiny_folder)},
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {
            "workflow": "agent.py->Talker",
            "max_model_len": 512,
            "max_response_length_in_one_turn": 6,
        },
        "task_judge": {"judge_protocol": "agent.py->Judge"},
        "debug": {"debug_first_n_tasks": 2},
    }
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump({"astune": settings}))
    return tmp_path


def debug(folder: Path, *arguments: str, status: int = 0) -> str:
    return astune(folder, "--conf", "talk.yaml", "--backbone", "debug", *arguments, status=status)


def test_each_episode_is_shown_with_its_forks_and_timelines_and_kept_as_in_training(folder):
    out = debug(folder)
    for number in (0, 1):
        assert f"episode train-000000-t{number}-000-1" in out
    assert "t2" not in out
    assert out.count("fork after message 0: ") == 2
    assert out.count("timeline 2: ") == 2
    assert out.count("success, reward 1") == 2
    assert re.search(r"first answer \d+\.\d\d s after the start", out)
    run = resolved_run(folder)
    assert run.info().status == "finished"
    with run.episodes() as episodes:
        assert [(row.task_id, row.not_trained) for row in episodes.list()] == [("t0", "debug run"), ("t1", "debug run")]
        assert [len(episode.timelines) for episode in episodes.episodes()] == [2, 2]
    (line,) = run.metrics()
    balance = balance_of(line.metrics)
    assert balance is not None
    assert balance.difference == 0
    assert balance.dropped["debug run"] == balance.sampled > 0


def test_behind_a_server_it_is_token_for_token_without_torch_or_transformers(folder, tiny_folder):
    tokenizer = ModelTokenizer.load(tiny_folder)
    with serving(ScriptedEngine(lambda *_: tokenizer.encode("Well then."))) as server:
        server.encode = tokenizer.encode
        process = start(
            folder,
            *("--conf", "talk.yaml", "--backbone", "debug", "--set", "engine.type=vllm"),
            *("--set", f"engine.base_url={server.url}"),
            before=("-c", MAIN_AND_WHAT_IT_IMPORTED),
        )
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("Well then.") >= 6
    assert out.splitlines()[-1] == "imported: []"
    assert "every one replays token for token" in astune(folder, "replay", "talk", "--check")


def test_all_user_code_runs_in_the_thread_that_began(folder):
    debug(folder)
    where = set((folder / "threads.txt").read_text().splitlines())
    assert where == {"environment True", "workflow True", "step True", "judge True"}


def test_an_ordinary_workflow_has_a_thread_and_runs_one_episode_at_a_time(folder):
    debug(folder, "--set", "rollout.workflow=agent.py->Plain", "--set", "debug.debug_first_n_tasks=3")
    seen = [line for line in (folder / "threads.txt").read_text().splitlines() if line.startswith("at once")]
    assert seen == ["at once 1 False"] * 3


def test_when_every_episode_fails_it_says_where_and_exits_with_1(folder):
    out = debug(folder, "--set", "rollout.workflow=agent.py->Broken", status=1)
    assert "the agent's own mistake" in out
    shown = re.findall(r"Traceback.*?KeyError[^\n]*", out, re.S)[0]
    assert shown.count("  File ") == 1
    line = next(n for n, text in enumerate(AGENT.splitlines(), 1) if "raise KeyError" in text)
    assert f"agent.py:{line}" in out
    assert out.endswith("error: AstuneError: every episode ended in an error\nhint: the error of each is shown above\n")
    assert resolved_run(folder).info().status == "failed"


def test_what_fails_in_a_library_is_placed_in_the_agent_and_shown_from_there(folder):
    out = debug(folder, "--set", "rollout.workflow=agent.py->Misreads", status=1)
    line = next(n for n, text in enumerate(AGENT.splitlines(), 1) if "json.loads" in text)
    assert f"agent.py:{line}): JSONDecodeError: " in out.replace("\n", "")
    shown = re.findall(r"Traceback.*?JSONDecodeError[^\n]*", out, re.S)[0].splitlines()
    assert shown[1].endswith(f'agent.py", line {line}, in execute')
    assert "/astune/" not in "".join(shown)
    assert any(set(text.strip()) == {"^"} for text in shown)


def at_rest(thread: psutil.Process, switches: list[Any]) -> bool:
    """Return whether it has waited for one and the same thing since the last look. A wait for the GIL, in which `input`
    discards what a signal handler raises, begins anew every 5 ms.
    """
    switches.append(thread.num_ctx_switches())
    return thread.status() == psutil.STATUS_SLEEPING and switches[-1:] == switches[-2:-1]


@pytest.mark.parametrize("leaving", [b"q\n", b"\x03"])
def test_leaving_pdb_ends_the_run_as_an_interruption(folder, leaving):
    with on_a_terminal(
        folder, *DEBUG, "--set", "rollout.workflow=agent.py->Stops", "--set", "debug.debug_max_parallel=1"
    ) as (
        process,
        terminal,
    ):
        read_until(terminal, "(Pdb)")
        main_thread = psutil.Process(process.pid)  # Python's prompt loses a Ctrl-C that comes before it waits
        switches = []
        eventually(lambda: at_rest(main_thread, switches), "a prompt that waits", 120, process=process, every_s=0.1)
        os.write(terminal, leaving)
        out = read_until(terminal, "what was recorded is in")
        assert process.wait(60) == 130
    assert "(Pdb)" not in out
    assert "Traceback" not in out
    run = resolved_run(folder)
    assert run.info().status == "interrupted"
    with run.episodes() as episodes:
        assert [(row.task_id, row.status) for row in episodes.list()] == [("t0", "error")]


STAYS_BEFORE_ANYTHING_RUNS = """
import time
from astune.app import execution
execution.back_up = lambda *_, **__: time.sleep(600)
from astune.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_ended_before_anything_runs_is_interrupted(number, folder):
    stays = ("-c", STAYS_BEFORE_ANYTHING_RUNS)
    arguments = ("--conf", "talk.yaml", "--backbone", "debug")
    process = start(folder, *arguments, before=stays, XDG_STATE_HOME=str(folder / "state"))
    saved = eventually(
        lambda: list(folder.glob("launcher_record/talk/[0-9]*/config.yaml")),
        "a run",
        120,
        process=process,
        every_s=0.001,
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert RunDirectory.open(saved[0].parent).info().status == "interrupted"
    assert "Traceback" not in err


def test_what_fails_after_the_end_does_not_make_a_finished_run_a_failed_one(folder, monkeypatch):
    def broken(_episodes: object) -> None:
        raise OSError("the table cannot be drawn")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("astune.cli._debug.episodes_table", broken)
    with pytest.raises(OSError, match="cannot be drawn"):
        run(["--conf", "talk.yaml", "--backbone", "debug"])
    assert resolved_run(folder).info().status == "finished"


def test_a_debug_run_is_not_resumed(folder):
    debug(folder, "--set", "debug.debug_first_n_tasks=1")
    out = debug(folder, "--resume", status=2)
    assert "a debug run cannot be resumed" in out
    path = resolved_run(folder).path
    assert f"{path} is a debug run" in astune(folder, "--conf", "talk.yaml", "--resume", status=1)
    assert f"{path} is a debug run" in astune(folder, "chat", "talk", "-m", "hello", status=1)
    assert "debug run of 1 episode" in astune(folder, "report", "talk")
    trains = RunDirectory.create(path.parents[1], "talk")
    trains.close()
    debug(folder)
    plan = astune(folder, "--conf", "talk.yaml", "--resume", "--dry-run", "--set", "trainer.tasks_per_step=1")
    assert str(trains.path) in plan
    assert str(trains.path.relative_to(folder)) in astune(folder, "report", "talk")


def test_a_plan_of_it_is_printed(folder):
    out = debug(folder, "--dry-run")
    assert "the first 2 of 3 training tasks, one episode each, 4 at once" in out


def test_stored_episodes_are_judged_and_merged_again_without_the_model(folder):
    debug(folder)
    assert "2 episodes again: 0 come out differently" in astune(folder, "replay", "talk")
    (folder / "agent.py").write_text(
        AGENT.replace("return float(judge_input_dictionary", "return -float(judge_input_dictionary")
    )
    out = astune(folder, "replay", "talk")
    assert "train-000000-t0-000-1: reward 1 -> -1" in out
    assert "2 episodes again: 2 come out differently" in out


def test_advantages_are_computed_again_over_the_whole_step(folder):
    """Another reward of one task changes those of all, where the baseline is a step's."""
    debug(folder, "--set", "trainer.algorithm=reinforce_plus_plus")
    of_t0 = (
        'return -1.0 if judge_input_dictionary["task_core_arg"].task.task_id == "t0" else float(judge_input_dictionary'
    )
    (folder / "agent.py").write_text(AGENT.replace("return float(judge_input_dictionary", of_t0))
    out = astune(folder, "replay", "talk")
    assert "train-000000-t0-000-1: reward 1 -> -1, advantage" in out
    assert "train-000000-t1-000-1: advantage" in out


def test_a_judge_that_needs_the_world_cannot_judge_again(folder):
    judge = "task_judge.judge_protocol=astune.task_judge.env_service_as_judge->EnvServiceJudge"
    debug(folder, "--set", judge)
    out = astune(folder, "replay", "talk")
    assert "2 rewards were kept: JudgeError: EnvServiceJudge asks the environment, which is gone" in out
    assert "give the task an env_type" not in out
    assert "2 episodes again: 0 come out differently" in out


def test_an_endpoint_of_text_is_said_to_be_one_and_nothing_is_called_a_token(folder):
    with serving(None) as server:
        server.said += [{"role": "assistant", "content": "Well then."}] * 30
        out = debug(
            folder,
            *("--set", "engine.type=openai", "--set", f"engine.base_url={server.url}"),
            *("--set", "debug.debug_first_n_tasks=1"),
        )
    assert "the endpoint gives text only" in out
    assert "read and sampled are in characters" in out
    assert re.search(r"\d+ characters read", out)
    assert "tokens" not in out


def test_episodes_that_were_interrupted_are_never_judged(folder):
    run = RunDirectory.create(folder / "launcher_record", "talk")
    with run:
        (folder / "talk.yaml").rename(run.config_path) if not run.config_path.is_file() else None
        run.finish("interrupted")
    out = astune(folder, "replay", str(run.path), status=1)
    assert "it is interrupted, and those that it has will never be judged" in out


def test_a_debugger_stops_at_a_breakpoint_inside_the_workflow(folder):
    port = free_port()
    process = start(
        folder,
        *("--conf", "talk.yaml", "--backbone", "debug", "--set", "debug.debug_first_n_tasks=1"),
        before=("-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client", str(ROOT / "launcher.py")),
    )
    try:
        with DebugSession(port, breakpoints={folder / "agent.py": [BREAKPOINT]}) as debugger:
            path, line, function = debugger.stopped()
            assert (Path(path).name, line, function) == ("agent.py", BREAKPOINT, "execute")
            assert debugger.value_of("task.task_id") == "'t0'"
            assert debugger.value_of("len(messages)") == "1"
            debugger.to_the_end()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "success, reward 1" in out
    finally:
        process.kill()


def test_a_tag_that_is_armed_opens_pdb_on_a_terminal(folder):
    with on_a_terminal(folder, *DEBUG, "--db", r"OTHER\|FIRST", "--set", "debug.debug_first_n_tasks=1") as (
        process,
        terminal,
    ):
        read_until(terminal, "(Pdb)")
        os.write(terminal, b"p task.task_id, n_words >= 0\n")
        assert "('t0', True)" in read_until(terminal, "(Pdb)")
        os.write(terminal, b"c\n")
        read_until(terminal, "first answer")
        assert process.wait(60) == 0


def test_a_tag_that_is_armed_waits_for_a_debugger_where_there_is_no_terminal(folder):
    process = start(
        folder, *("--conf", "talk.yaml", "--backbone", "debug", "--db", "FIRST", "--set", "debug.debug_first_n_tasks=1")
    )
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "waits for a debugger" in line)
        match = re.search(r"breakpoint FIRST: process \d+ waits for a debugger on 127\.0\.0\.1:(\d+)", said)
        assert match is not None
        with DebugSession(int(match[1])) as debugger:
            path, line, _ = debugger.stopped()
            assert Path(path).name == "agent.py"
            assert line in (BP_CALL, BP_CALL + 1)
            assert debugger.value_of("n_words >= 0") == "True"
            debugger.to_the_end()
        process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        process.kill()


@pytest.mark.parametrize(("workflow", "attached"), [("Talker", False), ("Waits", False), ("Talker", True)])
def test_one_sigterm_ends_a_run_that_stands_at_a_breakpoint(workflow, attached, folder):
    words = ("--db", "FIRST", "--set", f"rollout.workflow=agent.py->{workflow}", "--set", "debug.debug_first_n_tasks=1")
    process = start(folder, "--conf", "talk.yaml", "--backbone", "debug", *words)
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "waits for a debugger" in line)
        if attached:
            with DebugSession(int(said.rpartition(":")[2])) as debugger:
                debugger.stopped()
                process.terminate()
                process.wait(30)
        else:
            process.terminate()
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert "Traceback" not in err
    finally:
        process.kill()
    assert resolved_run(folder).info().status == "interrupted"


def test_a_tag_that_is_not_armed_is_passed_over_and_an_empty_one_refused(folder):
    debug(folder, "--db", "OTHER", "--set", "debug.debug_first_n_tasks=1")
    assert "names no tag" in debug(folder, "--db", "|", status=2)


def resolved_run(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run("talk", record_dir=folder / "launcher_record"))
