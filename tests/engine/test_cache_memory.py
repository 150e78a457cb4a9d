"""What the engine in this process keeps between rollouts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from engine_helpers import Weights, transformers_model

from astune.config.schema import EngineConfig, ModelConfig
from astune.engine import InProcessEngine
from astune.engine.local.allocator import zeros, zeros_like
from astune.schema import SamplingParams

PROMPT = list(range(20, 60))


async def prefilled(engine: InProcessEngine, session: str) -> int:
    """Tokens computed of the prompt."""
    before = engine.stats().prefilled_tokens
    await engine.generate(PROMPT, SamplingParams(max_tokens=4, seed=1), session=session)
    return engine.stats().prefilled_tokens - before


@pytest.mark.slow
async def test_the_cache_lasts_as_long_as_a_session_is_open(tiny: InProcessEngine) -> None:
    for session in ("a", "b"):
        tiny.open_session(session)
    assert await prefilled(tiny, "a") == len(PROMPT)
    tiny.close_session("a")
    assert [await prefilled(tiny, "b") for _ in range(20)] == [1] * 20
    tiny.close_session("b")
    # The engine empties it as soon as nothing runs, so one of the next requests finds nothing.
    assert len(PROMPT) in [await prefilled(tiny, "c") for _ in range(100)]


def test_a_buffer_of_zeros_takes_memory_only_where_it_is_written() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    buffer = zeros((1024, 256, 256), torch.float32, torch.device("cpu"))  # 256 MiB
    assert resident() - before < 32 * 2**20
    assert float(buffer[7].sum()) == 0
    buffer[:256] = 1
    assert resident() - before > 60 * 2**20
    del buffer
    assert resident() - before < 32 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve by rules of their own")
def test_nothing_is_reserved_for_what_is_not_written() -> None:
    """Nor when the process forks, as it does for a program of another user."""
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this machine reserves all memory that is asked for")
    buffer = zeros((2 * psutil.virtual_memory().total,), torch.uint8, torch.device("cpu"))
    buffer[-1] = 1
    subprocess.run(["true"], user=os.geteuid(), check=True)  # with a user, Python forks


async def test_requests_wait_for_weights_that_were_dropped(tiny: InProcessEngine, tiny_folder: Path) -> None:
    params = SamplingParams(max_tokens=8, seed=1)
    before = await tiny.generate(PROMPT, params, session="a")
    await tiny.drop_weights()
    waiting = asyncio.ensure_future(tiny.generate(PROMPT, params, session="b"))
    await asyncio.sleep(0)  # it is with the engine now
    assert (tiny.stats().waiting, waiting.done()) == (1, False)
    await tiny.load_weights(Weights(7, transformers_model(tiny_folder)))
    after = await waiting
    assert (after.token_ids, after.weights_version) == (before.token_ids, 7)
    await tiny.drop_weights()
    last = asyncio.ensure_future(tiny.generate(PROMPT, params, session="c"))
    await tiny.aclose()
    assert "closed" in str(await asyncio.gather(last, return_exceptions=True))


@pytest.mark.parametrize(("n_conversations", "warns"), [(2, False), (12, True)])
async def test_conversations_that_displace_each_other_are_named_once(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture, n_conversations: int, warns: bool
) -> None:
    settings = EngineConfig(kv_cache_gb=256 * 512 / 2**30)  # 512 tokens of the tiny model in bfloat16
    engine = InProcessEngine.load(
        tiny_folder, model=ModelConfig(device="cpu", dtype="bfloat16"), engine=settings, max_model_len=128
    )
    engine.open_session("game")
    for turn in range(8):
        for player in range(n_conversations):
            prompt = [*range(50 + player, 50 + player + 30 + 8 * turn)]
            await engine.generate(prompt, SamplingParams(max_tokens=2, seed=1), session="game")
    await engine.aclose()
    told = [record.message for record in caplog.records if "displace each other" in record.message]
    assert len(told) == warns
    assert all("the KV cache holds 512 tokens" in message for message in told)


def test_buffers_that_lie_together_are_apart_from_each_other() -> None:
    shapes = [(300, 100), (7,), (0,), (), (50, 50)]
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.float64, torch.bfloat16]
    alike = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    buffers = zeros_like(alike)
    assert [(tuple(buffer.shape), buffer.dtype) for buffer in buffers] == list(zip(shapes, dtypes, strict=True))
    assert not any(buffer.any() for buffer in buffers)
    for number, buffer in enumerate(buffers):
        buffer.fill_(number + 1)
    assert all(bool((buffer == number + 1).all()) for number, buffer in enumerate(buffers))
