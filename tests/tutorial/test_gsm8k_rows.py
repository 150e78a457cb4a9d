"""GSM8K's real rows through reader, math workflow and judge, with a scripted model in place of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tutorial_stage import Play, math_answer, tutorial_config

from astune.config.schema import HuggingFaceReaderConfig, TaskReaderConfig
from astune.schema import Task
from astune.scoring.math_answer import after_marker
from astune.task_judge import MathAnswerAsJudge
from astune.task_reader.task_reader_base import TaskReaderHuggingFace, TaskSplits

CONF = "example_math_agent/math_agent.yaml"


@pytest.fixture(scope="session")
def splits(gsm8k_folder: Path) -> TaskSplits:
    """All rows, as `dataset_path` reads them."""
    data = HuggingFaceReaderConfig(dataset_path=str(gsm8k_folder), subset="main", validation_split="test")
    return TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=data)).read()


@pytest.fixture(scope="session")
def held_out(splits: TaskSplits) -> list[Task]:
    return splits.validation


@pytest.mark.slow
def test_every_reference_answer_is_right_and_any_other_one_wrong(splits: TaskSplits):
    judge = MathAnswerAsJudge(tutorial_config(CONF))
    tasks = splits.training + splits.validation
    assert len(tasks) == 8792

    def is_right(task: Task, answer: str) -> bool:
        inputs = {"task_core_arg": SimpleNamespace(task=task), "final_answer": answer}
        return judge.compute_reward(inputs).is_success

    assert [task.task_id for task in tasks if not is_right(task, task.metadata["answer"])] == []
    assert [task.task_id for task in tasks if is_right(task, task.metadata["answer"] + "1")] == []


@pytest.mark.parametrize("row", [0, 1, 700, 1318])
async def test_a_real_row_is_asked_answered_and_judged(play: Play, held_out: list[Task], row: int):
    task = held_out[row]
    reference = after_marker(task.metadata["answer"])
    right = await play(CONF, task, math_answer(rf"\boxed{{{reference.replace(',', '')}}}"))
    assert [(e.status, e.raw_reward) for e in right.episodes] == [("success", 1.0)] * 2
    asked = json.dumps([node.content for node in right.episodes[0].forest.nodes], ensure_ascii=False)
    assert json.dumps(task.main_query, ensure_ascii=False)[1:-1] in asked
    assert task.metadata["answer"].partition("\n")[0] not in asked
    wrong = await play(CONF, task, math_answer(r"\boxed{-987654}"))
    assert [(e.status, e.raw_reward) for e in wrong.episodes] == [("failed", 0.0)] * 2
