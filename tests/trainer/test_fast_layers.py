"""Layers of our own: those of transformers that they replace, and those that they leave alone."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from trainer_helpers import SHAPE, VOCABULARY, Counted, distance
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from astune.engine import compiled
from astune.trainer import _layer_blocks, _layer_kernels, _rotary
from astune.trainer._fast_layers import _RmsNorm, use_fast_layers
from astune.trainer._layer_kernels import LayerKernels, kernels_for
from astune.trainer._rotary import use_fast_rotary


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fast_layers_are_the_layers_that_they_replace(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    configuration = Qwen3Config(**SHAPE, head_dim=16)
    theirs: nn.Module = AutoModelForCausalLM.from_config(configuration, dtype=dtype)
    ours: nn.Module = AutoModelForCausalLM.from_config(configuration, dtype=dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours.load_state_dict(theirs.state_dict())
    # Each layer has two norms, one each for queries and keys, and the gated linear unit; then the last norm.
    assert use_fast_layers(ours) == 3 * 5 + 1
    ids = torch.randint(0, VOCABULARY, (1, 40))
    for module in (theirs, ours):
        module(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    gradients = [
        {name: p.grad for name, p in module.named_parameters() if p.grad is not None} for module in (ours, theirs)
    ]
    assert distance(*gradients) < tolerance


def test_a_layer_that_computes_something_else_is_left_alone() -> None:
    class OddRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.eps = 1e-6

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * self.weight + 1

    assert use_fast_layers(nn.Sequential(OddRMSNorm())) == 0


def test_a_norm_whose_heads_have_weights_of_their_own_is_left_alone() -> None:
    class HeadRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(8, 8)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))

    assert use_fast_layers(nn.Sequential(HeadRMSNorm())) == 0


def test_a_layer_that_gives_zeros_is_left_alone() -> None:
    class GatedGelu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8, bias=False) for _ in range(3))
            nn.init.zeros_(self.down_proj.weight)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.down_proj(nn.functional.gelu(self.gate_proj(hidden)) * self.up_proj(hidden))

    assert use_fast_layers(nn.Sequential(GatedGelu())) == 0


def test_layers_on_an_accelerator_are_not_cut_into_blocks() -> None:
    class OneRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(64)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))

    norm = OneRMSNorm()
    assert use_fast_layers(norm) == 1
    numbers: list[int] = []
    for rows in (16, 100_000):
        x = torch.empty(1, rows, 64, device="meta", requires_grad=True)
        norm.weight = nn.Parameter(torch.empty(64, device="meta"))
        with Counted() as counted:
            norm(x).sum().backward()
        numbers.append(counted.number)
    assert numbers[0] == numbers[1] < 60


DTYPES = [torch.float32, torch.bfloat16]
EPSILON = 1e-5


def kernels(dtype: torch.dtype) -> LayerKernels:
    found = kernels_for(torch.empty(1, 1, dtype=dtype), torch.empty(1, dtype=dtype))
    assert found is not None, "gcc is missing"
    return found


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul_(3).to(dtype)


def normed_by(layers: Any, x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, what the backward pass computes again, and the gradients of x and of the weight."""
    y, scale = layers.norm(x, weight, EPSILON)
    return [y, layers.normed(x, weight, scale), *layers.norm_backward(x, weight, scale, grad, of_weight=True)]


def gated_by(layers: Any, gate: Tensor, up: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, and the gradients of gate and up."""
    return [layers.gated_silu(gate, up), *layers.gated_silu_backward(gate, up, grad)]


def differentiated(compute: Callable[[Tensor, Tensor], Tensor], x: Tensor, other: Tensor, grad: Tensor) -> list[Tensor]:
    """The output and both gradients, by autograd in float64."""
    leaves = [tensor.double().requires_grad_() for tensor in (x, other)]
    y = compute(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.double())]


@pytest.fixture
def of_each_width(vectors: None) -> Iterator[None]:
    _layer_kernels._kernels.cache_clear()
    yield
    _layer_kernels._kernels.cache_clear()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON))


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


def errors(ours: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    return [float((one.double() - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True)]


@pytest.mark.usefixtures("of_each_width")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 9), (5, 7), (2, 3, 64), (1, 300, 576), (1, 70, 5, 33), (40, 1025)])
def test_compiled_layers_are_as_near_to_float64_as_the_operators(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, up, grad = (random(*shape, dtype=dtype, seed=seed) for seed in range(3))
    weight = random(shape[-1], dtype=dtype)
    for by, compute, other in ((normed_by, norm, weight), (gated_by, gated, up)):
        exact = differentiated(compute, x, other, grad)
        ours, theirs = (by(layers, x, other, grad) for layers in (kernels(dtype), _layer_blocks))
        if by is normed_by:
            assert torch.equal(ours.pop(1), ours[0])
            del theirs[1]
        for one, other_error in zip(errors(ours, exact), errors(theirs, exact), strict=True):
            assert one <= 1.05 * other_error + 4 * torch.finfo(torch.float32).eps
        # Nothing is rounded elsewhere than in the operators: almost all is the same to the last bit in bfloat16.
        if dtype == torch.bfloat16 and x.numel() > 100:
            assert min(float((a == b).float().mean()) for a, b in zip(ours, theirs, strict=True)) > 0.99


@pytest.mark.usefixtures("of_each_width")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_layers_give_the_same_bits_wherever_a_row_lies(dtype: torch.dtype) -> None:
    x, grad, up = (random(500, 71, dtype=dtype, seed=seed) for seed in range(3))
    weight = random(71, dtype=dtype)
    layers = kernels(dtype)
    threads = torch.get_num_threads()
    before = normed_by(layers, x, weight, grad) + gated_by(layers, x, up, grad)
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            now = normed_by(layers, x, weight, grad) + gated_by(layers, x, up, grad)
            assert all(map(torch.equal, before, now))
    finally:
        torch.set_num_threads(threads)
    rows = slice(123, 125)
    alone = normed_by(layers, x[rows], weight, grad[rows])[:3] + gated_by(layers, x[rows], up[rows], grad[rows])
    assert all(torch.equal(one[rows], other) for one, other in zip(before[:3] + before[4:], alone, strict=True))


@pytest.mark.usefixtures("of_each_width")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_layers_take_any_layout_and_no_rows(dtype: torch.dtype) -> None:
    layers, weight = kernels(dtype), random(2 * 24, dtype=dtype)[::2]
    wide = [random(9, 24, 6, dtype=dtype, seed=seed).transpose(1, 2) for seed in range(3)]
    tight = [tensor.contiguous() for tensor in wide]
    assert all(
        map(torch.equal, normed_by(layers, wide[0], weight, wide[1]), normed_by(layers, tight[0], weight, tight[1]))
    )
    assert all(map(torch.equal, gated_by(layers, *wide), gated_by(layers, *tight)))
    none = wide[0][:0]
    *of_rows, of_weight = normed_by(layers, none, weight, none)
    assert all(tensor.shape == none.shape for tensor in [*of_rows, *gated_by(layers, none, none, none)])
    assert not of_weight.any()


@pytest.mark.usefixtures("of_each_width")
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_none_pass_through_compiled_layers_as_through_the_operators(dtype: torch.dtype) -> None:
    odd = [0.0, -0.0, 1e-40, 1e-30, 1.0, 87.5, 88.5, 89.0, 104.0, 1e30, float("inf"), float("nan")]
    odd += [-number for number in odd]
    gate, up = torch.meshgrid(*[torch.tensor(odd).to(dtype)] * 2, indexing="ij")
    grad = random(*gate.shape, dtype=dtype)
    rows = torch.cat([torch.ones(len(odd), 3, dtype=dtype), torch.tensor(odd).to(dtype)[:, None]], dim=1)
    weight, grad_rows = random(4, dtype=dtype), random(len(odd), 4, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    for by, given in ((gated_by, (gate, up, grad)), (normed_by, (rows, weight, grad_rows))):
        ours, theirs = (by(layers, *given) for layers in (kernels(dtype), _layer_blocks))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_a_frozen_norm_has_no_gradient_and_others_have(dtype: torch.dtype) -> None:
    x = random(1, 5, 8, dtype=dtype).requires_grad_()
    weight = random(8, dtype=dtype)
    _RmsNorm.apply(x, weight, EPSILON)[0].sum().backward()
    assert x.grad is not None
    assert weight.grad is None
    alone, x.grad = x.grad, None
    _RmsNorm.apply(x, weight.requires_grad_(), EPSILON)[0].sum().backward()
    exact = differentiated(norm, x, weight, torch.ones_like(x))
    assert torch.equal(alone, cast(Tensor, x.grad))
    assert max(errors([cast(Tensor, x.grad), cast(Tensor, weight.grad)], exact[1:])) < 4 * torch.finfo(dtype).eps


def test_layers_of_another_kind_are_not_compiled() -> None:
    x = torch.zeros(2, 8)
    assert kernels_for(x, torch.zeros(8)) is not None
    assert kernels_for(x.double(), torch.zeros(8).double()) is None
    assert kernels_for(x, torch.zeros(8).bfloat16()) is None
    assert kernels_for(x.to("meta"), torch.zeros(8, device="meta")) is None
    assert kernels_for(x, torch.zeros(1)) is None  # it would be read behind its end
    assert kernels_for(x, torch.zeros(8, 2)) is None


def test_without_a_compiler_the_trainer_says_so_and_takes_the_operators(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, weight = random(1, 5, 8, dtype=torch.bfloat16).requires_grad_(), random(8, dtype=torch.bfloat16)
    monkeypatch.setattr(compiled, "_COMPILER", "no-such-compiler")
    _layer_kernels._kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            y = _RmsNorm.apply(x, weight, EPSILON)[0]
            y.sum().backward()
    finally:
        _layer_kernels._kernels.cache_clear()
    assert "install gcc" in caplog.text
    assert torch.equal(y, _layer_blocks.norm(x.detach(), weight, EPSILON)[0])


ROTARY = [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config]


def model_of(configuration: type[PreTrainedConfig], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(cast(Any, configuration)(**SHAPE, head_dim=16), dtype=dtype)


def attention_of(model: nn.Module) -> Any:
    return cast(Any, model).model.layers[0].self_attn


@pytest.mark.parametrize("configuration", ROTARY)
def test_rotary_positions_of_our_own_are_the_models(configuration: type[PreTrainedConfig]) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        theirs, ours = model_of(configuration, dtype), model_of(configuration, dtype)
        _rotary._with_kernel.cache_clear()
        with torch.no_grad():  # as when a model is prepared
            assert use_fast_rotary(ours) == 3
        ids = torch.randint(0, VOCABULARY, (1, 40))
        for model in (theirs, ours):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients = [{n: p.grad for n, p in model.named_parameters() if p.grad is not None} for model in (ours, theirs)]
        assert distance(*gradients) < tolerance
        assert "forward" not in vars(attention_of(theirs))  # of the same class


def test_a_copied_layer_turns_its_own_queries() -> None:
    model = model_of(LlamaConfig)
    use_fast_rotary(model)
    other = copy.deepcopy(model)
    assert attention_of(other).forward.__self__ is attention_of(other)


def interleaved(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours are pairs, as GPT-J has them."""

    def turned(x: Tensor) -> Tensor:
        exchanged = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cos[:, None] + exchanged * sin[:, None]

    return turned(query), turned(key)


apply_rotary_pos_emb = interleaved


class Interleaved(nn.Module):
    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(*tensors)


def test_other_rotary_positions_are_left_alone() -> None:
    assert use_fast_rotary(Interleaved()) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 6, 64, 130])
def test_turned_heads_are_as_near_to_float64_as_the_models(dim: int, dtype: torch.dtype) -> None:
    query, key = (random(1, 9, heads, dim, dtype=dtype, seed=heads).transpose(1, 2) for heads in (4, 2))
    cos, sin = (random(1, 9, dim, dtype=dtype, seed=seed) for seed in (5, 6))  # halves that differ, too
    # Gradients in layouts of memory that attention hands back.
    grads = random(1, 9, 4, dim, dtype=dtype).transpose(1, 2), random(1, 2, dim, 9, dtype=dtype).transpose(2, 3)

    def computed(apply: Any, as_dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(as_dtype).detach().requires_grad_() for tensor in (query, key)]
        outputs = apply(*leaves, cos.to(as_dtype), sin.to(as_dtype))
        gradients = torch.autograd.grad(outputs, leaves, [grad.to(as_dtype) for grad in grads])
        return [*(output.detach() for output in outputs), *gradients]

    exact = computed(llama_rotary, torch.float64)
    ours = errors(computed(partial(_rotary._apply, llama_rotary), dtype), exact)
    theirs = errors(computed(llama_rotary, dtype), exact)
    assert all(one <= 1.05 * other for one, other in zip(ours, theirs, strict=True))


def test_what_the_kernel_does_not_serve_is_turned_by_the_model() -> None:
    query, key, angles = random(2, 4, 9, 8, dtype=torch.float32), random(2, 2, 9, 8, dtype=torch.float32), (2, 9, 8)
    cos, sin = random(*angles, dtype=torch.float32), random(*angles, dtype=torch.float32)
    one = tuple(tensor[:1] for tensor in (query, key, cos, sin))
    cases: list[tuple[tuple[Tensor, ...], dict[str, int]]] = [
        ((query, key, cos, sin), {}),
        (tuple(tensor.double() for tensor in one), {}),
        ((*one[:2], one[2].double(), one[3].double()), {}),
        (tuple(tensor.transpose(1, 2) if tensor.dim() == 4 else tensor for tensor in one), {"unsqueeze_dim": 2}),
        ((*one[:2], one[2][:, :1], one[3][:, :1]), {}),
    ]
    for tensors, named in cases:
        ours, theirs = _rotary._apply(llama_rotary, *tensors, **named), cast(Any, llama_rotary)(*tensors, **named)
        assert all(map(torch.equal, ours, theirs))
