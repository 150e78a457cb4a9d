"""`astune sft`, from conversations in a file to a model that says them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from astune_command import astune
from taught import write_experiment

from astune.runs import RunDirectory, resolve_run

pytestmark = pytest.mark.slow

ANSWERS = {"Name a colour.": "Blue.", "Name a number.": "Seven hundred.", "Name a fruit.": "A ripe pear."}
WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Ask(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat(task.init_messages)
        right = answer["content"].strip() == task.metadata["messages"][1]["content"]
        return WorkflowOutput(reward=float(right))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    rows = [
        {"messages": [{"role": "user", "content": f"{asked} ({n})"}, {"role": "assistant", "content": answer}]}
        for asked, answer in ANSWERS.items()
        for n in range(8)
    ]
    write_experiment(folder / "learn.yaml", tiny_folder, rows, WORKFLOW, steps=40, lr=1e-2)
    return folder


def test_a_model_learns_to_say_what_it_is_shown(folder: Path) -> None:
    assert "sft" in astune(folder, "sft", "learn.yaml", "--dry-run")
    out = astune(folder, "sft", "learn.yaml")
    assert re.search(r"held-out success 0\.\d+ -> [01]\.\d+|held-out success", out)
    run = RunDirectory.open(resolve_run(folder / "launcher_record" / "learn"))
    lines = list(run.metrics())
    measured = [line.metrics["reward/success_rate"] for line in lines if line.kind == "validation"]
    assert measured[0] == 0.0
    assert measured[-1] == 1.0
    losses = [line.metrics["train/loss"] for line in lines if line.kind == "train"]
    assert losses[-1] < 0.1 < losses[0]
    balances = [line.metrics["balance/trained"] for line in lines if line.kind == "train"]
    assert min(balances) > 0
    assert "every one replays token for token" in astune(folder, "replay", str(run.path), "--check")


def test_a_run_that_ended_goes_on_as_what_it_was(folder: Path) -> None:
    run = resolve_run(folder / "launcher_record" / "learn")
    out = astune(folder, "--resume", str(run), "--set", "trainer.total_steps=42")
    assert "held-out success" in out
    assert [line.step for line in RunDirectory.open(run).metrics() if line.kind == "train"][-1] == 42


def test_reinforcement_begins_where_the_shown_model_is(folder: Path) -> None:
    astune(folder, "export", "launcher_record/learn", "--to", "shown_model")
    words = ["model.path=shown_model", "experiment_name=reinforced", "trainer.total_steps=1", "trainer.optim.lr=1e-6"]
    astune(folder, "--conf", "learn.yaml", *(part for word in words for part in ("--set", word)))
    lines = list(RunDirectory.open(resolve_run(folder / "launcher_record" / "reinforced")).metrics())
    measured = [line.metrics["reward/success_rate"] for line in lines if line.kind == "validation"]
    assert measured == [1.0, 1.0]
    [step] = [line.metrics for line in lines if line.kind == "train"]
    assert step["reward/success_rate"] > 0.5, "sampled, and not shown"
