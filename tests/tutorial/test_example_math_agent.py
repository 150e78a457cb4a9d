"""The math agent: GSM8K rows, Python as a tool, a structured result, and the mathematical judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tutorial_stage import ROOT, Play, math_answer, tool_call

from astune.schema import Task
from tutorial.example_math_agent.math_agent import EXAMPLES, FinalResult
from tutorial.math_agent import ExampleMathLearn

CONF = "example_math_agent/math_agent.yaml"


@pytest.fixture
def janet(gsm8k) -> Task:
    row = json.loads((gsm8k / "test.jsonl").read_text().splitlines()[0])
    return Task(task_id="janet", main_query=row["question"], metadata=row)


async def test_the_agent_runs_code_and_is_judged_by_its_structured_result(play: Play, janet: Task):
    code = tool_call("execute_python_code", code="print((16 - 3 - 4) * 2)")
    right = await play(CONF, janet, [code, *math_answer(r"\boxed{18}")], workflow=ExampleMathLearn)
    assert [(e.status, e.raw_reward) for e in right.episodes] == [("success", 1.0)] * 2
    read = [node.content for node in right.episodes[0].forest.nodes if node.role == "tool"]
    assert read[2 * len(EXAMPLES)] == "<returncode>0</returncode><stdout>18\n</stdout><stderr></stderr>"
    wrong = await play(CONF, janet, math_answer(r"\boxed{9}"))
    assert [(e.status, e.raw_reward) for e in wrong.episodes] == [("failed", 0.0)] * 2


async def test_without_a_closing_sentence_an_episode_ends_with_its_answer(play: Play, janet: Task):
    code = tool_call("execute_python_code", code="print((16 - 3 - 4) * 2)")
    answer = math_answer(r"\boxed{18}")[0]
    group = await play("example_math_agent/worked.yaml", janet, [code, answer])
    assert [(e.status, e.raw_reward) for e in group.episodes] == [("success", 1.0)] * 2
    assert [len(episode.timelines) for episode in group.episodes] == [1, 1]


async def test_an_agent_that_never_answers_is_wrong_and_no_failure(play: Play, janet: Task):
    silent = await play(CONF, janet, [tool_call("execute_python_code", code="print(1)")] * 9)
    assert [(e.status, e.raw_reward) for e in silent.episodes] == [("failed", 0.0)] * 2


@pytest.mark.parametrize(("result", "fits"), [(r"\boxed{-3.5}", True), ("18", False), (r"\boxed{x}", False)])
def test_a_result_is_one_boxed_number(result: str, fits: bool):
    assert (FinalResult.model_validate_json if fits else _refused)(json.dumps({"result": result}))


def _refused(text: str) -> bool:
    with pytest.raises(ValueError, match="should match pattern"):
        FinalResult.model_validate_json(text)
    return True


def test_the_examples_print_what_they_show():
    for _question, code, printed in EXAMPLES:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout == f"{printed}\n"


@pytest.mark.slow
def test_it_trains_from_the_command_line_on_the_rows_that_were_downloaded(gsm8k_hub, tiny_folder, tmp_path):
    """As the page says: the download, then the experiment, which names no path of this machine."""
    settings = {
        "model.path": tiny_folder,
        "record_dir": tmp_path,
        "rollout.num_repeat": 2,
        "rollout.max_response_length_in_one_turn": 32,
        "trainer.tasks_per_step": 2,
        "trainer.total_steps": 2,
        "trainer.validation.max_tasks": 4,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    download = [str(ROOT / "scripts" / "download_dataset.py"), "--target=openai/gsm8k", "--path=DATA_PATH"]
    train = [str(ROOT / "launcher.py"), "--conf", str(ROOT / "tutorial" / CONF), *words]
    caches = {"ASTUNE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for command, hub in ((download, gsm8k_hub.address), (train, "http://127.0.0.1:9")):
        environ = {**os.environ, **caches, "HF_ENDPOINT": hub}
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "DATA_PATH/openai/gsm8k/main/test-00000-of-00001.parquet").is_file()
    [run] = (tmp_path / "math_agent").iterdir()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"train", "validation"} <= {line["kind"] for line in metrics}
