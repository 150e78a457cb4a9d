"""Fingerprints of a real small model, and the proof that weights reach a server that computes with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from served_model import model_served
from trainer_helpers import config

from astune.config.schema import AstuneConfig
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.publication import PublishedWeights
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.schema import EngineError
from astune.trainer.handover_proof import prove_handover
from astune.trainer.policy import PolicyTrainer

pytestmark = pytest.mark.slow


def policy_of(folder: Path, dtype: str = "float32") -> PolicyTrainer:
    settings = config(dtype=dtype)
    rollout = settings.rollout.model_copy(update={"max_model_len": 512, "max_response_length_in_one_turn": 64})
    return PolicyTrainer.load(folder, AstuneConfig(model=settings.model, rollout=rollout, trainer=settings.trainer))


def engine_of(url: str, folder: Path) -> Replicas:
    return Replicas([ServedEngine(Endpoint(url, model="m"), max_model_len=512)], PublishedWeights(folder))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_weights_that_reach_a_server_are_proven_to_and_it_is_left_with_the_real_ones(
    dtype, tiny_folder, tmp_path
):
    policy = policy_of(tiny_folder, dtype)
    with model_served(tiny_folder, dtype=dtype) as server:
        engine = engine_of(server.url, tmp_path / "weights")
        await prove_handover(engine, policy)
        assert server.order == ["take", "forget", "say"] * 2
        real = policy.fingerprint()
        assert real.distance(server.engine.said_of(real.token_ids)) < real.limit / 2
        await engine.aclose()


@pytest.mark.parametrize("wrong", ["ignores_weights", "keeps_head"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_server_that_only_says_so_is_found_out_before_anything_is_trained(dtype, wrong, tiny_folder, tmp_path):
    with model_served(tiny_folder, dtype=dtype) as server:
        setattr(server, wrong, True)
        engine = engine_of(server.url, tmp_path / "weights")
        with pytest.raises(EngineError, match="does not compute with weights version 0"):
            await prove_handover(engine, policy_of(tiny_folder, dtype))
        await engine.aclose()


async def test_a_server_of_another_model_is_found_out(tiny_folder, tmp_path):
    """It has the same tokenizer and answers every question, but reads what it knows nothing of."""
    with model_served(tiny_folder) as server:
        server.ignores_weights = True
        engine = engine_of(server.url, tmp_path / "weights")
        policy = policy_of(tiny_folder)
        for parameter in policy.model.module.parameters():
            parameter.data.add_(torch.randn_like(parameter) / 10)
        with pytest.raises(EngineError, match="does not compute with"):
            await engine.load_weights(policy)
        await engine.aclose()


def test_a_copy_is_moved_far_enough_that_neither_old_weights_nor_an_old_head_can_be_taken_for_it(tiny_folder):
    policy = policy_of(tiny_folder, "bfloat16")
    before = policy.fingerprint()
    moved = policy.fingerprints.of(policy.fingerprints.far_from(policy.model))
    assert moved.distance(before.logprobs) > 2 * before.limit
    assert policy.fingerprint() == before
    assert 100 < len(before.token_ids) < 200


def test_weights_are_written_in_the_format_that_they_compute_in_and_load_as_they_were(tiny_folder, tmp_path):
    from transformers import AutoModelForCausalLM

    for dtype in ("float32", "bfloat16"):
        policy = policy_of(tiny_folder, dtype)
        policy.model.master_weights.shake(0.01, torch.Generator().manual_seed(0))
        policy.save(tmp_path / dtype)
        read = AutoModelForCausalLM.from_pretrained(tmp_path / dtype).state_dict()
        for name, tensor in policy.named_tensors():
            assert tensor.dtype == getattr(torch, dtype)
            assert torch.equal(read[name], tensor.detach()), name
