"""A thread ends its helpers before another one computes, so that OpenMP lets the other's wait actively."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from engine_helpers import load, until

from astune.engine.cpu_threads import end_idle_helpers
from astune.schema import SamplingParams

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP computes on Linux only")


def threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


@pytest.fixture(autouse=True)
def without_helpers() -> Iterator[set[int]]:
    """The threads of this process without any of OpenMP's, which has one helper a thread here.

    Those of earlier tests may end meanwhile.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    end_idle_helpers()
    yield threads()
    end_idle_helpers()
    torch.set_num_threads(before)


def test_the_helpers_of_a_thread_end_and_come_again(without_helpers: set[int]) -> None:
    numbers = torch.randn(1 << 20)
    expected = numbers.exp()
    for _ in range(3):
        assert len(threads() - without_helpers) == 1
        end_idle_helpers()
        assert threads() <= without_helpers
        assert torch.equal(numbers.exp(), expected)


async def test_an_idle_engine_has_one_thread(tiny_folder: Path, without_helpers: set[int]) -> None:
    engine = load(tiny_folder)
    try:
        await engine.generate(list(range(100, 400)), SamplingParams(max_tokens=8), session="a")
        await until(lambda: len(threads() - without_helpers) == 1)
    finally:
        await engine.aclose()
