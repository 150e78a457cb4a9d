"""The math agent: GSM8K rows, one answer, and the mathematical judge."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tutorial_stage import ROOT, Play, tutorial_config

from astune.config.schema import FileConfig, JsonlReaderConfig
from astune.schema import Task
from astune.task_reader import TaskReaderJsonl

CONF = "example_math_agent/math_agent.yaml"


@pytest.fixture
def janet(gsm8k) -> Task:
    row = json.loads((gsm8k / "test.jsonl").read_text().splitlines()[0])
    return Task(task_id="janet", main_query=row["question"], metadata=row)


async def test_the_agent_is_judged_by_what_it_boxes(play: Play, janet: Task):
    right = await play(CONF, janet, [r"16 - 3 - 4 = 9 eggs, 9 * 2 = 18, so \boxed{\$18.00}."])
    assert [(e.status, e.raw_reward) for e in right.episodes] == [("success", 1.0)] * 2
    wrong = await play(CONF, janet, [r"\boxed{9}"])
    assert [(e.status, e.raw_reward) for e in wrong.episodes] == [("failed", 0.0)] * 2


def test_the_configuration_reads_gsm8k_files(gsm8k):
    reader = tutorial_config(CONF).task_reader
    files = JsonlReaderConfig(
        training=FileConfig(file_path=str(gsm8k / "train.jsonl")),
        validation=FileConfig(file_path=str(gsm8k / "test.jsonl")),
        query_field=reader.jsonl.query_field,
    )
    splits = TaskReaderJsonl(reader.model_copy(update={"jsonl": files})).read()
    assert (len(splits.training), len(splits.validation)) == (7473, 1319)


@pytest.mark.slow
def test_it_trains_end_to_end_from_the_command_line(gsm8k, tiny_folder, tmp_path):
    settings = {
        "model.path": tiny_folder,
        "record_dir": tmp_path,
        "task_reader.jsonl.training.file_path": gsm8k / "train.jsonl",
        "task_reader.jsonl.validation.file_path": gsm8k / "test.jsonl",
        "rollout.num_repeat": 2,
        "rollout.max_response_length_in_one_turn": 16,
        "trainer.tasks_per_step": 2,
        "trainer.total_steps": 2,
        "trainer.validation.max_tasks": 4,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, str(ROOT / "launcher.py"), "--conf", str(ROOT / "tutorial" / CONF), *words]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "math_agent").iterdir()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"train", "validation"} <= {line["kind"] for line in metrics}
