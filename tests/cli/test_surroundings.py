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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "reads"),
    [("pass", False), ("sys.stdout.close(), sys.stderr.close()", True), ("os.chdir('/')", True)],
    ids=["| head -1", "the agent closes sys.stdout", "the agent goes to another folder"],
)
def test_a_training_goes_on(before: str, reads: bool, tiny_folder: Path, tmp_path: Path):
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
    process = subprocess.Popen(
        [sys.executable, "-m", "astune", "--conf", "conf.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
