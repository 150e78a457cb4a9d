"""`astune.tune`, called with the objects of `agentscope.tuner` and its functions."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import astune
from astune.app import tuning
from astune.app.experiment import Experiment

FUNCTIONS = """
from types import SimpleNamespace


async def answer(task, model, auxiliary_models=None, logger=None):
    reply = await model([{"role": "user", "content": f"Say {task['number']}"}])
    return SimpleNamespace(response=reply, reward=None, metrics={"number": task["number"]})


async def judge(task, response, auxiliary_models=None, logger=None):
    text = "".join(block.get("text", "") for block in response.content)
    return SimpleNamespace(reward=float(len(text) % 2), metrics={})
"""


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """AgentScope's package, of which dspy, 215 MB for something else, is left out."""
    pytest.importorskip("agentscope")
    try:
        return importlib.import_module("agentscope.tuner")
    except ModuleNotFoundError as missing:
        if missing.name != "dspy":
            pytest.skip(f"this version of AgentScope has no tuner: {missing}")
    for name in [name for name in sys.modules if name.startswith("agentscope.tuner")]:
        monkeypatch.delitem(sys.modules, name)
    stub: Any = types.ModuleType("agentscope.tuner.prompt_tune")  # which alone imports dspy
    stub.tune_prompt = stub.PromptTuneConfig = None
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    return importlib.import_module("agentscope.tuner")


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tuned_functions.py").write_text(FUNCTIONS)
    for name, numbers in (("train", range(8)), ("test", range(100, 102))):
        rows = [json.dumps({"number": number}) for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    monkeypatch.delitem(sys.modules, "tuned_functions", raising=False)
    return importlib.import_module("tuned_functions")


@pytest.mark.slow
def test_a_function_of_agentscopes_tuner_is_trained_with_its_own_objects(tuner, functions, tiny_folder):
    run = astune.tune(
        workflow_func=functions.answer,
        judge_func=functions.judge,
        train_dataset=tuner.DatasetConfig(path="train.jsonl", total_epochs=2),
        eval_dataset=tuner.DatasetConfig(path="test.jsonl", split="test"),
        model=tuner.TunerModelConfig(model_path=str(tiny_folder), max_model_len=128),
        algorithm=tuner.AlgorithmConfig(group_size=2, batch_size=4, learning_rate=1e-5, eval_interval_steps=3),
        experiment_name="tuned",
        monitor_type="tensorboard",
        quiet=True,
        rollout={"max_response_length_in_one_turn": 8},
    )
    assert (run.status, run.path.parent.name) == ("finished", "tuned")
    config = run.config
    assert config.trainer.total_steps == 2 * 8 // 4
    assert (config.rollout.num_repeat, config.trainer.tasks_per_step, config.trainer.optim.lr) == (2, 4, 1e-5)
    assert (config.trainer.test_freq, config.trainer.algorithm.type) == (3, "grpo")
    assert [row["step"] for row in run.metrics("validation")] == [0, 3, 4]
    [first, *_] = run.episodes(step=1, split="train")
    assert first.task.metadata.keys() == {"number"}
    assert first.reward is not None


@pytest.mark.parametrize(
    ("more", "n_steps"),
    [
        ({}, 2 * 8 // 8),
        ({"trainer": {"tasks_per_step": 2}}, 2 * 8 // 2),
        ({"trainer.tasks_per_step": 2}, 2 * 8 // 2),
        ({"config_path": "tuned.yaml"}, 2 * 8 // 4),
        ({"config_path": "tuned.yaml", "algorithm": 1}, 2 * 8 // 1),
        ({"config_path": "tuned.yaml", "trainer.total_steps": 3}, 3),
    ],
)
def test_epochs_are_steps_of_the_batch_that_is_trained(functions, monkeypatch, more, n_steps):
    Path("tuned.yaml").write_text("astune: {trainer: {tasks_per_step: 4, total_steps: 5}}")
    more = dict(more)
    if size := more.pop("algorithm", None):
        names = ("group_size", "save_interval_steps", "eval_interval_steps")
        sizes = dict.fromkeys(names, 2) | {"batch_size": size, "learning_rate": 1e-5, "algorithm_type": "grpo"}
        more["algorithm"] = types.SimpleNamespace(**sizes)
    monkeypatch.setattr(tuning, "train", lambda config, **values: Experiment.of(config, values=values).config)
    dataset = types.SimpleNamespace(path="train.jsonl", name=None, split="train", total_epochs=2, total_steps=None)
    config = astune.tune(workflow_func=functions.answer, train_dataset=dataset, **more)
    assert config.trainer.total_steps == n_steps


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"auxiliary_models": {"critic": object()}}, "critic would have to be served"),
        ({"model": types.SimpleNamespace(tinker_config=object())}, "Tinker's service"),
        ({"model": types.SimpleNamespace(enable_thinking=False)}, "enable_thinking"),
        ({"eval_dataset": types.SimpleNamespace(path="test.jsonl")}, "without train_dataset"),
        ({"workflow_func": lambda task, model: None}, "cannot be named"),
    ],
)
def test_what_is_not_done_is_refused_before_anything_starts(functions, more, message):
    with pytest.raises(astune.ConfigError, match=message):
        astune.tune(**({"workflow_func": functions.answer} | more))


def test_a_function_stands_for_its_reference(functions):
    experiment = Experiment.of({}, values={"rollout": {"workflow": functions.answer}})
    assert experiment.config.rollout.workflow == "tuned_functions->answer"
