"""An engine, a reader, an environment and a tracker of the user's own in one file, trained and debugged with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import astune
from astune.backbone.base import find_backbone
from astune.config import load_config
from astune.engine.own import load_engine_class, make_engine
from astune.schema import SamplingParams

OWN = '''
import asyncio
import random

import torch
from transformers import AutoModelForCausalLM

from astune import (
    Completion, EngineBase, Environment, EnvState, EnvStep, Task, TaskReaderBase, Tracker, Workflow, WorkflowOutput,
)


class Plain(EngineBase):
    """Samples with transformers alone, token by token, and nothing cached."""

    def __init__(self, folder, config, *, dtype="float32"):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.random = torch.Generator().manual_seed(config.seed)
        self.loaded = 0

    async def generate(self, prompt_ids, params, *, session):
        ids, logprobs = list(prompt_ids), []
        while len(logprobs) < params.max_tokens:
            with torch.no_grad():
                logits = self.model(torch.tensor([ids])).logits[0, -1].float() / (params.temperature or 1.0)
            logp = torch.log_softmax(logits, -1)
            token = int(torch.multinomial(logp.exp(), 1, generator=self.random))
            ids.append(token)
            logprobs.append(float(logp[token]))
            await asyncio.sleep(0)
            if token in params.stop_token_ids:
                return Completion(ids[len(prompt_ids):], logprobs, "stop")
        return Completion(ids[len(prompt_ids):], logprobs, "length")

    async def load_weights(self, source):
        weights = {name: tensor.detach().float().clone() for name, tensor in source.named_tensors()}
        missing = self.model.load_state_dict(weights, strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"}, missing
        self.loaded += 1


class OnlyAnswers(EngineBase):
    def __init__(self, folder, config, *, how="well"):
        self.how = how

    async def generate(self, prompt_ids, params, *, session):
        match self.how:
            case "well":
                return Completion([params.stop_token_ids[0]], [-0.5], "stop")
            case "short":
                return Completion([7, 7], [-0.5], "stop")
            case "long":
                return Completion([7] * (params.max_tokens + 1), [-0.5] * (params.max_tokens + 1), "length")
            case "above 0":
                return Completion([7], [0.5], "length")
            case "fails":
                raise KeyError("the engine's own mistake")
        return "text"


class Guess(Environment):
    """Says whether a guess is right."""

    quick = True

    def get_init_state(self):
        return EnvState([{"role": "user", "content": self.task.main_query}])

    def step(self, action):
        right = self.task.task_id[-1] in str(action["content"])
        return EnvStep([{"role": "user", "content": "yes" if right else "no"}], float(right), right)

    def evaluate(self, sparse=True):
        return 0.0


class Tasks(TaskReaderBase):
    def __init__(self, config, *, base_dir=None, number=8):
        super().__init__(config, base_dir=base_dir)
        self.number = number

    def training_tasks(self):
        return [Task(f"guess-{n}", "Guess a number.", env_type="own.py->Guess") for n in range(self.number)]

    def validation_tasks(self):
        return []


class Guesser(Workflow):
    async def execute(self, task, proxy):
        reply = await proxy.achat(proxy.init_messages)
        _, reward, _, _ = await proxy.agym_step(action={"role": "assistant", "content": reply["content"]})
        return WorkflowOutput(reward=reward + len(reply["content"]) % 3)
'''


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return {
        "experiment_name": "own",
        "model": {"path": str(tiny_folder), "dtype": "float32"},
        "engine": {"type": "own.py->Plain", "params": {"dtype": "float32"}},
        "rollout": {
            "workflow": "own.py->Guesser",
            "num_repeat": 4,
            "max_response_length_in_one_turn": 6,
            "max_model_len": 128,
        },
        "task_reader": {"type": "own.py->Tasks", "params": {"number": 6}},
        "trainer": {"total_steps": 2, "tasks_per_step": 2, "optim": {"lr": 1e-3, "warmup_steps": 0}},
    }


@pytest.mark.slow
def test_an_engine_a_reader_and_an_environment_of_ones_own_train(settings):
    run = astune.train(settings, quiet=True)
    rows = run.metrics("train")
    assert [row["step"] for row in rows] == [1, 2]
    assert {episode.task.env_type for episode in run.episodes()} == {"own.py->Guess"}
    assert all(row["train/logprob_diff_mean"] < 1e-4 for row in rows), "it has the trainer's weights in every step"
    versions = {
        node.weights_version for episode in run.episodes(step=2) for node in episode.forest.nodes if node.sampled
    }
    assert versions == {1}
    assert list((run.path / "backup" / "sources").rglob("own.py"))


@pytest.mark.slow
def test_all_of_them_are_found_beside_the_configuration_from_another_folder(settings, tmp_path, monkeypatch):
    (tmp_path / "conf.json").write_text(json.dumps({"astune": settings | {"backbone": "debug"}}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = astune.debug(tmp_path / "conf.json", quiet=True)
    assert {episode.task.env_type for episode in run.episodes()} == {f"{tmp_path}/own.py->Guess"}
    assert "error" not in {episode.status for episode in run.episodes()}


@pytest.mark.slow
def test_one_that_takes_no_weights_debugs_and_does_not_train(settings):
    settings["engine"] = {"type": "own.py->OnlyAnswers"}
    run = astune.debug(settings, quiet=True)
    assert run.status == "finished"
    with pytest.raises(astune.ConfigError, match="OnlyAnswers defines no load_weights"):
        astune.train(settings, quiet=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("short", "returned 2 tokens with 1 log-probabilities"),
        ("long", "returned 5 tokens with 5 log-probabilities, where at most 4"),
        ("above 0", "log-probabilities that are above 0"),
        ("fails", r"OnlyAnswers\.generate \(.*own\.py:\d+\): KeyError"),
        ("in words", r"OnlyAnswers\.generate returned 'text'"),
    ],
)
async def test_what_breaks_the_contract_is_named(settings, tmp_path, how, message):
    config = load_config(None, ["engine.type=own.py->OnlyAnswers", f"engine.params.how={how}"])
    found = load_engine_class(config)
    engine = make_engine(found, tmp_path, config)
    with pytest.raises(astune.EngineError, match=message):
        await engine.generate([1, 2], SamplingParams(max_tokens=4, stop_token_ids=(0,)), session="one")
    assert engine.stats().sampled_tokens == engine.stats().running == 0


@pytest.mark.parametrize(
    ("settings_of", "message"),
    [
        (["engine.type=vlm"], "did you mean vllm"),
        (["engine.type=own.py->Tasks"], "engine.type: Tasks in own.py is not a EngineBase"),
        (["engine.type=own.py->Plain", "engine.params.type=x"], "Plain accepts no argument type"),
        (["engine.params.dtype=x"], "engine.type is in_process"),
        (["engine.type=own.py->Plain", "backbone=verl"], "engine.type cannot be used with backbone verl"),
        (["engine.type=own.py->Plain", "deterministic=true"], "deterministic is true"),
    ],
)
def test_what_is_no_engine_is_refused_before_anything_starts(settings, settings_of, message):
    with pytest.raises(astune.ConfigError, match=message):
        checked(settings_of)


def checked(overrides: list[str]) -> None:
    """As a run is checked before it starts."""
    config = load_config(None, overrides)
    load_engine_class(config)
    find_backbone(config.backbone).check(config)
