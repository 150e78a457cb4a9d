"""The key-value cache: slots change places together with what they hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from engine_helpers import assert_exact, load, transformers_model

from astune.engine._slots import LayerShape, Slot, SlotCache
from astune.schema import SamplingParams


def filled_cache(slots: int) -> SlotCache:
    """One layer of one head; the slot taken first holds the key and value 1, the next one 2, and so on."""
    cache = SlotCache(
        [LayerShape(1, 1, 1)], dtype=torch.float32, device=torch.device("cpu"), budget_bytes=1 << 20, max_slots=slots
    )
    for number in range(1, slots + 1):
        slot = cache.take(None, 0, total=3, session=f"{number}", open_sessions=set())
        assert slot is not None
        row = cache.row_index(torch.tensor([slot.index]), torch.tensor([0]), kv_heads=1)
        content = torch.full((1, 1, 1), float(number))
        cache.write(0, row, content, content)
        slot.tokens.append(number)
    return cache


def held(cache: SlotCache, slot: Slot) -> tuple[float, float]:
    return cache.keys[0][slot.index, 0, 0].item(), cache.values[0][slot.index, 0, 0].item()


@pytest.mark.parametrize(
    ("busy", "moved"), [({8, 2, 5}, True), ({1, 8}, True), ({7, 8}, False), ({2, 3, 4}, False), (set(), False)]
)
def test_busy_slots_that_are_spread_widely_become_the_first_ones(busy: set[int], moved: bool) -> None:
    cache = filled_cache(8)
    for slot in list(cache.slots):
        if slot.tokens[0] not in busy:
            cache.release(slot)
    cache.draw_together()
    places = sorted(slot.index for slot in cache.slots if slot.busy)
    assert places == (list(range(len(busy))) if moved else sorted(number - 1 for number in busy))
    assert [slot.index for slot in cache.slots] == list(range(8))
    assert sorted(slot.tokens[0] for slot in cache.slots) == list(range(1, 9))
    assert all(held(cache, slot) == (slot.tokens[0], slot.tokens[0]) for slot in cache.slots)


async def test_sequences_that_outlive_a_crowd_go_on_exactly(tiny_folder: Path) -> None:
    engine, model = load(tiny_folder), transformers_model(tiny_folder)
    lengths = {number: 60 if number % 5 == 4 else 3 + number for number in range(20)}
    prompts = {number: [number + 3] * (10 + number) for number in lengths}
    completions = await asyncio.gather(
        *(
            engine.generate(prompts[number], SamplingParams(max_tokens=length, seed=number), session=f"{number}")
            for number, length in lengths.items()
        )
    )
    for number, completion in enumerate(completions):
        assert_exact(model, prompts[number], completion)
    await engine.aclose()
