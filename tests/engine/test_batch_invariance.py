"""With `deterministic`, a completion is a function of weights, prompt and seed: to the last bit, in any company."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import Weights, assert_exact, load, transformers_model
from test_architectures import ARCHITECTURES, save_random

from astune.engine import InProcessEngine
from astune.schema import Completion, SamplingParams

pytestmark = pytest.mark.slow

Said = dict[str, list[Completion]]
SESSIONS = [f"episode-{number:03d}" for number in range(12)]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


async def episode(engine: InProcessEngine, session: str, hurry: random.Random | None = None) -> list[Completion]:
    """Three turns over a beginning that groups share; `hurry` delays the episode's own work."""
    number = int(session[-3:])
    prompt = [9] * 70 + [number // 4 + 3] * (60 + number // 4) + [number + 20] * number
    completions: list[Completion] = []
    engine.open_session(session)
    for turn in range(3):
        if hurry is not None:
            await asyncio.sleep(hurry.random() * 0.02)
        params = SamplingParams(max_tokens=5 + 3 * number, temperature=0.9, seed=number * 3 + turn)
        completions.append(await engine.generate(prompt, params, session=session))
        prompt = [*prompt, *completions[-1].token_ids, 4, 5, 6]
    engine.close_session(session)
    return completions


async def together(engine: InProcessEngine, seed: int) -> Said:
    draw = random.Random(seed)
    sessions = draw.sample(SESSIONS, len(SESSIONS))
    found = await asyncio.gather(*(episode(engine, session, draw) for session in sessions))
    return dict(zip(sessions, found, strict=True))


async def one_by_one(engine: InProcessEngine) -> Said:
    return {session: await episode(engine, session) for session in SESSIONS}


@pytest.mark.parametrize(("architecture", "changes", "_"), ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
async def test_episodes_say_alone_what_they_say_among_others_bit_for_bit(
    architecture: str, changes: dict[str, Any], _: type, dtype: str, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    runs: list[Said] = []
    for seed in range(2):
        engine = load(tmp_path, dtype=dtype, deterministic=True)
        runs.append(await together(engine, seed))
        await engine.aclose()
    engine = load(tmp_path, dtype=dtype, deterministic=True)
    runs.append(await one_by_one(engine))
    await engine.aclose()
    assert runs[0] == runs[1] == runs[2]


async def test_no_place_among_six_requests_leaves_a_trace(tmp_path: Path, two_threads: None) -> None:
    save_random("Phi3", {}, tmp_path)
    engine = load(tmp_path, deterministic=True, max_batch_size=6)
    among_others = await together(engine, 0)
    await engine.aclose()
    engine = load(tmp_path, deterministic=True, max_batch_size=6)
    assert await one_by_one(engine) == among_others
    await engine.aclose()


async def test_it_is_the_models_distribution_that_is_sampled_from(tiny_folder: Path) -> None:
    engine = load(tiny_folder, deterministic=True)
    model = transformers_model(tiny_folder)
    for number, completions in enumerate((await together(engine, 0)).values()):
        assert completions, number
    prompt = [9] * 130
    assert_exact(model, prompt, await engine.generate(prompt, SamplingParams(max_tokens=60, seed=1), session="a"))
    stats = engine.stats()
    assert stats.prefilled_tokens < stats.prompt_tokens
    await engine.aclose()


async def test_little_memory_and_earlier_weights_leave_no_trace(tiny_folder: Path) -> None:
    """A run that was resumed has an empty cache, and another machine load."""
    model = transformers_model(tiny_folder)
    engine = load(tiny_folder, dtype="bfloat16", deterministic=True, kv_cache_gb=0.0002)
    await together(engine, 3)
    await engine.load_weights(Weights(1, model))  # pyright: ignore[reportArgumentType]
    said = await together(engine, 4)
    await engine.aclose()
    fresh = load(tiny_folder, dtype="bfloat16", deterministic=True)
    await fresh.load_weights(Weights(1, model))  # pyright: ignore[reportArgumentType]
    assert await together(fresh, 5) == said
    await fresh.aclose()
