"""`astune data measure`: how often a model succeeds in each task, and which tasks are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from astune_command import astune

from astune.task_reader.data_reader import tasks_in

pytestmark = pytest.mark.slow

WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Kinds(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat(task.init_messages or [{"role": "user", "content": task.main_query}])
        by_chance = len(answer["content"]) % 2
        return WorkflowOutput(reward=float({"easy": 1, "hard": 0, "medium": by_chance}[task.metadata["kind"]]))
"""


def test_tasks_of_a_medium_difficulty_are_kept(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"main_query": f"Say {n}.", "metadata": {"kind": ("easy", "hard", "medium")[n % 3]}} for n in range(9)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "kinds.py").write_text(WORKFLOW)
    experiment = {
        "model": {"path": str(tiny_folder), "dtype": "float32", "device": "cpu"},
        "trainer": {"validation": {"temperature": 0}},  # which is not how training samples
        "rollout": {"workflow": "kinds.py->Kinds", "max_model_len": 256, "max_response_length_in_one_turn": 12},
    }
    (tmp_path / "kinds.yaml").write_text(json.dumps({"astune": experiment}))
    words = ("data", "measure", "tasks.jsonl", "--conf", "kinds.yaml", "--tries", "16")
    assert "9 tasks would be measured" in astune(tmp_path, *words, "--dry-run")
    out = astune(tmp_path, *words, "--out", "all.jsonl")
    assert "9 of 9 tasks, 0 not measured" in out
    rates = {task.metadata["kind"]: task.metadata["success_rate"] for task in tasks_in(tmp_path / "all.jsonl")}
    assert (rates["easy"], rates["hard"]) == (1.0, 0.0)
    assert 0 < rates["medium"] < 1
    astune(tmp_path, *words, "--between", "0.05", "0.95", "--out", "medium.jsonl")
    assert {task.metadata["kind"] for task in tasks_in(tmp_path / "medium.jsonl")} == {"medium"}
