"""`astune check numerics` as a user meets it: table, verdict and exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from astune.cli.app import run
from astune.engine.local.in_process import InProcessEngine
from astune.schema import Completion

ROOT = Path(__file__).parents[2]
CALCULATOR = "tutorial/example_calculator/calculator.yaml"
AGENT = """
from astune.workflow import Workflow, WorkflowOutput

class Agent(Workflow):
    async def execute(self, task, proxy):
        reply = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(len(reply["content"]) % 2))
"""


@pytest.fixture
def conf(tied_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"main_query": "How are you, {n}?"}}\n' for n in range(8)))
    experiment = {
        "model": {"path": str(tied_folder), "device": "cpu", "dtype": "float32"},
        "engine": {"kv_cache_gb": 0.1},
        "task_reader": {"jsonl": {"training": {"file_path": str(tmp_path / "tasks.jsonl")}}},
        "rollout": {
            "workflow": f"{tmp_path / 'agent.py'}->Agent",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 12,
        },
    }
    file = tmp_path / "conf.yaml"
    file.write_text(yaml.safe_dump({"astune": experiment}))
    return file


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run(["check", "numerics", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_an_engine_that_agrees_ends_with_0_and_writes_nothing(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    status, out, _ = call(capsys, conf, "--steps", 3, "--tasks", 2)
    assert status == 0, out
    assert "0 (step 1)" in out
    assert "2 (step 3)" in out
    assert "5e-05" in out
    assert "agree" in out.splitlines()[-1]
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} == before


def test_one_that_does_not_ends_with_1_and_the_cause(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = InProcessEngine.generate

    async def cooler(self, prompt_ids, params, *, session) -> Completion:
        return await honest(self, prompt_ids, replace(params, temperature=0.7), session=session)

    monkeypatch.setattr(InProcessEngine, "generate", cooler)
    status, out, _ = call(capsys, conf)
    assert status == 1
    assert "beyond the limit: mean difference" in out
    assert "cause: temperature: the recorded probabilities are those at temperature 0.7" in out
    assert "what was tried" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "rollout.top_p=0.9"], "set it to 1 for training"),
        (["--set", "rollout.temprature=1"], "rollout.temperature"),
        (["--steps", "1"], "--steps"),
        (["--tasks", "5"], "take fewer"),
        (["--set", "engine.quantization=int8"], "set it to none for the comparison"),
    ],
)
def test_what_the_configuration_or_the_flags_get_wrong_ends_with_2(
    conf: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    status, _, err = call(capsys, conf, *arguments)
    assert status == 2
    assert said in err


@pytest.mark.slow
def test_the_real_model_agrees_with_itself_on_the_calculator(smol_folder: Path) -> None:
    """The documented command, with fewer tasks."""
    done = subprocess.run(
        [
            sys.executable,
            "launcher.py",
            "check",
            "numerics",
            CALCULATOR,
            "--tasks",
            "2",
            "--set",
            f"model.path={smol_folder}",
        ],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree" in done.stdout.splitlines()[-1]
