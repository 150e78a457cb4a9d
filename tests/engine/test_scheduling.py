"""Who runs when: memory bounds, and a crowd of sessions that come, go on, branch and are cancelled."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from engine_helpers import assert_exact, load, transformers_model

from astune.schema import Completion, EngineError, SamplingParams

pytestmark = pytest.mark.slow

TOKEN_BYTES = 2 * 2 * (16 + 16) * 4
"""Keys and values of one token of the tiny model: layers x kv heads x (key + value) x float32."""


def gib(tokens: int) -> float:
    return (tokens * TOKEN_BYTES + TOKEN_BYTES / 2) / 2**30


async def test_a_request_that_could_never_fit_is_refused_and_others_wait(tiny_folder: Path):
    engine = load(tiny_folder, kv_cache_gb=gib(200))
    with pytest.raises(EngineError, match="can never fit") as refused:
        await engine.generate([5] * 150, SamplingParams(max_tokens=60), session="a")
    assert "engine.kv_cache_gb" in refused.value.hint
    model = transformers_model(tiny_folder)
    prompts = [[seed] * 100 for seed in range(3, 9)]
    calls = [
        asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=50, seed=1), session=f"{prompt[0]}"))
        for prompt in prompts
    ]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, engine.stats().running)
        await asyncio.sleep(0)
    assert most == 1
    for prompt, call in zip(prompts, calls, strict=True):
        assert_exact(model, prompt, await call)
    await engine.aclose()


async def test_no_more_than_the_batch_size_run_together(tiny_folder: Path):
    engine = load(tiny_folder, max_batch_size=3)
    calls = [
        asyncio.create_task(engine.generate([i + 3] * 9, SamplingParams(max_tokens=30), session=f"{i}"))
        for i in range(10)
    ]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, engine.stats().running)
        await asyncio.sleep(0)
    assert most == 3
    await asyncio.gather(*calls)
    await engine.aclose()


@pytest.mark.parametrize("tokens", [100_000, 1500])
async def test_a_crowd_of_episodes_is_served_exactly(tiny_folder: Path, tokens: int):
    """Shared beginnings, several turns, edited histories and cancellations, with plenty of memory and with little."""
    engine = load(tiny_folder, kv_cache_gb=gib(tokens), max_batch_size=8)
    model = transformers_model(tiny_folder)
    seen: list[tuple[list[int], Completion]] = []

    async def episode(number: int) -> None:
        draw = random.Random(number)
        engine.open_session(f"{number}")
        prompt = [7] * draw.choice([0, 30]) + [number % 5 + 10] * draw.randrange(1, 60)
        for turn in range(4):
            params = SamplingParams(max_tokens=draw.randrange(1, 40), temperature=0.8, seed=number * 10 + turn)
            call = asyncio.create_task(engine.generate(prompt, params, session=f"{number}"))
            if draw.random() < 0.2:
                await asyncio.sleep(draw.random() * 0.01)
                call.cancel()
            try:
                completion = await call
            except asyncio.CancelledError:
                continue
            seen.append((prompt, completion))
            kept = prompt if draw.random() < 0.8 else prompt[: len(prompt) // 2 + 1]
            prompt = [*kept, *completion.token_ids, *[number % 7 + 20] * draw.randrange(1, 25)]
        engine.close_session(f"{number}")

    await asyncio.gather(*(episode(number) for number in range(40)))
    for prompt, completion in seen:
        expected_tokens = len(completion.token_ids)
        assert expected_tokens
        assert_exact(model, prompt, completion, temperature=0.8)
    stats = engine.stats()
    assert stats.sampled_tokens - stats.cancelled_tokens == sum(len(completion.token_ids) for _, completion in seen)
    assert stats.running == stats.waiting == 0
    assert stats.prefilled_tokens < stats.prompt_tokens
    await engine.aclose()
