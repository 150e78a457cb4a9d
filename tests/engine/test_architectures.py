"""Architectures against transformers' own forward: over several turns, in groups, in float32 and bfloat16."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_helpers import Weights, assert_exact, load, own_logprobs, transformers_model

from astune.engine.local._hf_model import HfModel
from astune.engine.local.cpu_llama import CpuLlama
from astune.schema import Completion, EngineError, SamplingParams

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
}
ARCHITECTURES: list[tuple[str, dict[str, Any], type]] = [
    ("Llama", {"tie_word_embeddings": True}, CpuLlama),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}, CpuLlama),
    ("Qwen2", {}, CpuLlama),
    ("Qwen3", {"head_dim": 32}, CpuLlama),
    ("Mistral", {"sliding_window": None}, CpuLlama),
    ("Mistral", {"sliding_window": 16}, HfModel),
    ("Gemma2", {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16}, HfModel),  # soft-capped scores
    (  # scores far beyond their cap
        "Gemma2",
        {"head_dim": 16, "query_pre_attn_scalar": 1, "attn_logit_softcapping": 2.0, "initializer_range": 0.3},
        HfModel,
    ),
    ("Phi3", {}, HfModel),
    ("StableLm", {}, HfModel),
    ("DeepseekV3", LATENT, HfModel),  # keys and values of different sizes, experts
    ("GPT2", {"n_positions": 512}, HfModel),  # learned positions
]
PROMPTS = [list(range(3, 3 + length)) for length in (1, 5, 40, 41, 90)]


def save_random(architecture: str, changes: dict[str, Any], folder: Path) -> None:
    """A small model with random weights, large enough for attention to matter."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**{**SHAPE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.dim() > 1 else 1)
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)  # biases begin as zeros, and would hide mistakes
    model.save_pretrained(folder)


@pytest.mark.parametrize(("architecture", "changes", "served_by"), ARCHITECTURES)
async def test_logprobs_over_two_turns_are_those_of_transformers(
    architecture: str, changes: dict[str, Any], served_by: type, tmp_path: Path
):
    save_random(architecture, changes, tmp_path)
    model = transformers_model(tmp_path)
    engine = load(tmp_path)
    assert type(engine._model) is served_by
    prompts = PROMPTS
    for _ in range(2):
        calls = [
            engine.generate(prompt, SamplingParams(max_tokens=20, seed=seed), session=str(seed))
            for seed, prompt in enumerate(prompts)
        ]
        completions = await asyncio.gather(*calls)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert_exact(model, prompt, completion)
        prompts = [[*p, *c.token_ids, 9, 8, 7] for p, c in zip(prompts, completions, strict=True)]
    await engine.aclose()


@pytest.mark.parametrize(
    ("architecture", "tied"), [("Llama", False), ("Qwen2", True), ("Phi3", False), ("Gemma2", True)]
)
async def test_new_weights_reach_every_part_of_the_model(architecture: str, tied: bool, tmp_path: Path):
    save_random(architecture, {"tie_word_embeddings": tied, "head_dim": 16}, tmp_path)
    model = transformers_model(tmp_path)
    engine = load(tmp_path)
    for version in (1, 2):
        torch.manual_seed(version)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
        await engine.load_weights(Weights(version, model))
        completion = await engine.generate(PROMPTS[3], SamplingParams(max_tokens=20, seed=1), session="a")
        assert completion.weights_version == version
        assert_exact(model, PROMPTS[3], completion)
    await engine.aclose()


async def test_prompts_longer_than_one_pass_and_than_a_group_are_exact(tmp_path: Path):
    save_random("Llama", {"max_position_embeddings": 4096}, tmp_path)
    model = transformers_model(tmp_path)
    engine = load(tmp_path, max_model_len=4096)
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 300, (length,), generator=draw).tolist() for length in (3000, 1100, 700, 20)]
    prompts.append([*prompts[0][:2500], 5, 6, 7])
    calls = [engine.generate(p, SamplingParams(max_tokens=10, seed=i), session=str(i)) for i, p in enumerate(prompts)]
    for prompt, completion in zip(prompts, await asyncio.gather(*calls), strict=True):
        assert_exact(model, prompt, completion)
    assert engine.stats().prefilled_tokens == 3000 + 1100 + 700 + 20 + 3
    await engine.aclose()


@pytest.mark.parametrize("architecture", ["Mamba", "Bloom"])
def test_a_model_with_another_kind_of_memory_is_refused(architecture: str, tmp_path: Path):
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(vocab_size=300, hidden_size=64, num_hidden_layers=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="attention interface"):
        load(tmp_path)


@pytest.mark.slow
async def test_bfloat16_is_as_close_to_float32_as_transformers_own(smol_folder: Path):
    exact = transformers_model(smol_folder)
    rounded = transformers_model(smol_folder, torch.bfloat16, attention="sdpa")
    engine = load(smol_folder, dtype="bfloat16")
    prompts = [list(range(1000 + 50 * i, 1000 + 50 * i + 30 + 9 * i)) for i in range(8)]
    calls = [engine.generate(p, SamplingParams(max_tokens=60, seed=i), session=str(i)) for i, p in enumerate(prompts)]
    completions: list[Completion] = await asyncio.gather(*calls)
    ours, theirs = [], []
    for prompt, completion in zip(prompts, completions, strict=True):
        truth = own_logprobs(exact, prompt, completion)
        ours.append((torch.tensor(completion.logprobs) - truth).abs())
        theirs.append((own_logprobs(rounded, prompt, completion) - truth).abs())
    assert torch.cat(ours).mean() < 1.1 * torch.cat(theirs).mean()
    await engine.aclose()


@pytest.mark.slow
async def test_the_small_model_says_in_float32_what_transformers_says(smol_folder: Path):
    model = transformers_model(smol_folder)
    engine = load(smol_folder)
    prompts = [list(range(1000, 1000 + length)) for length in (1, 30, 100)]
    calls = [engine.generate(p, SamplingParams(max_tokens=30, seed=i), session=str(i)) for i, p in enumerate(prompts)]
    for prompt, completion in zip(prompts, await asyncio.gather(*calls), strict=True):
        assert_exact(model, prompt, completion)
    await engine.aclose()
