"""The tracker and the engine that pages show, in a run: written to files as they stand, and trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shown_files import ROOT, write_files

import astune

DOCS = ROOT / "docs" / "en"
AGENT = """
from astune import Task, TaskReaderBase, Workflow, WorkflowOutput


class Agent(Workflow):
    async def execute(self, task, proxy):
        await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(proxy.repeat % 3))


class Tasks(TaskReaderBase):
    def training_tasks(self):
        return [Task(str(number), f"Say {number}") for number in range(8)]

    def validation_tasks(self):
        return []
"""


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a page's experiment leaves out, in a folder with the files of its page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    rollout = {"workflow": "agent.py->Agent", "num_repeat": 4, "max_response_length_in_one_turn": 6}
    return {
        "model": {"path": tiny_folder, "dtype": "float32"},
        "rollout": rollout | {"max_model_len": 128},
        "task_reader": {"type": "agent.py->Tasks"},
        "trainer": {"total_steps": 2, "tasks_per_step": 2},
        "quiet": True,
    }


@pytest.mark.slow
def test_the_tracker_that_the_page_shows_writes_its_lines(settings, tmp_path):
    write_files(DOCS / "trackers.md", tmp_path)
    run = astune.train("own_tracker.yaml", **settings)
    lines = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert [(line["step"], line["reward"]) for line in lines] == [
        (row["step"], row["reward/mean"]) for row in run.metrics()
    ]


@pytest.mark.slow
def test_the_engine_that_the_page_shows_trains(settings, tmp_path):
    write_files(DOCS / "engines.md", tmp_path)
    run = astune.train("my_engine.yaml", **settings)
    assert [row["step"] for row in run.metrics("train")] == [1, 2]
    assert all(row["train/logprob_diff_mean"] < 1e-4 for row in run.metrics("train"))


@pytest.mark.slow
def test_the_reward_function_that_the_page_shows_trains_on_rows_of_a_data_set(settings, tmp_path, monkeypatch):
    write_files(DOCS / "coming_from.md", tmp_path)
    rows = [{"question": f"What is 2 + {n}?", "answer": f"2 + {n}\n#### {2 + n}"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings |= {
        "rollout": {"num_repeat": 2, "max_response_length_in_one_turn": 6},
        "task_reader": {"huggingface": {"dataset_path": "rows.jsonl", "subset": None, "validation_split": None}},
        "trainer": {"total_steps": 1, "tasks_per_step": 2},
    }
    run = astune.train("one_answer.yaml", **settings)
    assert {episode.raw_reward for episode in run.episodes(step=1)} == {0.0}
    assert len(run.episodes(step=1)) == 4

    monkeypatch.syspath_prepend(tmp_path)
    from one_answer import reward

    assert [reward(text, rows[1]) for text in (r"so \boxed{3}", r"so \boxed{4}", "3")] == [1.0, 0.0, 0.0]
