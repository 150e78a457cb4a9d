"""`astune dpo`, from pairs of answers in a file to a model that prefers the chosen ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from astune_command import astune
from taught import write_experiment
from transformers import AutoModelForCausalLM, AutoTokenizer

from astune.runs import RunDirectory, described, resolve_run

pytestmark = pytest.mark.slow

PAIRS = {"a colour": ("Blue.", "Seven."), "a number": ("Twelve.", "Green."), "a fruit": ("A pear.", "A stone.")}
WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Ask(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(answer["content"].strip() == task.metadata["chosen"]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("dpo")
    rows = [
        {"prompt": f"Name {what} ({n}).", "chosen": chosen, "rejected": rejected}
        for what, (chosen, rejected) in PAIRS.items()
        for n in range(8)
    ]
    write_experiment(folder / "prefer.yaml", tiny_folder, rows, WORKFLOW, steps=16, lr=3e-3)
    return folder


def margins(model_folder: Path, rows: list[dict[str, Any]]) -> list[float]:
    """How much likelier than the rejected answers a model finds the chosen ones, computed without astune."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def likelihood(asked: str, answer: str) -> float:
        user = {"role": "user", "content": asked}
        prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        n_prompt = len(tokenizer(prompt).input_ids)
        ids = torch.tensor([tokenizer(prompt + answer + tokenizer.eos_token).input_ids])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, n_prompt - 1 : -1].log_softmax(-1)
        return float(logprobs.gather(1, ids[0, n_prompt:, None]).sum())

    return [likelihood(r["prompt"], r["chosen"]) - likelihood(r["prompt"], r["rejected"]) for r in rows]


def test_a_model_prefers_what_was_chosen(folder: Path, tiny_folder: Path) -> None:
    assert "dpo" in astune(folder, "dpo", "prefer.yaml", "--dry-run")
    astune(folder, "dpo", "prefer.yaml")
    run = RunDirectory.open(resolve_run(folder / "launcher_record" / "prefer"))
    lines = [line.metrics for line in run.metrics() if line.kind == "train"]
    assert lines[0]["train/loss"] == pytest.approx(0.693147, rel=1e-5)
    assert lines[-1]["train/loss"] < 0.2
    assert (lines[0]["train/chosen_preferred"], lines[-1]["train/chosen_preferred"]) == (0.0, 1.0)
    assert all(described(name) for name in lines[0])
    assert min(line["balance/trained"] for line in lines) > 0
    assert "every one replays token for token" in astune(folder, "replay", str(run.path), "--check")
    held_out = [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()]
    newest = run.checkpoints.latest()
    assert newest is not None
    after, before = margins(newest.model, held_out), margins(tiny_folder, held_out)
    assert min(after) > 2
    assert min(before) < 0 or max(before) < 2


def test_a_run_that_ended_goes_on_as_what_it_was(folder: Path) -> None:
    run = resolve_run(folder / "launcher_record" / "prefer")
    astune(folder, "--resume", str(run), "--set", "trainer.total_steps=18")
    lines = [line for line in RunDirectory.open(run).metrics() if line.kind == "train"]
    assert [line.step for line in lines] == list(range(1, 19))
    assert lines[-1].metrics["train/loss"] < 0.3, "margins are those to the model that the run started with"
    assert lines[-1].metrics["train/chosen_preferred"] == 1.0
