"""The in-process engine against transformers' own forward, and its behaviour under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from astune.config.schema import EngineConfig, ModelConfig
from astune.engine import InProcessEngine
from astune.schema import Completion, EngineError, SamplingParams

PROMPTS = [list(range(100, 100 + length)) for length in (5, 40, 41, 90, 17)]


@dataclass
class Weights:
    """A WeightsSource over a transformers model."""

    version: int
    model: Any

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()


def load(folder: Path, *, dtype: str = "float32", deterministic: bool = False, **engine: Any) -> InProcessEngine:
    return InProcessEngine.load(
        folder,
        model=ModelConfig(device="cpu", dtype=dtype),
        engine=EngineConfig(**engine),
        max_model_len=512,
        deterministic=deterministic,
    )


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@torch.inference_mode()
def own_logprobs(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> Tensor:
    """What transformers' forward says about the sampled tokens."""
    ids = torch.tensor([prompt + completion.token_ids])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def assert_exact(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0, atol: float = 1e-4):
    expected = own_logprobs(model, prompt, completion, temperature)
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=atol, rtol=0)


@pytest.fixture
async def tiny(tiny_folder: Path) -> AsyncIterator[InProcessEngine]:
    engine = load(tiny_folder)
    yield engine
    await engine.aclose()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_transformers_at_the_same_temperature(
    tiny: InProcessEngine, tiny_folder: Path, temperature: float
):
    params = [SamplingParams(max_tokens=20, temperature=temperature, seed=seed) for seed in range(len(PROMPTS))]
    completions = await asyncio.gather(
        *(tiny.generate(prompt, p, session=str(p.seed)) for prompt, p in zip(PROMPTS, params, strict=True))
    )
    model = transformers_model(tiny_folder)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert len(completion.token_ids) == 20
        assert completion.finish_reason == "length"
        assert_exact(model, prompt, completion, temperature)


async def test_temperature_zero_is_greedy_with_the_logprob_at_temperature_one(tiny: InProcessEngine, tiny_folder: Path):
    model = transformers_model(tiny_folder)
    completion = await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=8, temperature=0), session="a")
    expected = model.generate(torch.tensor([PROMPTS[1]]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert completion.token_ids == expected[0, len(PROMPTS[1]) :].tolist()
    assert_exact(model, PROMPTS[1], completion)


async def test_a_session_prefills_only_what_is_new_in_its_next_turn(tiny: InProcessEngine, tiny_folder: Path):
    model = transformers_model(tiny_folder)
    params = SamplingParams(max_tokens=10, seed=1)
    prompt = PROMPTS[1]
    for turn in range(3):
        before = tiny.stats().prefilled_tokens
        completion = await tiny.generate(prompt, params, session="a")
        assert_exact(model, prompt, completion)
        if turn:
            assert tiny.stats().prefilled_tokens - before == 8  # the last sampled token and the seven new ones
        prompt = prompt + completion.token_ids + [7] * 7


async def test_a_group_prefills_its_common_prompt_once(tiny: InProcessEngine, tiny_folder: Path):
    model = transformers_model(tiny_folder)
    prompts = [PROMPTS[3]] * 4 + [[*PROMPTS[3][:60], 9, 8, 7]] * 2
    completions = await asyncio.gather(
        *(tiny.generate(p, SamplingParams(max_tokens=6, seed=i), session=str(i)) for i, p in enumerate(prompts))
    )
    assert tiny.stats().prefilled_tokens == 90 + 3 * 1 + 2 * 3
    assert tiny.stats().prompt_tokens == 4 * 90 + 2 * 63
    assert len({tuple(c.token_ids) for c in completions[:4]}) > 1
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)


async def test_new_weights_are_used_at_once_and_completely(tiny: InProcessEngine, tiny_folder: Path):
    model = transformers_model(tiny_folder)
    await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=10, seed=1), session="a")
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.02)
    assert await tiny.load_weights(Weights(3, model)) == 3
    completion = await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=10, seed=1), session="a")
    assert completion.weights_version == 3
    assert_exact(model, PROMPTS[1], completion)


async def test_a_dead_worker_is_an_error_for_every_waiter(tiny: InProcessEngine, monkeypatch: pytest.MonkeyPatch):
    def broken(batch: object) -> Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(tiny._model, "forward", broken)
    calls = [tiny.generate(p, SamplingParams(max_tokens=5), session=str(i)) for i, p in enumerate(PROMPTS)]
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), timeout=30)
    assert all(isinstance(result, EngineError) and "out of luck" in result.message for result in results)
    with pytest.raises(EngineError, match="out of luck"):
        await tiny.generate(PROMPTS[0], SamplingParams(max_tokens=5), session="late")
