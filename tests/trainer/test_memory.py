"""Estimated memory: the formula against published sizes, and against the tensors of a real trainer."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer_helpers import episode, group, node
from transformers import LlamaConfig, LlamaForCausalLM

from astune.backbone.memory import ModelShape, engine_memory, estimates
from astune.config import load_config
from astune.config.schema import ModelConfig, OptimConfig
from astune.engine.local import products
from astune.engine.local.cpu_llama import CpuLlama
from astune.trainer.microbatch import MicroBatch, pack
from astune.trainer.policy_model import PolicyModel
from astune.trainer.recompute import Recomputing
from astune.trainer.samples import weighted

LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
QWEN_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
"""Qwen2.5-7B, which is published with 7,615,616,512 parameters, biases among them."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(tmp_path)
    return tmp_path


def shape_of(config: dict) -> ModelShape:
    shape = ModelShape.of(config)
    assert shape is not None
    return shape


def test_parameters_are_those_that_are_published():
    assert shape_of(QWEN_7B).parameters == pytest.approx(7_615_616_512, rel=1e-4)
    assert ModelShape.of(QWEN_7B | {"num_experts": 64}) is None
    assert ModelShape.of({"model_type": "other"}) is None


@pytest.mark.parametrize(
    ("dtype", "rank"), [("float32", 0), ("bfloat16", 0), pytest.param("bfloat16", 8, marks=pytest.mark.slow)]
)
def test_weights_gradients_and_moments_are_those_of_the_trainer(dtype: str, rank: int, folder: Path):
    settings = ModelConfig.model_validate({"device": "cpu", "dtype": dtype, "lora": {"rank": rank}})
    model = PolicyModel.load(folder, settings, seed=0)
    model.master_weights.step(OptimConfig(), 1e-6)
    state = model.master_weights.state_dict(OptimConfig())
    held = {each.untyped_storage().data_ptr(): each for each in (*model.module.parameters(), *tensors_in(state))}
    held |= {each.data_ptr(): each for each in model.master_weights.gradients().values()}
    overrides = [f"model.lora.rank={rank}", "engine.type=vllm"]
    (estimate,) = estimates(load_config(None, overrides), shape_of(LLAMA), on_gpu=False, in_bfloat16=dtype != "float32")
    n_bytes = sum(each.nbytes for each in held.values())
    assert estimate.parts["weights"] + estimate.parts["gradients and AdamW"] == pytest.approx(n_bytes, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_weights_of_the_engine_are_those_that_it_keeps(dtype: torch.dtype, quantization: str, folder: Path):
    if not products.are_available(dtype, 2):
        pytest.skip("this CPU lacks AVX512-BF16 or AVX2")
    causal_lm = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(dtype)
    llama = CpuLlama(causal_lm, int8=quantization == "int8")
    config = load_config(None, [f"engine.quantization={quantization}"])
    shape = shape_of(LLAMA | {"dtype": "bfloat16"})
    estimate = engine_memory(config, shape, on_gpu=False, in_bfloat16=dtype == torch.bfloat16)
    held = tensors_in([llama._tensors, llama._linears, llama._gates])
    kept = {each.data_ptr(): each for each in held}
    assert estimate.parts["engine"] == pytest.approx(sum(each.nbytes for each in kept.values()), rel=0.01)


def tensors_in(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    if hasattr(state, "load_adapters"):  # a layer of the engine
        return tensors_in(vars(state))
    below = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for each in below for tensor in tensors_in(each)]


def small_batch(model: PolicyModel) -> MicroBatch:
    token_ids = [number * 37 % 128 for number in range(800)]
    members = [
        episode([node(0, None, token_ids[:400]), node(1, 0, token_ids[400 + n :], sampled=200)], name=str(n))
        for n in range(2)
    ]
    return pack(weighted([group(members)], [[1.0, -1.0]], "episode"), model.device)


def test_activations_are_those_that_the_backward_pass_keeps(folder: Path, monkeypatch: pytest.MonkeyPatch):
    model = PolicyModel.load(folder, ModelConfig(device="cpu", dtype="float32"), seed=0)
    batch = small_batch(model)
    weights = {each.untyped_storage().data_ptr() for each in model.module.parameters()}
    kept: dict[int, int] = {}
    pack_one = Recomputing.pack

    def keep(recomputing: Recomputing, tensor: Tensor) -> Any:
        packed = pack_one(recomputing, tensor)
        if isinstance(packed, Tensor) and packed.untyped_storage().data_ptr() not in weights:
            kept[packed.untyped_storage().data_ptr()] = packed.untyped_storage().nbytes()
        return packed

    monkeypatch.setattr(Recomputing, "pack", keep)
    output = model.hidden(batch)  # its graph holds what was counted, or addresses would be used twice
    n_bytes = 4 * shape_of(LLAMA).local_activations(len(batch.token_ids_T))
    assert output.grad_fn is not None
    assert sum(kept.values()) == pytest.approx(n_bytes, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("bfloat16", 0), ("bfloat16", 8)])
def test_what_is_computed_again_changes_no_bit_of_the_gradient(
    dtype: str, rank: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = ModelConfig.model_validate({"device": "cpu", "dtype": dtype, "lora": {"rank": rank}})

    def gradients() -> dict[str, Tensor]:
        model = PolicyModel.load(folder, settings, seed=0)
        batch = small_batch(model)
        hidden_RD = model.hidden(batch)
        hidden_RD.backward(torch.ones_like(hidden_RD))
        return {name: gradient.clone() for name, gradient in model.master_weights.gradients().items()}

    made: list[Tensor] = []
    unpack = Recomputing.unpack
    monkeypatch.setattr(Recomputing, "unpack", lambda one, packed: made.append(unpack(one, packed)) or made[-1])
    ours = gradients()
    assert made
    monkeypatch.setattr(Recomputing, "pack", lambda _, tensor: tensor)
    kept = gradients()
    assert all(torch.equal(ours[name], kept[name]) for name in kept)
    assert any(gradient.any() for gradient in kept.values())


@pytest.mark.slow
def test_nothing_that_was_computed_again_outlives_the_backward_pass(folder: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[weakref.ref[Recomputing]] = []
    enter = Recomputing.__enter__
    monkeypatch.setattr(Recomputing, "__enter__", lambda one: made.append(weakref.ref(one)) or enter(one))
    model = PolicyModel.load(folder, ModelConfig(device="cpu"), seed=0)
    gc.disable()
    try:
        hidden_RD = model.hidden(small_batch(model))
        hidden_RD.backward(torch.ones_like(hidden_RD))
        del hidden_RD
        assert [one() for one in made] == [None]
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "trees"), [(0, True), (4, False)])
def test_a_long_timeline_keeps_the_inputs_of_layers_alone(rank: int, trees: bool, folder: Path):
    model = PolicyModel.load(folder, ModelConfig.model_validate({"device": "cpu", "lora": {"rank": rank}}), seed=0)
    model.takes_trees = trees
    token_ids = [number * 37 % 128 for number in range(600)]
    alone = episode([node(0, None, token_ids[:400]), node(1, 0, token_ids[400:], sampled=200)])
    batch = pack(weighted([group([alone])], [[1.0]], "episode"), model.device)

    def gradients() -> dict[str, Tensor]:
        hidden_RD = model.hidden(batch)
        hidden_RD.backward(torch.ones_like(hidden_RD))
        found = {name: gradient.clone() for name, gradient in model.master_weights.gradients().items()}
        model.master_weights.clear_gradients()
        return found

    if not trees:
        model.causal_lm.set_attn_implementation("sdpa")
    calls: list[int] = []
    for layer in model.causal_lm.base_model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    kept, n_calls = gradients(), len(calls)
    model.tokens_kept = len(batch.token_ids_T) - 1
    ours = gradients()
    assert len(calls) - n_calls == 2 * n_calls == 2 * LLAMA["num_hidden_layers"]
    assert any(gradient.any() for gradient in kept.values())
    assert all(torch.equal(ours[name], kept[name]) for name in kept)


def test_more_gpus_share_what_is_sharded():
    def total(*overrides: str) -> float:
        (training, *_) = estimates(load_config(None, overrides), shape_of(QWEN_7B), on_gpu=True, in_bfloat16=True)
        return training.total

    one, eight = total("backbone=verl"), total("backbone=verl", "verl.trainer.n_gpus_per_node=8")
    assert one - eight == pytest.approx(7 / 8 * 16 * shape_of(QWEN_7B).parameters)
    trinity = total("backbone=trinity", "trinity.cluster.gpu_per_node=9")
    assert trinity == eight  # one of the nine is vLLM's


@pytest.mark.parametrize("gpus", ["0", "${oc.env:GPUS}"])
def test_a_number_that_the_engine_works_out_itself_counts_as_its_default(gpus: str):
    one, other = (
        estimates(load_config(None, ["backbone=verl", *more]), shape_of(QWEN_7B), on_gpu=True, in_bfloat16=True)
        for more in ([], [f"verl.trainer.n_gpus_per_node={gpus}"])
    )
    assert one == other
