"""Other families than Llama: trained exactly, or refused with the reason, and never trained wrongly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_helpers import assert_exact, load, transformers_model
from safetensors.torch import load_file
from trainer_helpers import SHAPE, config, distance, policy_loss, random_batch, reference_gradient
from transformers import AutoModelForCausalLM

from astune.config.schema import ModelConfig, RolloutConfig
from astune.schema import ConfigError, SamplingParams, TrainerError
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.microbatch import pack
from astune.trainer.policy import PolicyTrainer
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import weighted

pytestmark = pytest.mark.slow

SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"tie_word_embeddings": False, "attention_bias": True}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 16}),
    ("Mistral", {"sliding_window": None}),
    ("Phi3", {}),
    ("Olmo2", {}),
    ("StableLm", {}),
    ("Gemma", {"head_dim": 16}),
    ("GPTNeoX", {"num_key_value_heads": 4}),
]
ALONE: list[tuple[str, dict[str, Any]]] = [
    ("Mamba", {"state_size": 8}),
    ("Mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2}),  # its norm is handed a gate
    (
        "Qwen3Next",
        {
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    (  # scores are far beyond their cap
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 1,
            "attn_logit_softcapping": 2.0,
            "initializer_range": 0.3,
            "final_logit_softcapping": None,
        },
    ),
    ("Bloom", {}),
]
EXPERTS: dict[str, Any] = {
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Granite", {"logits_scaling": 8.0}, "not a linear map"),
    ("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 1.0}, "not a linear map"),
]


def save_random(architecture: str, changes: dict[str, Any], folder: Path) -> Path:
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{architecture}Config")(**{**SHAPE, **SPECIAL_TOKENS, **changes})
    AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("architecture", "changes"), TRAINED)
def test_a_family_is_trained_with_the_gradient_of_its_own_forward_pass(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    folder = save_random(architecture, changes, tmp_path)
    batch = random_batch(0)
    timelines = weighted(batch.groups, batch.advantages, "episode")
    _, theirs = reference_gradient(folder, timelines, policy_loss(), dtype="float32")
    model = PolicyModel.load(folder, ModelConfig(device="cpu", dtype="float32"), seed=0)
    accumulate_gradient(model, [pack(timelines, torch.device("cpu"))], policy_loss(), 1.0)
    assert distance(model.master_weights.gradients(), theirs) < 1e-5


@pytest.mark.parametrize(("architecture", "changes"), ALONE, ids=[name for name, _ in ALONE])
def test_a_family_that_cannot_share_a_tree_is_found_out_said_and_trained_one_timeline_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, changes: dict[str, Any]
) -> None:
    folder = save_random(architecture, changes, tmp_path)
    batch = random_batch(0)
    timelines = weighted(batch.groups, batch.advantages, "episode")
    with caplog.at_level(logging.WARNING):
        model = PolicyModel.load(folder, ModelConfig(device="cpu", dtype="float32"), seed=0)
    assert not model.takes_trees
    [line] = [record.message for record in caplog.records if "cannot share" in record.message]
    assert line.startswith(f"{architecture}ForCausalLM cannot share the beginnings of timelines (")
    _, theirs = reference_gradient(folder, timelines, policy_loss(), dtype="float32")
    accumulate_gradient(model, [pack([each], torch.device("cpu")) for each in timelines], policy_loss(), 1.0)
    assert distance(model.master_weights.gradients(), theirs) < 1e-5
    report = PolicyTrainer.load(folder, config()).step(batch)
    assert report.metrics["microbatches"] == len(timelines)


@pytest.mark.parametrize(("architecture", "changes", "reason"), REFUSED)
def test_a_family_that_cannot_be_trained_exactly_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, changes: dict[str, Any], reason: str
) -> None:
    folder = save_random(architecture, changes, tmp_path)
    with pytest.raises(TrainerError, match=reason):
        PolicyTrainer.load(folder, config()).step(random_batch(0))


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 1e4}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    ("Phi3", {"rope_parameters": LONG | FACTORS, "original_max_position_embeddings": 64}, "rotary positions change"),
    ("Mistral", {"sliding_window": 64}, "attend to 64 tokens"),
    (
        "Qwen2Moe",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3, "num_experts": 4},
        "attend to 64 tokens",
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "reason"), BOUNDS, ids=[name for name, _, _ in BOUNDS])
def test_contexts_beyond_which_a_model_computes_something_else_are_refused_when_it_is_loaded(
    tmp_path: Path, architecture: str, changes: dict[str, Any], reason: str
) -> None:
    folder = save_random(architecture, {"pad_token_id": 0, **changes}, tmp_path)

    def load(max_model_len: int) -> PolicyTrainer:
        rollout = RolloutConfig(max_model_len=max_model_len)
        return PolicyTrainer.load(folder, config().model_copy(update={"rollout": rollout}))

    with pytest.raises(ConfigError, match=f"max_model_len is 65, but .*{reason}"):
        load(65)
    assert load(64).version == 0


def test_adapters_of_experts_are_merged_into_the_weights_that_the_trainer_computes_with(tmp_path: Path) -> None:
    """peft wraps their layer once for each of its parameters, and a router, which is no linear layer, too."""
    folder = save_random("Glm4Moe", EXPERTS, tmp_path)
    trainer = PolicyTrainer.load(folder, config(lora={"rank": 2}, optim={"lr": 1e-2}))
    batch = random_batch(0)
    trainer.step(batch)
    module = transformers_model(folder)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(dict(trainer.named_tensors()))
    changed = {name.split(".", 3)[-1] for name, tensor in module.state_dict().items() if tensor.ne(before[name]).any()}
    assert {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"} < changed
    timeline = weighted(batch.groups, batch.advantages, "episode")[0]
    logprobs = module(torch.tensor([timeline.token_ids])).logits[0].log_softmax(-1)
    expected = logprobs[[at - 1 for at in timeline.positions], [timeline.token_ids[at] for at in timeline.positions]]
    assert torch.allclose(trainer.model.logprobs(pack([timeline], torch.device("cpu")), 1.0), expected, atol=1e-4)


@pytest.mark.parametrize("lora", [{}, {"rank": 2}], ids=["whole", "lora"])
async def test_what_a_model_saves_and_does_not_train_goes_to_engines_and_folders_as_it_is(
    tmp_path: Path, lora: dict[str, Any]
) -> None:
    """Glm4Moe chooses experts by a float32 buffer, which it learned by other means than gradients."""
    start = save_random("Glm4Moe", EXPERTS, tmp_path / "start")
    module = transformers_model(start)
    biases = {name: torch.randn_like(buffer) for name, buffer in module.named_buffers() if "bias" in name}
    module.load_state_dict(biases, strict=False)
    module.save_pretrained(tmp_path / "learned")
    trainer = PolicyTrainer.load(tmp_path / "learned", config(lora=lora, optim={"lr": 1e-2}))
    trainer.step(random_batch(0))

    engine = load(start)
    try:
        await engine.load_weights(trainer)
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=0)
        completion = await engine.generate([5, 6, 7], params, session="a")
    finally:
        await engine.aclose()
    module.load_state_dict(dict(trainer.named_tensors()))
    assert_exact(module, [5, 6, 7], completion)

    trainer.save_model(tmp_path / "saved")
    tensors = load_file(tmp_path / "saved" / "model.safetensors")
    assert len(biases) == 2
    assert all(torch.equal(tensors.pop(name), bias) for name, bias in biases.items())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
