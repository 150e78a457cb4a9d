"""`make e2e-prompts`: a search for prompts with the real GEPA, a scripted agent and a model that reflects by rules.

The agent's answer depends on its prompt alone, as a capable model's would: what is shown is that tasks, judge, records,
reflection and measurements fit together. No figure of it says anything about language models.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from answering import answering
from astune_command import astune

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


def reflecting(instruction: str, question: Any) -> str:
    """It adds one rule that the prompt lacks, as somebody would who reads the feedback."""
    prompt = str(question)
    for rule in ("say please", "say thank you", "name the cup"):
        if rule not in prompt:
            kept = re.findall(r"Order tea[^`\n]*", prompt)
            return f"```\n{kept[0] if kept else 'Order tea.'} Always {rule}.\n```"
    return "```\nOrder tea.\n```"


def test_a_search_ends_with_better_prompts_and_the_measurements_of_both(tiny_folder: Path, tmp_path: Path) -> None:
    rows = [{"main_query": f"Order tea for table {n}.", "metadata": {"answer": "tea"}} for n in range(30)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[20:]))
    (tmp_path / "prompted.py").write_text(WORKFLOW)
    with answering(reflecting) as server:
        experiment = {
            "model": {"path": str(tiny_folder), "device": "cpu"},
            "helper_model": {"base_url": server.url, "model": "m", "cache": False},
            "task_reader": {
                "type": "jsonl",
                "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}},
            },
            "rollout": {
                "workflow": "prompted.py->Prompted",
                "params": {"system_prompt": "Order tea."},
                "max_model_len": 512,
                "max_response_length_in_one_turn": 4,
            },
            "prompt_search": {"max_episodes": 120, "validation_tasks": 6},
        }
        (tmp_path / "tea.yaml").write_text(json.dumps({"astune": experiment}))
        assert "prompt_search" in astune(tmp_path, "optimize-prompt", "tea.yaml", "--dry-run")
        out = astune(tmp_path, "optimize-prompt", "tea.yaml")
    run = RunDirectory.open(resolve_run(tmp_path / "launcher_record" / "tea"))
    best = yaml.safe_load((run.path / "best_prompts.yaml").read_text())["astune"]["rollout"]["params"]["system_prompt"]
    assert all(rule in best for rule in ("say please", "say thank you", "name the cup")), best
    measured = [line.metrics["reward/success_rate"] for line in run.metrics() if line.kind == "validation"]
    assert measured == [0.0, 1.0]
    assert "best" in out
    assert sum(line.kind == "train" for line in run.metrics()) > 3
    assert all(line.metrics["balance/trained"] == 0 for line in run.metrics() if line.kind == "train")
