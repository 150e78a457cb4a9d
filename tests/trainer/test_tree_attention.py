"""Tree attention on its own: compiled kernels and matrix products against float64, FlexAttention against the latter."""

from __future__ import annotations

import logging
import random
from functools import cache, partial
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from astune.engine import compiled
from astune.engine.compiled import processor
from astune.engine.local import tree_attention as module
from astune.engine.local.tree_attention import TreeKernels, kernels_for
from astune.trainer import _flex
from astune.trainer.attention import _Batched, _Tiled, attending, tree_attention
from astune.trainer.attention_plan import BLOCK, AttentionPlan, plan_attention
from astune.trainer.trie import PrefixTree, build_tree

_FLOAT, _HALF = torch.float32, torch.bfloat16
_multiplies_halves = pytest.mark.skipif("avx512_bf16" not in processor(), reason="bfloat16 needs AVX512-BF16")
of_each_type = pytest.mark.parametrize("dtype", [_FLOAT, pytest.param(_HALF, marks=_multiplies_halves)])
of_each_form = pytest.mark.parametrize(
    ("dtype", "flag"),
    [
        pytest.param(_FLOAT, "-DANY", id="float32, the widest vectors here"),
        pytest.param(_FLOAT, "-mno-avx512f", id="float32, AVX2"),
        pytest.param(_FLOAT, "-mno-avx", id="float32, plain"),
        pytest.param(_HALF, "-DANY", id="bfloat16, AMX where it is", marks=_multiplies_halves),
        pytest.param(_HALF, "-mno-amx-bf16", id="bfloat16, without AMX", marks=_multiplies_halves),
    ],
)


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


def tensors(n_tokens: int, heads: int, group: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key, value, and a gradient of the output."""
    generator = torch.Generator().manual_seed(n_tokens)
    shapes = [(heads, n_tokens, group, dim), (heads, n_tokens, dim), (heads, n_tokens, dim)]
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in [*shapes, shapes[0]]]


def computed(function: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
    """The output and the three gradients."""
    leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
    out = function.apply(*leaves, given[0].shape[-1] ** -0.5, *more)
    # A model's gradient comes in another layout of memory.
    grad_out = given[3].transpose(0, 1).contiguous().transpose(0, 1)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def tiled(given: list[Tensor], plan: AttentionPlan, found: TreeKernels) -> list[Tensor]:
    """The same by the kernels, which take tokens first."""
    tokens_first = [tensor.transpose(0, 1).contiguous() for tensor in given]
    return [tensor.transpose(0, 1) for tensor in computed(_Tiled, tokens_first, plan.tiles(given[0].shape[2]), found)]


def errors(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((one.double() - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True)]


def kernels(dtype: torch.dtype, dim: int = 64) -> TreeKernels:
    found = kernels_for(*[torch.empty(1, dim, dtype=dtype)] * 3)
    assert found is not None
    return found


@cache
def in_form(dtype: torch.dtype, flag: str) -> TreeKernels:
    functions = compiled.compiled_for(dtype, module._SOURCE, module._SIGNATURES, flag, doing="a test")
    assert functions is not None
    return TreeKernels(functions)


@pytest.mark.slow
@of_each_form
@given(
    tree=trees(), heads=st.integers(1, 3), group=st.sampled_from([1, 3, 4, 30]), dim=st.sampled_from([32, 64, 96, 128])
)
@settings(max_examples=examples(30))
def test_the_kernels_are_as_near_to_float64_as_the_matrix_products(
    dtype: torch.dtype, flag: str, tree: PrefixTree, heads: int, group: int, dim: int
) -> None:
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), heads, group, dim, dtype)
    exact = computed(_Batched, [tensor.double() for tensor in given], plan)
    batched = errors(computed(_Batched, given, plan), exact)
    ours = errors(tiled(given, plan, in_form(dtype, flag)), exact)
    least = 3e-3 if dtype == _HALF else 1e-6
    assert all(one < max(1.1 * other, least) for one, other in zip(ours, batched, strict=True)), (ours, batched)


@pytest.mark.slow
@of_each_type
def test_a_context_of_many_chunks_is_attended_to(dtype: torch.dtype) -> None:
    tree = build_tree([[*range(1500)], [*range(700), *range(2000, 2900)]])
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), 1, 2, 32, dtype)
    given[0][:, -1] *= 40  # a row whose largest score is found late
    exact = computed(_Batched, [tensor.double() for tensor in given], plan)
    batched = errors(computed(_Batched, given, plan), exact)
    ours = errors(tiled(given, plan, kernels(dtype)), exact)
    assert all(one < max(2 * other, 2e-6) for one, other in zip(ours, batched, strict=True)), (ours, batched)


@of_each_type
def test_the_kernels_pass_on_what_is_not_a_number(dtype: torch.dtype) -> None:
    tree = build_tree([[1, 2, 3], [1, 2, 4, 5]])
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), 1, 2, 64, dtype)
    given[1][0, 2, 7] = float("nan")  # the key of token 3, which only it sees
    out, *grads = tiled(given, plan, kernels(dtype))
    assert out[0, 2].isnan().all()
    assert out[0, [0, 1, 3, 4]].isfinite().all()
    assert grads[0][0, 2].isnan().all()


@of_each_type
def test_the_kernels_give_the_same_bits_every_time(dtype: torch.dtype) -> None:
    trunk = list(range(700))
    tree = build_tree([trunk[:n] + [1000 + n] * 90 for n in range(100, 700, 60)])
    plan = plan_attention(tree, torch.device("cpu"))
    given = tensors(len(tree), 3, 3, 64, dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        first, *others = [tiled(given, plan, kernels(dtype)) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, same) for other in others for one, same in zip(first, other, strict=True))


def test_without_a_compiler_the_trainer_says_so_and_takes_matrix_products(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_COMPILER", "no-such-compiler")
    module._kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert kernels_for(*tensors(3, 1, 2, 64, _FLOAT)[:3]) is None
    finally:
        module._kernels.cache_clear()
    assert "install gcc" in caplog.text


@of_each_type
def test_the_kernels_are_for_their_types_and_whole_heads_only(dtype: torch.dtype) -> None:
    for dim, of_type, served in ((64, dtype, True), (48, dtype, False), (64, torch.float64, False)):
        found = kernels_for(*[torch.empty(2, dim, dtype=of_type)] * 3)
        assert (found is not None) is served


@of_each_type
@pytest.mark.parametrize("other", [0, 1, 2])
def test_tensors_of_several_types_are_not_read_as_if_they_were_of_one(dtype: torch.dtype, other: int) -> None:
    plan = plan_attention(build_tree([[1, 2, 3]]), torch.device("cpu"))
    given = [torch.ones(1, 1, 3, 64, dtype=dtype) for _ in range(3)]
    given[other] = given[other].to(_HALF if dtype == _FLOAT else _FLOAT)
    with attending(plan), pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        tree_attention(torch.nn.Identity(), given[0], given[1], given[2], None)


@given(trees(), st.integers(1, 70))
@settings(max_examples=examples(50))
def test_a_tile_lets_each_token_see_exactly_its_own_path(tree: PrefixTree, group: int) -> None:
    plan: AttentionPlan = plan_attention(tree, torch.device("cpu"))
    tiles = plan.tiles(group)
    path_of = {int(row): rows_of[: place + 1].tolist() for rows_of in tree.rows for place, row in enumerate(rows_of)}
    covered: list[int] = []
    for first, end, segment in tiles.tile_N3.tolist():
        assert 0 < end - first <= tiles.tokens
        ranges = tiles.range_R2[int(tiles.first_range[segment]) : int(tiles.first_range[segment + 1])].tolist()
        for token in range(first, end):
            covered.append(token)
            assert [at for start, to in ranges for at in range(start, min(to, token + 1))] == path_of[token]
    assert covered == list(range(len(tree)))


@given(trees())
@settings(max_examples=examples(30))
def test_the_block_mask_lets_each_token_see_exactly_its_own_path(tree: PrefixTree) -> None:
    mask = plan_attention(tree, torch.device("cpu")).block_mask
    path_of = {int(row): rows_of[: place + 1].tolist() for rows_of in tree.rows for place, row in enumerate(rows_of)}
    token = torch.arange(len(tree))
    seen = mask.mask_mod(token, token, token[:, None], token[None])
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [path_of[row] for row in range(len(tree))]
    blocks = (
        torch.nn.functional.pad(seen, (0, -len(tree) % BLOCK) * 2).unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    )
    assert torch.equal(mask.to_dense()[0, 0].bool(), blocks.any(3).any(1))
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    listed = zip(mask.full_kv_num_blocks[0, 0].tolist(), mask.full_kv_indices[0, 0].tolist(), strict=True)
    for queries, (count, keys) in enumerate(listed):
        assert all(seen[queries * BLOCK :, key * BLOCK :][:BLOCK, :BLOCK].all() for key in keys[:count])


@pytest.mark.slow
@given(tree=trees(), heads=st.integers(1, 2), group=st.integers(1, 3))
@settings(max_examples=examples(10))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_that_mask_is_tree_attention(tree: PrefixTree, heads: int, group: int) -> None:
    plan = plan_attention(tree, torch.device("cpu"))
    query, key, value, _ = tensors(len(tree), heads, group, 16, _FLOAT)
    ours = _Batched.apply(query, key, value, 0.25, plan)
    heads_first = query.transpose(1, 2).flatten(0, 1)[None]
    inputs = heads_first, key[None], value[None]
    theirs = flex_attention(*inputs, block_mask=plan.block_mask, scale=0.25, enable_gqa=group > 1)
    torch.testing.assert_close(theirs[0].unflatten(0, (heads, group)).transpose(1, 2), ours)


@pytest.mark.slow
def test_flex_attention_that_fails_is_left_alone_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert _flex._tried(torch.device("cpu"), torch.float32, 16, 2, 1) is None  # its backward pass needs a GPU
    assert "FlexAttention failed: FlexAttention does not support backward on CPU" in caplog.text


def _causal(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, **more: Any) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, **more)


@pytest.mark.parametrize(("kernel", "taken"), [(_flex._plain, True), (_causal, False)])
def test_flex_attention_is_taken_where_it_computes_the_same(
    kernel: Any, taken: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: kernel)
    found = _flex._tried.__wrapped__(torch.device("cpu"), _HALF, 16, 4, 2)
    assert (found is kernel) == taken
    assert ("its relative error is" in caplog.text) != taken


@pytest.mark.slow
def test_flex_attention_is_compiled_once_for_trees_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)  # forbids gradients
    torch._dynamo.reset()
    attend = _flex._tried.__wrapped__(torch.device("cpu"), _FLOAT, 16, 4, 2)
    assert attend is not None
    for length in (BLOCK + 1, 2 * BLOCK, 384, 1000):
        tree = build_tree([[*range(length - 20)], [*range(length // 3), *range(length, length + 20)]])
        query, key, value = (torch.randn(1, len(tree), n, 16).transpose(1, 2).requires_grad_() for n in (4, 2, 2))
        mask = plan_attention(tree, torch.device("cpu")).block_mask
        attend(query, key, value, block_mask=mask, scale=0.25, enable_gqa=True)
    assert counter.frame_count == 1
