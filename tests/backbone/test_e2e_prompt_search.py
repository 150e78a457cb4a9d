"""`make e2e-prompts`: a search for prompts with the real GEPA, a scripted agent and a model that reflects by rules.

The agent's answer depends on its prompt alone, as a capable model's would: what is shown is that tasks, judge, records,
reflection, measurements, resuming and the table of four fit together. No figure of it says anything about language
models.
"""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from answering import answering
from astune_command import astune, start

from astune.runs import RunDirectory, resolve_run

pytestmark = pytest.mark.e2e

WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Prompted(Workflow):
    def __init__(self, config, system_prompt):
        super().__init__(config)
        self.system_prompt = system_prompt

    async def execute(self, task, proxy):
        await proxy.achat([{"role": "system", "content": self.system_prompt}, *task.init_messages])
        rules = ("say please", "say thank you", "name the cup")
        reward = sum(rule in self.system_prompt for rule in rules) / len(rules)
        return WorkflowOutput(reward=reward, is_success=reward == 1)
"""


RULES = ("say please", "say thank you", "name the cup")


def reflecting(instruction: str, question: Any) -> str:
    """It adds one rule that the prompt lacks, as somebody would who reads the feedback."""
    prompt = str(question)
    for rule in RULES:
        if rule not in prompt:
            kept = re.findall(r"Order tea[^`\n]*", prompt)
            return f"```\n{kept[0] if kept else 'Order tea.'} Always {rule}.\n```"
    return "```\nOrder tea.\n```"


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A folder with the experiment `tea.yaml`, whose helper model is still missing."""
    rows = [{"main_query": f"Order tea for table {n}.", "metadata": {"answer": "tea"}} for n in range(30)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[20:]))
    (tmp_path / "prompted.py").write_text(WORKFLOW)
    experiment = {
        "model": {"path": str(tiny_folder), "device": "cpu"},
        "helper_model": {"model": "m", "cache": False},
        "task_reader": {
            "type": "jsonl",
            "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}},
        },
        "rollout": {
            "workflow": "prompted.py->Prompted",
            "params": {"system_prompt": "Order tea."},
            "num_repeat": 8,
            "max_model_len": 512,
            "max_response_length_in_one_turn": 1,
        },
        "trainer": {
            "tasks_per_step": 4,
            "total_steps": 12,
            "test_freq": 12,
            "optim": {"lr": 0.02},
            "validation": {"num_repeat": 4},
        },
        "prompt_search": {"max_episodes": 120, "validation_tasks": 6},
    }
    (tmp_path / "tea.yaml").write_text(json.dumps({"astune": experiment}))
    return tmp_path


def best_prompt(run: Path) -> str:
    return yaml.safe_load((run / "best_prompts.yaml").read_text())["astune"]["rollout"]["params"]["system_prompt"]


def test_a_search_ends_with_better_prompts_and_the_measurements_of_both(folder: Path) -> None:
    with answering(reflecting) as server:
        asked = ("--set", f"helper_model.base_url={server.url}")
        assert "prompt_search" in astune(folder, "optimize-prompt", "tea.yaml", *asked, "--dry-run")
        out = astune(folder, "optimize-prompt", "tea.yaml", *asked)
    run = RunDirectory.open(resolve_run(folder / "launcher_record" / "tea"))
    best = best_prompt(run.path)
    assert all(rule in best for rule in RULES), best
    measured = [line.metrics["reward/success_rate"] for line in run.metrics() if line.kind == "validation"]
    assert measured == [0.0, 1.0]
    assert "best" in out
    steps = [line.metrics for line in run.metrics() if line.kind == "train"]
    assert len(steps) > 3
    assert all(step["balance/trained"] == 0 for step in steps)
    assert sum(step["search/helper_calls"] for step in steps) >= len(RULES)


def test_a_search_that_is_killed_again_and_again_ends_as_one_that_is_not(folder: Path) -> None:
    """Nothing is played or asked twice but what was under way, and the record is that of one run."""
    draw = random.Random(0)
    with answering(reflecting) as server:
        server.delay_s = 0.5
        asked = ("--set", f"helper_model.base_url={server.url}")
        astune(folder, "optimize-prompt", "tea.yaml", *asked, "--set", f"record_dir={folder / 'whole'}")
        [whole] = (folder / "whole" / "tea").iterdir()
        n_asked = len(server.bodies)
        words, killed = ["optimize-prompt", "tea.yaml", *asked], 0
        journal = Path("missing")
        for _ in range(6):
            process, until = start(folder, *words, together=True), time.monotonic() + 60
            seen = _size(journal)
            while process.poll() is None and _size(journal) <= seen and time.monotonic() < until:
                time.sleep(0.05)
                journal = next(folder.glob("launcher_record/tea/*/search.jsonl"), journal)
            time.sleep(draw.random())
            killed += process.poll() is None
            process.kill()
            process.communicate()
            words = ["--resume", str(journal.parent)]
        astune(folder, *words)
    assert killed >= 4
    assert best_prompt(journal.parent) == best_prompt(whole)
    assert journal.read_text() == (whole / "search.jsonl").read_text()
    one, other = (RunDirectory.open(path).metrics() for path in (journal.parent, whole))
    assert [(line.step, line.kind) for line in one] == [(line.step, line.kind) for line in other]
    assert len(server.bodies) - n_asked <= n_asked + killed


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_training_is_compared_with_better_prompts_and_with_both(folder: Path) -> None:
    """Half of the tasks need a rule, and all need a word of an even number of letters, which training teaches."""
    source = WORKFLOW.replace("reward = ", "ruled = ").replace(
        "reward=reward, is_success=reward == 1",
        "reward=0.8 * met + 0.2 * even, is_success=met and even",
    )
    lines = """
        even = len(answer["content"]) % 2 == 0
        met = ruled > 0 or int(task.main_query.split()[-1][:-1]) % 2 == 0
        return"""
    source = source.replace("await proxy.achat", "answer = await proxy.achat").replace("\n        return", lines)
    (folder / "prompted.py").write_text(source)
    with answering(reflecting) as server:
        asked = ("--set", f"helper_model.base_url={server.url}")
        astune(folder, "optimize-prompt", "tea.yaml", *asked, "--set", "experiment_name=searched")
    runs = folder / "launcher_record"
    [searched] = (runs / "searched").iterdir()
    found = ("--set", f"rollout.params.system_prompt={best_prompt(searched)}")
    enough = ("--set", "trainer.total_steps=40", "--set", "trainer.test_freq=40")  # in 12 nothing is learnt
    astune(folder, "--conf", "tea.yaml", "--set", "experiment_name=trained", *enough)
    astune(folder, "--conf", "tea.yaml", "--set", "experiment_name=both", *found, *enough)
    told = astune(folder, "report", str(searched), str(runs / "trained"), str(runs / "both"))
    print(told)  # noqa: T201 - the table
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in told.splitlines() if line.startswith("│")]
    assert [what for what, _ in rows] == ["start", "best prompts", "trained", "trained from the best prompts"]
    begun, prompted, trained, both = (float(rate) for _, rate in rows)
    assert begun < prompted < both
    assert begun < trained < both
