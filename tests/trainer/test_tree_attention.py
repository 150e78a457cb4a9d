"""Tree attention on its own: the compiled kernels and the matrix products against float64."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astune.engine import compiled
from astune.engine.compiled import processor
from astune.trainer import _tree_kernels
from astune.trainer._tree_kernels import TreeKernels, kernels_for
from astune.trainer.attention import _Batched, _Tiled
from astune.trainer.attention_plan import AttentionPlan, plan_attention
from astune.trainer.trie import PrefixTree, build_tree

needs_kernels = pytest.mark.skipif("avx512_bf16" not in processor(), reason="the kernels need AVX512-BF16")


@st.composite
def trees(draw: st.DrawFn) -> PrefixTree:
    rng = random.Random(draw(st.integers(0, 2**32)))
    paths = [[rng.random() for _ in range(draw(st.integers(16, 90)))]]
    for _ in range(draw(st.integers(0, 6))):
        trunk = draw(st.sampled_from(paths))
        fresh = draw(st.integers(1, 400 if draw(st.booleans()) else 20))
        paths.append(trunk[: draw(st.integers(0, len(trunk)))] + [rng.random() for _ in range(fresh)])
    ids = {number: index for index, number in enumerate({number for path in paths for number in path})}
    return build_tree([[ids[number] for number in path] for path in paths])


def tensors(n_tokens: int, heads: int, group: int, dim: int) -> list[Tensor]:
    """Query, key, value, and a gradient of the output."""
    generator = torch.Generator().manual_seed(n_tokens)
    shapes = [(heads, n_tokens, group, dim), (heads, n_tokens, dim), (heads, n_tokens, dim)]
    return [torch.randn(*shape, generator=generator).bfloat16() for shape in [*shapes, shapes[0]]]


def computed(function: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
    """The output and the three gradients."""
    leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
    out = function.apply(*leaves, given[0].shape[-1] ** -0.5, *more)
    # A model's gradient comes in another layout of memory.
    grad_out = given[3].transpose(0, 1).contiguous().transpose(0, 1)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def errors(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((one.double() - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True)]


def kernels(dim: int) -> TreeKernels:
    found = kernels_for(torch.empty(1, dim, dtype=torch.bfloat16), torch.empty(1, dim, dtype=torch.bfloat16))
    assert found is not None
    return found


@pytest.mark.slow
@needs_kernels
@given(tree=trees(), heads=st.integers(1, 3), group=st.sampled_from([1, 3, 4, 30]), dim=st.sampled_from([64, 128]))
@settings(max_examples=60)
def test_the_kernels_are_nearer_to_float64_than_the_matrix_products(
    tree: PrefixTree, heads: int, group: int, dim: int
) -> None:
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), heads, group, dim)
    exact = computed(_Batched, [tensor.double() for tensor in given], plan)
    batched = errors(computed(_Batched, given, plan), exact)
    tiled = errors(computed(_Tiled, given, plan, kernels(dim)), exact)
    assert all(ours < max(1.1 * theirs, 3e-3) for ours, theirs in zip(tiled, batched, strict=True)), (tiled, batched)


@needs_kernels
def test_the_kernels_pass_on_what_is_not_a_number() -> None:
    tree = build_tree([[1, 2, 3], [1, 2, 4, 5]])
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), 1, 2, 64)
    given[1][0, 2, 7] = float("nan")  # the key of token 3, which only it sees
    out, *grads = computed(_Tiled, given, plan, kernels(64))
    assert out[0, 2].isnan().all()
    assert out[0, [0, 1, 3, 4]].isfinite().all()
    assert grads[0][0, 2].isnan().all()


@needs_kernels
def test_the_kernels_give_the_same_bits_every_time() -> None:
    trunk = list(range(700))
    tree = build_tree([trunk[:n] + [1000 + n] * 90 for n in range(100, 700, 60)])
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), 3, 3, 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        first, *others = [computed(_Tiled, given, plan, kernels(64)) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, same) for other in others for one, same in zip(first, other, strict=True))


@needs_kernels
def test_without_a_compiler_the_trainer_says_so_and_takes_matrix_products(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_COMPILER", "no-such-compiler")
    _tree_kernels._kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            query, _, value, _ = tensors(3, 1, 2, 64)
            assert kernels_for(query, value) is None
    finally:
        _tree_kernels._kernels.cache_clear()
    assert "install gcc" in caplog.text


@needs_kernels
def test_the_kernels_are_for_bfloat16_and_whole_heads_only() -> None:
    for dim, dtype, served in ((64, torch.bfloat16, True), (48, torch.bfloat16, False), (64, torch.float32, False)):
        found = kernels_for(torch.empty(2, dim, dtype=dtype), torch.empty(2, dim, dtype=dtype))
        assert (found is not None) is served


@given(trees(), st.integers(1, 9), st.integers(1, 50))
@settings(max_examples=50)
def test_a_tile_lets_each_token_see_exactly_its_own_path(tree: PrefixTree, group: int, rows: int) -> None:
    plan: AttentionPlan = plan_attention(tree, torch.device("cpu"))
    tiles = plan.tiles(group, rows)
    path_of = {int(row): rows_of[: place + 1].tolist() for rows_of in tree.rows for place, row in enumerate(rows_of)}
    covered: list[int] = []
    for first, end, segment in tiles.tile_N3.tolist():
        assert 0 < end - first <= tiles.tokens
        ranges = tiles.range_R2[int(tiles.first_range[segment]) : int(tiles.first_range[segment + 1])].tolist()
        assert sum(-(-to // 16) * 16 - start // 16 * 16 for start, to in ranges) <= tiles.width
        for token in range(first, end):
            covered.append(token)
            assert [at for start, to in ranges for at in range(start, min(to, token + 1))] == path_of[token]
    assert covered == list(range(len(tree)))
