"""The in-process engine against transformers' own forward, and its behaviour under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from engine_helpers import Weights, assert_exact, load, transformers_model, until
from torch import Tensor

from astune.engine import InProcessEngine
from astune.schema import ConfigError, EngineError, SamplingParams

PROMPTS = [list(range(100, 100 + length)) for length in (5, 40, 41, 90, 17)]


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
    prompts = [PROMPTS[3]] * 4 + [[*PROMPTS[3][:60], own, 8, 7] for own in (9, 6)]
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


@pytest.mark.slow
async def test_a_request_joins_a_running_batch_and_leaves_it_first(tiny: InProcessEngine):
    long = asyncio.create_task(tiny.generate(PROMPTS[0], SamplingParams(max_tokens=500), session="long"))
    await until(lambda: tiny.stats().running > 0)
    await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=3), session="short")
    assert not long.done()
    assert len((await long).token_ids) == 500


async def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(tiny_folder: Path):
    tiny = load(tiny_folder, deterministic=True)
    params = SamplingParams(max_tokens=30, seed=5)
    alone = await tiny.generate(PROMPTS[3], params, session="alone")
    crowd = [tiny.generate(PROMPTS[i % 5], SamplingParams(max_tokens=9 + i, seed=i), session=f"{i}") for i in range(20)]
    among, *_ = await asyncio.gather(tiny.generate(PROMPTS[3], params, session="among"), *crowd)
    assert among.token_ids == alone.token_ids
    await tiny.aclose()


async def test_a_completion_ends_with_the_first_stop_token(tiny: InProcessEngine):
    free = await tiny.generate(PROMPTS[2], SamplingParams(max_tokens=20, seed=3), session="a")
    stop = free.token_ids[7]
    params = SamplingParams(max_tokens=20, seed=3, stop_token_ids=(stop,))
    stopped = await tiny.generate(PROMPTS[2], params, session="b")
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


async def test_tokens_of_cancelled_calls_are_counted(tiny: InProcessEngine):
    doomed = [
        asyncio.create_task(tiny.generate(PROMPTS[i], SamplingParams(max_tokens=400), session=f"{i}")) for i in range(4)
    ]
    await until(lambda: tiny.stats().sampled_tokens >= 40)
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
    kept = await tiny.generate(PROMPTS[4], SamplingParams(max_tokens=10), session="kept")
    stats = tiny.stats()
    assert stats.cancelled_tokens >= 40
    assert stats.sampled_tokens == stats.cancelled_tokens + len(kept.token_ids)
    assert stats.running == stats.waiting == 0


@pytest.mark.slow
async def test_no_completion_mixes_two_versions(tiny: InProcessEngine, tiny_folder: Path):
    model, changed = transformers_model(tiny_folder), transformers_model(tiny_folder)
    for parameter in changed.parameters():
        parameter.data.mul_(1.1)
    before = [
        asyncio.create_task(tiny.generate(p, SamplingParams(max_tokens=200), session=f"{i}"))
        for i, p in enumerate(PROMPTS)
    ]
    await until(lambda: tiny.stats().running == len(PROMPTS))
    load_task = asyncio.create_task(tiny.load_weights(Weights(1, changed)))
    await asyncio.sleep(0)
    assert not any(task.done() for task in before)
    after = await tiny.generate(PROMPTS[0], SamplingParams(max_tokens=20), session="0")
    await load_task
    assert after.weights_version == 1
    assert_exact(changed, PROMPTS[0], after)
    for prompt, completion in zip(PROMPTS, await asyncio.gather(*before), strict=True):
        assert completion.weights_version == 0
        assert_exact(model, prompt, completion)


async def test_output_that_is_not_finite_is_an_error_and_good_weights_mend_it(tiny: InProcessEngine, tiny_folder: Path):
    damaged = transformers_model(tiny_folder)
    damaged.model.layers[0].mlp.down_proj.weight.data[3, 3] = float("nan")
    await tiny.load_weights(Weights(1, damaged))
    with pytest.raises(EngineError, match="not finite"):
        await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=5), session="a")
    model = transformers_model(tiny_folder)
    await tiny.load_weights(Weights(2, model))
    completion = await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=5), session="a")
    assert_exact(model, PROMPTS[1], completion)


@pytest.mark.parametrize(("problem", "change"), [("lack", "norm.weight"), ("does not have", "extra"), ("shape", "")])
async def test_weights_that_do_not_fit_are_refused(tiny: InProcessEngine, tiny_folder: Path, problem: str, change: str):
    class Damaged(Weights):
        def named_tensors(self):
            for name, tensor in super().named_tensors():
                if change == "norm.weight" and name == "model.norm.weight":
                    continue
                yield (name + "x" if change == "extra" else name), (tensor[:1] if change == "" else tensor)

    with pytest.raises(EngineError, match=problem):
        await tiny.load_weights(Damaged(1, transformers_model(tiny_folder)))
    with pytest.raises(EngineError, match="could not take weights version 1"):
        await tiny.generate(PROMPTS[1], SamplingParams(max_tokens=5), session="a")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "problem"),
    [([], 5, "at least one"), ([5], 0, "at least one"), ([10**6], 5, "vocabulary"), ([5] * 400, 200, "context of 512")],
)
async def test_a_request_that_cannot_be_served_says_why(
    tiny: InProcessEngine, prompt: list[int], max_tokens: int, problem: str
):
    with pytest.raises(EngineError, match=problem):
        await tiny.generate(prompt, SamplingParams(max_tokens=max_tokens), session="a")


async def test_a_context_longer_than_the_models_is_refused_at_load(tiny_folder: Path):
    with pytest.raises(ConfigError, match="the model's context is 2048"):
        load(tiny_folder, max_model_len=4096)


async def test_a_closed_engine_answers_with_an_error(tiny_folder: Path):
    engine = load(tiny_folder)
    waiting = asyncio.create_task(engine.generate(PROMPTS[0], SamplingParams(max_tokens=500), session="a"))
    await asyncio.sleep(0)
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await asyncio.wait_for(waiting, timeout=30)
    with pytest.raises(EngineError, match="closed"):
        await engine.load_weights(Weights(1, transformers_model(tiny_folder)))
    await engine.aclose()
