"""The first documents' files as they are: names are found, experiments resolve, agents and the judge run.

What takes a model and minutes is `make e2e-letter`: test_e2e_letter.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from letter_stage import ROOT, documented_names, experiment
from tutorial_stage import math_answer, tool_call

from astune.backbone.parts import load_parts
from astune.config import AstuneConfig, import_class, load_config
from astune.config.loader import APPWORLD_TASKS
from astune.engine.scripted import ScriptedEngine
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import Episode, Task
from astune.task_judge import JudgeBase, load_judge
from astune.task_judge.math_answer_as_judge import MathAnswerAndLlmAsJudge
from astune.task_reader import open_task_reader
from astune.task_reader.downloaded import note_download
from astune.workflow import AgentScopeLearnProtocol, Workflow


def test_every_name_of_the_documents_is_there(compat: Path):
    names = documented_names(compat)
    assert len(names) >= 8
    for name in names:
        if "->" in name:
            assert import_class(name, key="rollout.workflow", base=AgentScopeLearnProtocol)
        elif "/" in name:
            assert (ROOT / name).is_file(), name
        else:
            judge = f"astune.task_judge.math_answer_as_judge->{name}"
            assert import_class(judge, key="task_judge.judge_protocol", base=JudgeBase) is MathAnswerAndLlmAsJudge


@pytest.mark.parametrize(
    ("name", "tasks", "reader"),
    [("math_agent.yaml", None, "huggingface"), ("appworld.yaml", APPWORLD_TASKS, "env_service")],
)
def test_an_experiment_of_the_documents_resolves(
    name: str, tasks: Path | None, reader: str, compat: Path, tmp_path: Path, smol_folder: Path
):
    conf = experiment(compat, name, tmp_path, model=smol_folder)
    config = load_config(conf, tasks=tasks)
    assert config.task_reader.type == reader
    parts = load_parts(config, tmp_path, with_tasks=False)
    assert (parts.workflow.__module__.partition(".")[0], parts.judge is not None) == ("tutorial", True)


@pytest.mark.parametrize("folder", [None, "DATA_PATH/openai/gsm8k", "openai/gsm8k"])
def test_the_math_experiment_reads_what_was_downloaded(
    folder: str | None, compat: Path, gsm8k: Path, tmp_path: Path, smol_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without a `dataset_path`, as the document has it; with the folder; and with the id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    where = tmp_path / "DATA_PATH" / "openai" / "gsm8k"
    (where / "main").mkdir(parents=True)
    row = (gsm8k / "test.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (where / "main" / "train.jsonl").write_text(row, encoding="utf-8")
    note_download("openai/gsm8k", where)
    conf = experiment(compat, "math_agent.yaml", tmp_path, model=smol_folder)
    overrides = [] if folder is None else [f"task_reader.huggingface.dataset_path={folder}"]
    [task] = open_task_reader(load_config(conf, overrides).task_reader, base_dir=tmp_path).read().training
    assert task.metadata == json.loads(row)


async def play(config: AstuneConfig, task: Task, replies: Sequence[str], model: Path) -> Episode:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    workflow = import_class(config.rollout.workflow, key="rollout.workflow", base=Workflow)
    engine = ScriptedEngine([tokenizer.encode(reply, add_special_tokens=False) for reply in replies])
    pool = RolloutPool(engine, load_renderer(model), workflow, load_judge(config), config)
    [group] = await pool.run_groups([task], step=1, split="train", num_repeat=1, temperature=1.0)
    assert group.dropped is None, group.dropped
    return group.episodes[0]


def documented(workflow: str, judge: str, **rollout: Any) -> AstuneConfig:
    settings = {"workflow": workflow, "max_model_len": 2048, "max_attempts": 1} | rollout
    return AstuneConfig.model_validate({"rollout": settings, "task_judge": {"judge_protocol": judge}})


@pytest.mark.parametrize("judge", ["math", "documented"])
async def test_the_documents_math_agent_runs_code_and_gives_a_structured_result(
    judge: str, compat: Path, smol_folder: Path
):
    judges = {
        "math": "astune.task_judge.math_answer_as_judge->MathAnswerAndLlmAsJudge",
        "documented": f"{compat / 'judge.py'}->DocumentedJudge",
    }
    config = documented(f"{compat / 'math_workflow.py'}->ExampleMathLearn", judges[judge])
    task = Task(task_id="nine", main_query="How many eggs are left of 16?", metadata={"answer": "9"})
    replies = [tool_call("execute_python_code", code="print(16 - 7)"), *math_answer(r"\boxed{9}")]
    episode = await play(config, task, replies, smol_folder)
    assert (episode.status, episode.raw_reward) == ("success", 1.0)
    results = [str(node.content) for node in episode.forest.nodes if node.role == "tool"]
    assert "<returncode>0</returncode><stdout>9" in results[0]
    asked_behind = len(replies) == 3  # not on AgentScope 1.0.7
    assert ("Successfully generated response." in results) == asked_behind


@pytest.mark.parametrize("judge", ["environment", "documented"])
async def test_the_documents_environment_agent_plays_with_a_built_in_environment(
    judge: str, compat: Path, smol_folder: Path
):
    judges = {
        "environment": "astune.task_judge.env_service_as_judge->EnvServiceJudge",
        "documented": f"{compat / 'judge.py'}->DocumentedJudge",
    }
    workflow = f"{compat / 'appworld_workflow.py'}->ExampleAgentScopeLearnProtocol"
    config = documented(workflow, judges[judge], agentscope_disable_toolcalls=True)
    task = Task(task_id="sum", main_query="What is 49 + 15?", env_type="calculator", metadata={"answer": "64"})
    episode = await play(config, task, ["<calc>49+15</calc>", r"\boxed{64}"], smol_folder)
    assert (episode.status, episode.raw_reward) == ("success", 1.0)
    asked = [node.role for node in episode.forest.nodes if "49 + 15" in str(node.content)]
    assert asked == ["user"]
    system, user = episode.forest.nodes[:2]
    assert (system.role, "<calc>" in system.content) == ("system", True)
    assert (user.role, user.content) == ("user", "What is 49 + 15?")
