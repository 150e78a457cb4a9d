"""The compiled kernels against torch's operators in float64, in both number formats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_exact, load, transformers_model
from torch import Tensor

from astune.engine import compiled
from astune.engine.local import kernels as module
from astune.engine.local._adapters import PolicyRows
from astune.engine.local._cpu_adapters import AdapterRows, LowRank, SeparateAdapters
from astune.engine.local.kernels import are_available, can_attend, kernels, room_for_scores
from astune.schema import SamplingParams

PRECISION = {torch.float32: 1e-6, torch.bfloat16: 3e-3}
"""Relative error of a whole tensor; bfloat16 rounds each number by up to 1/512 of it."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not are_available(torch.float32), reason="no gcc here")]


@pytest.fixture(params=list(PRECISION), ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest, vectors: None) -> torch.dtype:
    torch.manual_seed(0)
    return request.param


def relative_error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("rows", "dim"), [(1, 576), (7, 20), (80, 64)])
def test_norm(dtype: torch.dtype, rows: int, dim: int) -> None:
    x, weight = torch.randn(rows, dim, dtype=dtype) * 3, torch.randn(dim, dtype=dtype)
    exact = F.rms_norm(x.double(), (dim,), weight.double(), 1e-5)
    assert relative_error(kernels(dtype).rms_norm(x, weight, 1e-5), exact) < PRECISION[dtype]


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("tokens", [3, 70])
def test_heads_are_turned_and_stored_in_their_slots(dtype: torch.dtype, normed: bool, tokens: int) -> None:
    heads, kv_heads, dim, capacity = 6, 2, 48, 90
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    norms = (torch.randn(dim, dtype=dtype), torch.randn(dim, dtype=dtype)) if normed else None
    angles = torch.rand(tokens, dim // 2) * 7
    slots = torch.arange(tokens) % 3
    positions = 5 + torch.arange(tokens) // 3
    keys, values = torch.zeros(2, 4, kv_heads, capacity, dim, dtype=dtype)

    q, k, v = qkv.double().split([heads, kv_heads, kv_heads], dim=1)
    if norms:
        q, k = (F.rms_norm(x, (dim,), w.double(), 1e-5) for x, w in zip((q, k), norms, strict=True))
    turn = torch.polar(torch.ones(()).double(), angles.double())[:, None]
    q, k = (torch.view_as_real(torch.complex(*x.chunk(2, dim=-1)) * turn).movedim(-1, -2).flatten(-2) for x in (q, k))

    kernels(dtype).turn_and_store(qkv, norms, 1e-5, (angles.cos(), angles.sin()), slots, positions, keys, values)
    assert relative_error(qkv[:, :heads], q) < 2 * PRECISION[dtype]
    assert relative_error(keys[slots, :, positions], k) < 2 * PRECISION[dtype]
    assert torch.equal(values[slots, :, positions].double(), v)
    assert int(keys.count_nonzero()) == tokens * kv_heads * dim


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(9, 3, 64), (1, 1, 16), (14, 2, 64), (8, 2, 128), (4, 4, 80), (6, 3, 96)]
)
@pytest.mark.parametrize("window", [1 << 60, 21])
def test_next_tokens_attend_to_their_slots(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int
) -> None:
    lengths = torch.tensor([1, 16, 33, 64, 77])
    slots = torch.tensor([4, 0, 5, 2, 1])
    keys, values = torch.randn(2, 6, kv_heads, 77, dim, dtype=dtype)
    q = torch.randn(len(lengths), heads + 2, dim, dtype=dtype)[:, :heads] * 3
    ours = attended(q, keys, values, slots, lengths, scale=dim**-0.5, window=window)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        seen = slice(max(0, int(length) - window), int(length))
        k, v = (x[slot, :, seen].double().repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
        exact = F.scaled_dot_product_attention(q[row].double()[:, None], k, v)[:, 0]
        assert relative_error(ours[row], exact) < 2 * PRECISION[dtype]


def test_what_is_not_finite_stays_visible_and_with_its_own_sequence(dtype: torch.dtype) -> None:
    keys, values = torch.randn(2, 2, 1, 40, 16, dtype=dtype)
    keys[0, 0, 3, 2] = float("nan")
    q = torch.randn(2, 1, 16, dtype=dtype)
    slots, lengths = torch.tensor([0, 1]), torch.tensor([40, 40])
    out = attended(q, keys, values, slots, lengths, scale=0.25)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    normed = kernels(dtype).rms_norm(torch.full((1, 16), float("inf"), dtype=dtype), torch.ones(16, dtype=dtype), 1e-5)
    assert normed.isnan().all()


def test_a_sequence_gets_the_same_numbers_whatever_stands_beside_it(dtype: torch.dtype) -> None:
    keys, values = torch.randn(2, 9, 3, 50, 64, dtype=dtype)
    q = torch.randn(9, 9, 64, dtype=dtype)
    slots, lengths = torch.arange(9), torch.arange(40, 49)

    def attend(rows: slice) -> Tensor:
        return attended(q[rows], keys, values, slots[rows], lengths[rows], scale=0.125)

    assert torch.equal(attend(slice(0, 9))[4], attend(slice(4, 5))[0])


@pytest.mark.parametrize("window", [1 << 60, 21])
def test_a_beginning_that_lies_in_another_slot_is_read_there(dtype: torch.dtype, window: int) -> None:
    keys, values = torch.randn(2, 6, 3, 77, 64, dtype=dtype)
    q = torch.randn(5, 9, 64, dtype=dtype)
    slots, prefixes = torch.tensor([4, 0, 5, 2, 1]), torch.full((5,), 3)
    lengths, shared = torch.tensor([1, 16, 33, 64, 77]), torch.tensor([0, 15, 32, 7, 64])
    ours = attended(q, keys, values, slots, lengths, prefixes, shared, scale=0.125, window=window)
    for slot, prefix, n in zip(slots, prefixes, shared, strict=True):
        for buffer in (keys, values):
            buffer[slot, :, :n] = buffer[prefix, :, :n]
    keys[3] = values[3] = float("nan")
    assert torch.equal(ours, attended(q, keys, values, slots, lengths, scale=0.125, window=window))


@pytest.mark.parametrize("cap", [2.0, 50.0])
def test_scores_are_capped_as_gemma_2_does(dtype: torch.dtype, cap: float) -> None:
    keys, values = torch.randn(2, 4, 3, 50, 64, dtype=dtype)
    q = 3 * torch.randn(4, 6, 64, dtype=dtype)
    lengths = torch.tensor([1, 17, 33, 50])
    ours = attended(q, keys, values, torch.arange(4), lengths, scale=0.5, softcap=cap)
    for slot, length in enumerate(lengths):
        k, v = (x[slot, :, :length].double().repeat_interleave(2, 0) for x in (keys, values))
        scores = (k @ q[slot].double()[..., None]).squeeze(-1) * 0.5
        exact = torch.softmax(cap * torch.tanh(scores / cap), -1)[:, None] @ v
        assert relative_error(ours[slot], exact[:, 0]) < PRECISION[dtype]


def attended(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    prefixes: Tensor | None = None,
    shared: Tensor | None = None,
    *,
    scale: float,
    window: int = 1 << 60,
    softcap: float | None = None,
) -> Tensor:
    """What the kernel computes; without `prefixes` every slot holds all of its tokens."""
    places = slots, lengths, *(torch.zeros_like(slots) if more is None else more for more in (prefixes, shared))
    room = room_for_scores(int(lengths.max()))
    return kernels(q.dtype).attend(q, keys, values, places, scale=scale, window=window, softcap=softcap, scores=room)


def test_odd_heads_and_values_of_another_size_go_another_way() -> None:
    keys = torch.zeros(1, 1, 8, 24)
    assert not can_attend(keys, keys)
    assert not can_attend(keys[..., :16], keys)
    assert can_attend(keys[..., :16], keys[..., :16])
    assert not can_attend(keys[..., :16].half(), keys[..., :16].half())


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiled, "_COMPILER", "no-such-compiler")
    module._kernels.cache_clear()
    yield
    module._kernels.cache_clear()


@pytest.mark.usefixtures("no_compiler")
async def test_without_a_compiler_the_engine_says_so_and_is_as_exact(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = load(tiny_folder)
    assert "install gcc" in caplog.text
    completion = await engine.generate([5, 6, 7], SamplingParams(max_tokens=20, seed=1), session="a")
    assert_exact(transformers_model(tiny_folder), [5, 6, 7], completion)
    await engine.aclose()


def test_a_compiler_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "kernels.c"
    source.write_text("this is not C")
    monkeypatch.setattr(module, "_SOURCE", source)
    module._kernels.cache_clear()
    try:
        assert not are_available(torch.float32)
    finally:
        module._kernels.cache_clear()
    assert "error:" in caplog.text


def test_a_damaged_library_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path))
    module._kernels.cache_clear()
    assert are_available(torch.float32)
    [library] = (tmp_path / "kernels").glob("*.so")
    library.unlink()  # the loaded one stays mapped
    library.write_bytes(b"not a library")
    module._kernels.cache_clear()
    assert are_available(torch.float32)
    module._kernels.cache_clear()


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


@pytest.mark.parametrize("tokens", [1, 3, 50])
def test_each_row_gets_what_its_own_policy_adds(dtype: torch.dtype, tokens: int) -> None:
    parts = {"q": (0, 40), "k": (40, 16)}
    adapters = {
        policy: {
            layer: LowRank(torch.randn(rank, 24).to(dtype), torch.randn(width, rank).to(dtype), first)
            for layer, (first, width) in parts.items()
            if (policy, layer) != ("fox", "k")
        }
        for policy, rank in (("wolf", 3), ("hen", 20), ("fox", 16))
    }
    x_ND, y_NE = torch.randn(tokens, 24).to(dtype), torch.randn(tokens, 56).to(dtype)
    policy_of_row = [("wolf", "fox", "")[row % 3] for row in range(tokens)]
    wanted = y_NE.double()
    for row, policy in enumerate(policy_of_row):
        for down, up, first in adapters.get(policy, {}).values():
            wanted[row, first : first + len(up)] += up.double() @ (down.double() @ x_ND[row].double())
    rows = {name: [row for row, policy in enumerate(policy_of_row) if policy == name] for name in ("fox", "wolf")}
    lists = [PolicyRows(name, torch.tensor(own)) for name, own in rows.items() if own]
    separate = SeparateAdapters([list(adapter.values()) for adapter in adapters.values()], dtype)
    separate.add(x_ND, y_NE, AdapterRows(list(adapters), lists, tokens))
    assert relative_error(y_NE, wanted) < PRECISION[dtype]


@pytest.mark.parametrize("width", [44, 48])
def test_what_an_adapter_adds_to_a_row_is_the_same_beside_any_others(dtype: torch.dtype, width: int) -> None:
    x_ND = torch.randn(13, 48).to(dtype)
    separate = SeparateAdapters([[LowRank(torch.randn(3, 48).to(dtype), torch.randn(width, 3).to(dtype), 0)]], dtype)

    def added(rows: slice) -> Tensor:
        y_NE = torch.zeros(len(x_ND[rows]), width, dtype=dtype)
        separate.add(x_ND[rows], y_NE, AdapterRows(["wolf"], [PolicyRows("wolf", torch.arange(len(y_NE)))], len(y_NE)))
        return y_NE

    assert torch.equal(added(slice(None)), torch.cat([added(slice(row, row + 1)) for row in range(13)]))
