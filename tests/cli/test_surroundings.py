"""What an agent does to its process, and a reader to its output: training goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from astune.runs import RunDirectory, resolve_run

AGENT = """
import os, sys
from astune import Workflow, WorkflowOutput

class Talks(Workflow):
    async def execute(self, task, proxy):
        {before}
        reply = await proxy.achat([{{"role": "user", "content": task.main_query}}])
        return WorkflowOutput(reward=len(reply["content"]) / 100)
"""


def started(before: str, tiny_folder: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """A training of three steps, with an agent that first does `before`."""
    (tmp_path / "agent.py").write_text(AGENT.format(before=before))
    (tmp_path / "tasks.jsonl").write_text("\n".join(f'{{"main_query": "Say {n}."}}' for n in range(8)))
    settings = {
        "model": {"path": os.path.relpath(tiny_folder, tmp_path)},
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {
            "workflow": "agent.py->Talks",
            "max_model_len": 512,
            "max_response_length_in_one_turn": 8,
            "num_repeat": 4,
        },
        "trainer": {"tasks_per_step": 2, "total_steps": 3},
    }
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump({"astune": settings}))
    return subprocess.Popen(
        [sys.executable, "-m", "astune", "--conf", "conf.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "reads"),
    [
        ("pass", False),
        ("sys.stdout.close(), sys.stderr.close()", True),
        ("os.close(1), os.close(2), open('taken-1', 'w'), open('taken-2', 'w')", True),
        ("os.chdir('/')", True),
        ("import tempfile; gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)", True),
    ],
    ids=[
        "| head -1",
        "the agent closes sys.stdout",
        "the agent closes 1 and 2",
        "the agent goes to another folder",
        "the agent goes to a folder and removes it",
    ],
)
def test_a_training_goes_on(before: str, reads: bool, tiny_folder: Path, tmp_path: Path):
    process = started(before, tiny_folder, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("run ")
    if reads:
        _, err = process.communicate(timeout=120)
    else:
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    run = RunDirectory.open(resolve_run(tmp_path / "launcher_record" / "conf"))
    assert [line.step for line in run.metrics() if line.kind == "train"] == [1, 2, 3]


@pytest.mark.slow
def test_an_agent_that_ends_the_process_fails_its_episode(tiny_folder: Path, tmp_path: Path):
    process = started("os._exit(0)", tiny_folder, tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "os._exit(0) of the whole process" in err
    assert "agent.py" in err


@pytest.mark.slow
def test_an_agent_may_fork_a_child_that_ends_so(tiny_folder: Path, tmp_path: Path):
    process = started("os.fork() or os._exit(0)", tiny_folder, tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


@pytest.mark.slow
def test_threads_of_an_agent_are_named_and_do_not_keep_the_process_alive(tiny_folder: Path, tmp_path: Path):
    before = "import threading, time; threading.Thread(target=time.sleep, args=(600,), name='keeper').start()"
    process = started(before, tiny_folder, tmp_path)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "threads of an agent's own: keeper" in err


@pytest.mark.slow
def test_a_command_with_closed_streams_does_its_work():
    command = f"{sys.executable} -m astune config explain rollout.num_repeat >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(["sh", "-c", command], env=environment, check=False, timeout=60).returncode == 0
