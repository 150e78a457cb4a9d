"""Whole runs through the `astune` command: a real model gets better, and a killed run ends as if it had not been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
import yaml

from astune.engine.local.device import pick_dtype, takes_int8
from astune.runs import RunDirectory, resolve_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
INTERRUPTED = 130
IN_INT8 = pytest.mark.skipif(
    not takes_int8(pick_dtype("auto", torch.device("cpu"))), reason="no products in 8 bits here"
)

AGENT = '''
import os
import signal
from pathlib import Path

from astune.workflow import Workflow, WorkflowOutput

EXAMPLES = [("user", "A digit?"), ("assistant", "2"), ("user", "A digit?"), ("assistant", "7")]


class LargeDigit(Workflow):
    """Asked for a digit; 5 and above are right."""

    async def execute(self, task, proxy):
        shown = [{"role": role, "content": text} for role, text in EXAMPLES]
        reply = await proxy.achat([*shown, *proxy.init_messages])
        return WorkflowOutput(reward=float(reply["content"].strip()[:1] in set("56789")))


class TwoTurns(Workflow):
    """Two calls, rewarded by chance; sends its own process a signal where the file `fuse` counts down to zero."""

    async def execute(self, task, proxy):
        fuse = Path("fuse")
        if fuse.exists():
            left, name = fuse.read_text().split()
            fuse.write_text(f"{int(left) - 1} {name}")
            if left == "1":
                os.kill(os.getpid(), signal.Signals[name])
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "And again?"}]
        second = await proxy.achat(again)
        return WorkflowOutput(reward=float(len(first["content"] + second["content"]) % 2))
'''


def configure(folder: Path, workflow: str, model: Path, **settings: object) -> None:
    (folder / "agent.py").write_text(AGENT)
    for split, n in (("train", 40), ("held_out", 8)):
        (folder / f"{split}.jsonl").write_text(
            "".join(f'{{"main_query": "A digit? ({split} {i})"}}\n' for i in range(n))
        )
    experiment = {
        "model": {"path": str(model)},
        "task_reader": {
            "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held_out.jsonl"}}
        },
        "rollout": {
            "workflow": f"agent.py->{workflow}",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 6,
            "num_repeat": 8,
        },
        "trainer": {"tasks_per_step": 4, "test_freq": 100, **settings},
    }
    (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))


def astune(folder: Path, *arguments: str) -> int:
    command = [sys.executable, "-c", "from astune.cli import main; main()", *arguments]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode in (0, INTERRUPTED, -signal.SIGKILL), ended.stdout + ended.stderr
    return ended.returncode


def run_in(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record"))


@pytest.mark.parametrize("quantization", ["none", pytest.param("int8", marks=IN_INT8)])
def test_a_real_model_gets_better_at_what_is_rewarded(tmp_path: Path, smol_folder: Path, quantization: str):
    optim = {"lr": 3e-5, "warmup_steps": 1}
    configure(tmp_path, "LargeDigit", smol_folder, total_steps=6, optim=optim)
    assert astune(tmp_path, "--conf", "conf.yaml", "--set", f"engine.quantization={quantization}") == 0
    lines = [line.metrics for line in run_in(tmp_path).metrics() if line.kind == "train"]
    rewards = [metrics["reward/mean"] for metrics in lines]
    assert len(rewards) == 6
    assert fmean(rewards[-2:]) > fmean(rewards[:2]) + 0.2
    for metrics in lines:
        accounted = sum(
            count for name, count in metrics.items() if name.startswith("balance/") and name != "balance/sampled"
        )
        assert metrics["balance/sampled"] == accounted > 0
        assert metrics.get("train/versions_behind_0/tokens", 0) == metrics["balance/trained"]
        if metrics["balance/trained"]:  # not every group was rewarded alike
            assert 0 < metrics["train/logprob_diff_mean"] < metrics["train/logprob_diff_p99"] < 1


STEP, MEASUREMENT = 32, 8
"""Episodes of each."""


def test_a_run_that_was_broken_off_resumes_to_the_very_weights_of_an_unbroken_one(tmp_path: Path, tiny_folder: Path):
    breaks = {
        "unbroken": (None, 0),
        "killed in step 5": (f"{4 * STEP + 2 * MEASUREMENT + 19} SIGKILL", -signal.SIGKILL),
        "interrupted while step 4 is measured": (f"{4 * STEP + MEASUREMENT + 5} SIGINT", INTERRUPTED),
    }
    weights: list[bytes] = []
    for name, (fuse, status) in breaks.items():
        folder = tmp_path / name
        folder.mkdir()
        configure(folder, "TwoTurns", tiny_folder, total_steps=7, save_freq=2, test_freq=4, optim={"lr": 1e-2})
        if fuse is not None:
            (folder / "fuse").write_text(fuse)
        assert astune(folder, "--conf", "conf.yaml", "--set", "astune.deterministic=true") == status
        if fuse is not None:
            run = run_in(folder)
            # A kill may find the checkpoint of step 4 half written; an interruption waits for it.
            assert run.checkpoints.latest().step in ((4,) if status == INTERRUPTED else (2, 4))
            (folder / "fuse").unlink()
            assert astune(folder, "--resume", str(run.path)) == 0
        run = run_in(folder)
        steps = [(line.step, line.kind) for line in run.metrics()]
        assert [step for step, kind in steps if kind == "train"] == list(range(1, 8))
        assert [step for step, kind in steps if kind == "validation"] == [0, 4, 7]
        tasks = [(row.step, row.task_id) for row in run.episodes().list(split="train")]
        assert len(set(tasks)) == 7 * 4
        assert len({task for _, task in tasks}) == 7 * 4
        measured = [row.step for row in run.episodes().list(split="validation") if row.status != "error"]
        assert sorted(measured) == [step for step in (0, 4, 7) for _ in range(MEASUREMENT)]
        weights.append((run.checkpoints.latest().model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]
    assert weights[0] != (tiny_folder / "model.safetensors").read_bytes()
