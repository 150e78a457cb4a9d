"""Who runs when: memory bounds, lockstep, and a crowd of sessions that come, go on, branch and are cancelled."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from engine_helpers import Weights, assert_exact, load, transformers_model, until

from astune.engine import InProcessEngine
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
    await until(lambda: engine.stats().running == 3 and engine.stats().waiting == 7)
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


async def rollout(engine: InProcessEngine, hurry: random.Random) -> dict[str, list[Completion]]:
    """Twelve episodes of two turns, whose own work takes a different time in every run."""
    sessions = [f"episode-{number:03d}" for number in range(12)]
    results: dict[str, list[Completion]] = {session: [] for session in sessions}
    for session in sessions:
        engine.open_session(session)

    async def episode(session: str) -> None:
        number = int(session[-3:])
        prompt = [9] * 20 + [number // 4 + 3] * (5 + number // 4)
        for turn in range(2):
            await asyncio.sleep(hurry.random() * 0.02)
            params = SamplingParams(max_tokens=5 + number, seed=number * 2 + turn)
            completion = await engine.generate(prompt, params, session=session)
            results[session].append(completion)
            prompt = [*prompt, *completion.token_ids, 4, 5, 6]
        engine.close_session(session)

    await asyncio.gather(*(episode(session) for session in sessions))
    return results


async def test_in_lockstep_two_runs_agree_bit_for_bit(tiny_folder: Path):
    model = transformers_model(tiny_folder)
    runs: list[list[dict[str, list[Completion]]]] = []
    for run in range(2):
        engine = load(tiny_folder, dtype="bfloat16", deterministic=True, max_batch_size=5)
        steps = []
        for step in range(3):
            if run == 0 or step:  # the second run is one that was resumed after the first step
                steps.append(await rollout(engine, random.Random(run * 10 + step)))
            await engine.load_weights(Weights(step + 1, model))
        runs.append(steps[1:] if run == 0 else steps)
        await engine.aclose()
    for step, (first, second) in enumerate(zip(*runs, strict=True)):
        for session, completions in first.items():
            assert [c.weights_version for c in completions] == [step + 1] * 2
            assert completions == second[session]


async def test_in_lockstep_rollouts_do_not_depend_on_what_was_rolled_out_before(tiny_folder: Path):
    engine = load(tiny_folder, dtype="bfloat16", deterministic=True, max_batch_size=5)
    for seed in range(4):
        last = await rollout(engine, random.Random(seed))
    await engine.aclose()
    fresh = load(tiny_folder, dtype="bfloat16", deterministic=True, max_batch_size=5)
    assert await rollout(fresh, random.Random(9)) == last
    await fresh.aclose()


async def test_in_lockstep_a_batch_waits_for_every_open_session(tiny_folder: Path):
    engine = load(tiny_folder, deterministic=True)
    for session in ("a", "b"):
        engine.open_session(session)
    first = asyncio.create_task(engine.generate([5, 6], SamplingParams(max_tokens=4), session="a"))
    await until(lambda: engine.stats().waiting == 1)
    assert engine.stats().running == 0
    await engine.generate([5, 7], SamplingParams(max_tokens=4), session="b")
    await first
    second = asyncio.create_task(engine.generate([5, 6], SamplingParams(max_tokens=4), session="a"))
    await until(lambda: engine.stats().waiting == 1)
    engine.close_session("b")
    await asyncio.wait_for(second, timeout=30)
    await engine.aclose()
