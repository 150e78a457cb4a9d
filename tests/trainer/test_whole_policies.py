"""Policies with models of their own: each is trained as it would be alone, saved whole, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from examples import some
from torch import Tensor
from trainer_helpers import config, distance, save_small_llama
from two_policies import FARMERS, MODELS, WOLVES, batch, loaded, several

from astune.engine import InProcessEngine
from astune.engine.adapters import policies_in
from astune.schema import EngineError
from astune.trainer.policy import PolicyTrainer


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return save_small_llama(tmp_path_factory.mktemp("other-model"), **sizes)


def weights(trainer: PolicyTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.named_tensors()}


def moved(trainer: PolicyTrainer, start: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor - start[name] for name, tensor in weights(trainer).items()}


def whole(wolf: Path, farmer: Path) -> dict[str, Any]:
    optim = {"lr": 1e-2, "warmup_steps": 0}
    return {"wolf": {"path": str(wolf), "optim": optim}, "farmer": {"path": str(farmer)}}


@pytest.mark.parametrize("same", some([True, False], 1))
def test_two_whole_policies_together_become_what_each_becomes_alone(
    same: bool, small_folder: Path, other_folder: Path
) -> None:
    farmers = small_folder if same else other_folder
    policies = loaded(small_folder, several(whole(small_folder, farmers), dtype="float32"))
    wolf = PolicyTrainer.load(small_folder, config(optim={"lr": 1e-2}, dtype="float32"))
    farmer = PolicyTrainer.load(farmers, config(dtype="float32"))
    start = {"wolf": weights(wolf), "farmer": weights(farmer)}
    for step in (1, 2, 3):
        report = policies.step(batch(step))
        alone = [wolf.step(batch(step, WOLVES)), farmer.step(batch(step, FARMERS))]
        assert report.trained_tokens == sum(one.trained_tokens for one in alone)
    for name, one in (("wolf", wolf), ("farmer", farmer)):
        assert distance(moved(policies[name], start[name]), moved(one, start[name])) < 1e-5


@pytest.mark.slow
def test_adapters_and_a_whole_model_train_side_by_side_and_resume(
    small_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    models = MODELS | {"farmer": {"path": str(other_folder), "lora": {"rank": 2}}, "fox": {"path": str(small_folder)}}
    settings = several(models | {"fox": models["fox"] | {"targets": ["fox"]}}, deterministic=True)
    policies = loaded(small_folder, settings)
    policies.step(batch(1))
    policies.save_state(tmp_path / "state")
    policies.save_model(tmp_path / "model")
    assert policies_in(tmp_path / "model") == ["farmer", "fox", "wolf"]
    saved = PolicyTrainer.load(tmp_path / "model/fox", config())
    assert distance(weights(saved), weights(policies["fox"])) == 0
    policies.step(batch(2))
    resumed = loaded(small_folder, settings)
    resumed.load_state(tmp_path / "state")
    resumed.step(batch(2))
    for name in models:
        ours, theirs = weights(resumed[name]), weights(policies[name])
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


async def test_an_engine_of_one_model_refuses_whole_policies(small_folder: Path, other_folder: Path) -> None:
    settings = several(whole(small_folder, other_folder))
    engine = InProcessEngine.load(small_folder, model=settings.model, engine=settings.engine, max_model_len=64)
    with pytest.raises(EngineError, match="takes no weights of several policies"):
        await loaded(small_folder, settings).publish(engine)
    await engine.aclose()
