"""Whole runs of two policies on one tiny model: trained, accounted for, saved, resumed, measured and exported."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from astune_command import astune
from safetensors.torch import load_file

from astune.algorithm import load_algorithm
from astune.app.serving import ModelServer
from astune.backbone.base import find_backbone
from astune.backbone.local import check_settings, require_groups
from astune.config.schema import AstuneConfig
from astune.engine import InProcessEngine
from astune.runs import RunDirectory, balance_of, described, resolve_run
from astune.schema import ConfigError, SamplingParams

MODELS: dict[str, Any] = {
    "wolf": {"targets": ["werewolf"], "lora": {"rank": 2}, "optim": {"lr": 1e-2, "warmup_steps": 0}},
    "village": {"lora": {"rank": 4}},
    "judge": {"train": False},
}
AGENT = '''
import os
import signal
from pathlib import Path

from astune.workflow import Workflow, WorkflowOutput


class Game(Workflow):
    """Three agents speak; every second episode of a group is won.

    Kills its own process where the file `fuse` counts down to zero.
    """

    async def execute(self, task, proxy):
        fuse = Path("fuse")
        if fuse.exists():
            left = int(fuse.read_text())
            fuse.write_text(str(left - 1))
            if left == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        for name, tag in (("Ann", "werewolf"), ("Bob", "village"), ("Kim", "judge")):
            await proxy.as_agentscope_model(name, tag).achat(proxy.init_messages)
        wins = float(proxy.repeat % 2)
        return WorkflowOutput(reward=wins, per_target={"werewolf": wins, "village": 1.0 - wins})
'''


def configure(folder: Path, model: Path) -> None:
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    for split, n in (("train", 40), ("held_out", 4)):
        (folder / f"{split}.jsonl").write_text("".join(f'{{"main_query": "{split} {i}"}}\n' for i in range(n)))
    files = {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held_out.jsonl"}}
    experiment = {
        "model": {"path": str(model), "dtype": "float32"},
        "models": MODELS,
        "deterministic": True,
        "task_reader": {"jsonl": files},
        "rollout": {
            "workflow": "agent.py->Game",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 6,
            "num_repeat": 4,
        },
        "trainer": {
            "tasks_per_step": 4,
            "test_freq": 100,
            "total_steps": 4,
            "save_freq": 2,
            "optim": {"lr": 1e-3},
            "league": {"share": 0.5, "every": 1, "size": 2},
        },
    }
    (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))


def run_in(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record"))


def adapters_of(run: RunDirectory) -> dict[str, bytes]:
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.step == 4
    return {name: (latest.model / name / "adapter_model.safetensors").read_bytes() for name in ("wolf", "village")}


@pytest.mark.slow
def test_two_policies_are_trained_resumed_measured_and_exported(tmp_path: Path, tiny_folder: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    configure(whole, tiny_folder)
    assert "the adapters judge (frozen), village, wolf of" in astune(whole, "--conf", "conf.yaml", "--dry-run")
    astune(whole, "--conf", "conf.yaml")
    run = run_in(whole)
    lines = [line.metrics for line in run.metrics() if line.kind == "train"]
    assert len(lines) == 4
    for metrics in lines:
        assert [name for name in metrics if described(name) is None] == []
        balance = balance_of(metrics)
        assert balance.difference == 0
        parts = [metrics[f"train/policy/{name}/trained_tokens"] for name in ("wolf", "village")]
        assert sum(parts) == balance.trained == metrics["train/trained_tokens"] > 0
        assert balance.masked["not a training target"] > 0, "what the frozen policy wrote"
        assert metrics["train/policy/wolf/engine_correlation"] > 0.99
        assert metrics["train/policy/village/engine_correlation"] > 0.99
        assert metrics["train/logprob_diff_max"] < 1e-3, "the engine samples with what the trainer trains"
    against_past = [
        value for metrics in lines for name, value in metrics.items() if re.fullmatch(r"league/\w+_[12]/episodes", name)
    ]
    assert sum(against_past) > 0
    assert lines[-1]["train/policy/wolf/lr"] == 1e-2
    assert lines[-1]["train/policy/village/lr"] == 1e-3

    configure(broken, tiny_folder)
    (broken / "fuse").write_text(str(4 + 2 * 16 + 5))
    astune(broken, "--conf", "conf.yaml", status=-signal.SIGKILL)
    (broken / "fuse").unlink()
    astune(broken, "--resume", str(run_in(broken).path))
    assert adapters_of(run_in(broken)) == adapters_of(run), "a killed run ends as if it had not been"

    assert "4 tasks" in astune(whole, "eval", "conf.yaml", "--model", str(run.path))
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    elsewhere = ("eval", "conf.yaml", "--model", str(run.path), "--set", f"model.path={other}")
    assert f"is an adapter on {tiny_folder}, and model.path is {other}" in astune(whole, *elsewhere, status=2)
    refused = astune(whole, "chat", str(run.path), "--message", "hello", status=1)
    assert "has the policies village, wolf" in refused
    assert "has no policy fox" in astune(whole, "export", str(run.path), "--to", "out", "--policy", "fox", status=1)
    latest = run.checkpoints.latest()
    assert latest is not None
    assert "the policy wolf" in astune(whole, "export", str(latest.path), "--to", "out", "--policy", "wolf")
    assert json.loads((whole / "out/config.json").read_text())["model_type"] == "llama"
    assert asyncio.run(_greedy(whole / "out", whole, "")) == asyncio.run(_greedy(tiny_folder, whole, "wolf"))
    assert load_file(whole / "out/model.safetensors").keys() == load_file(tiny_folder / "model.safetensors").keys()


async def _greedy(model: Path, folder: Path, policy: str) -> list[int]:
    """What an exported model, or the engine with a policy of the run, says first."""
    checkpoint = run_in(folder).checkpoints.latest()
    assert checkpoint is not None
    path = str(checkpoint.model / "wolf")
    config = AstuneConfig.model_validate({"model": {"dtype": "float32", "device": "cpu"}})
    made: dict[str, Any] = {"model": config.model, "engine": config.engine, "max_model_len": 256}
    engine = InProcessEngine.load(model, adapters={"wolf": path} if policy else {}, **made)
    params = SamplingParams(max_tokens=5, temperature=0, policy=policy)
    completion = await engine.generate([5, 6, 7, 8], params, session="s")
    await engine.aclose()
    return completion.token_ids


async def test_what_is_served_answers_as_the_policy_that_a_request_names(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    stream = InProcessEngine.stream

    async def noted(self: InProcessEngine, prompt_ids: Any, params: SamplingParams, **more: Any) -> Any:
        asked.append(params.policy)
        return await stream(self, prompt_ids, params, **more)

    monkeypatch.setattr(InProcessEngine, "stream", noted)
    rollout = {"max_model_len": 256, "max_response_length_in_one_turn": 4}
    models = MODELS | {"default": {"lora": {"rank": 2}}}
    config = AstuneConfig.model_validate({"model": {"path": str(tiny_folder)}, "models": models, "rollout": rollout})
    server = ModelServer([(config, 1.0)], clients={"me": ""}, store=tmp_path / "kept.sqlite")
    ready = asyncio.Event()
    serving = asyncio.ensure_future(server.serve(ready))
    await asyncio.wait_for(ready.wait(), 60)
    client = openai.AsyncOpenAI(base_url=server.base_url, api_key=server.keys["me"])
    for name in ("wolf", "werewolf", "village", "judge", "any"):
        await client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}])
    assert asked == ["wolf", "wolf", "village", "", "default"]
    serving.cancel()
    await asyncio.wait({serving})


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_engines_that_train_one_set_of_weights_refuse_several_by_name(backbone: str) -> None:
    config = AstuneConfig.model_validate({"backbone": backbone, "models": MODELS})
    with pytest.raises(ConfigError, match=f"models cannot be used with backbone {backbone}: {backbone} trains one set"):
        find_backbone(backbone).check(config)


def test_servers_refuse_several_policies_by_name() -> None:
    config = AstuneConfig.model_validate(
        {"models": MODELS, "engine": {"type": "vllm"}, "trainer": {"loss": {"constrained_tokens": "mask"}}}
    )
    with pytest.raises(ConfigError, match=r"astune\.models is set, and engine\.type is vllm"):
        check_settings(config)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_algorithms_that_learn_from_given_answers_refuse_several_policies(algorithm: str) -> None:
    config = AstuneConfig.model_validate({"models": MODELS, "trainer": {"algorithm": algorithm}})
    with pytest.raises(ConfigError, match=rf"astune\.models is set, and {algorithm} learns from answers"):
        require_groups(config, load_algorithm(config))


def test_rules_on_samples_are_refused_where_the_loss_is_one_of_pairs() -> None:
    trainer = {"algorithm": "dpo", "samples": [{"do": "drop", "status": "truncated"}]}
    with pytest.raises(ConfigError, match=r"trainer\.samples is set, and the loss of dpo"):
        load_algorithm(AstuneConfig.model_validate({"trainer": trainer}))
