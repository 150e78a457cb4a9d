"""Linear layers of the CPU engine against float64, by our own products and by oneDNN's; ours for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from _pytest.mark import ParameterSet
from examples import some
from torch import Tensor

from astune.engine.local import _cpu_linear, products
from astune.engine.local._adapters import PolicyRows
from astune.engine.local._cpu_adapters import AdapterRows, LowRank

PRECISION = {torch.bfloat16: 3e-3, torch.float32: 3e-6}
"""Relative error of a whole tensor; bfloat16 rounds each number by up to 1/512 of it."""
ROWS = [1, 2, 5, 6, 7, 11, 12, 13, 16, 17, 33, 64, 65, 300]
SHAPES = [(576, 192), (50, 33), (1536, 576)]


def numbers(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


class Layers(NamedTuple):
    linear: Callable[..., _cpu_linear.Linear]
    gate: Callable[..., _cpu_linear.Gate]
    dtype: torch.dtype
    compact: bool = False
    """Whether all numbers are ones of bfloat16."""

    def numbers(self, *shape: int, scale: float = 1.0) -> Tensor:
        exact = torch.randn(*shape) * scale
        return (exact.bfloat16() if self.compact else exact).to(self.dtype)


def ours(dtype: torch.dtype, name: str, *, compact: bool = False) -> ParameterSet:
    lacks = pytest.mark.skipif(not products.are_available(dtype, 2), reason="this CPU lacks AVX512-BF16 or AVX2")
    return pytest.param(Layers(products.PackedProduct, products.GatedProduct, dtype, compact), id=name, marks=lacks)


OURS = [
    ours(torch.bfloat16, "ours"),
    ours(torch.float32, "ours in float32"),
    ours(torch.float32, "ours in float32, weights in bfloat16", compact=True),
]
IN_8_BITS = [
    pytest.param(
        Layers(partial(products.PackedProduct, int8=True), partial(products.GatedProduct, int8=True), dtype),
        id=f"ours in 8 bits, {dtype}",
    )
    for dtype in (torch.bfloat16, torch.float32)
]


@pytest.fixture(params=OURS)
def own(vectors: None, request: pytest.FixtureRequest) -> Layers:
    if not products.are_available(request.param.dtype, 2):
        pytest.skip("this CPU has no products for this dtype and vectors of this width")
    torch.manual_seed(0)
    return request.param


in_8_bits = pytest.mark.parametrize("own", IN_8_BITS, indirect=True)


ONEDNN = Layers(_cpu_linear.OneDnnLinear, _cpu_linear.OneDnnGate, torch.bfloat16)


@pytest.fixture(
    params=[
        *OURS,
        pytest.param(ONEDNN, id="oneDNN"),
        pytest.param(ONEDNN._replace(dtype=torch.float32), id="oneDNN in float32", marks=pytest.mark.slow),
    ]
)
def layers(request: pytest.FixtureRequest) -> Layers:
    if not _cpu_linear.is_available(request.param.dtype):
        pytest.skip("no bfloat16 on this CPU")
    torch.manual_seed(0)
    return request.param


def assert_close(ours: Tensor, exact: Tensor, roundings: int = 1) -> None:
    assert ours.shape == exact.shape
    assert float((ours.double() - exact).norm() / exact.norm()) < PRECISION[ours.dtype] * roundings


@pytest.mark.parametrize("rows", some(ROWS, 5))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_layer_is_the_product_with_its_weight(layers: Layers, rows: int, inputs: int, outputs: int) -> None:
    weight, bias = layers.numbers(outputs, inputs, scale=inputs**-0.5), layers.numbers(outputs)
    x, other = layers.numbers(rows, inputs), layers.numbers(rows, outputs)
    exact = x.double() @ weight.double().T
    assert_close(layers.linear(weight)(x), exact)
    assert_close(layers.linear(weight, bias)(x), exact + bias.double())
    assert_close(layers.linear(weight).add(x, other), exact + other.double())


@pytest.mark.parametrize("rows", some(ROWS, 3))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_gate_multiplies_what_it_activates(
    layers: Layers, rows: int, inputs: int, outputs: int, biased: bool
) -> None:
    gate, up = (layers.numbers(outputs, inputs, scale=inputs**-0.5) for _ in range(2))
    biases = (layers.numbers(outputs), layers.numbers(outputs)) if biased else None
    x = layers.numbers(rows, inputs)
    of_gate, of_up = (
        x.double() @ weight.double().T + (biases[index].double() if biases else 0)
        for index, weight in enumerate((gate, up))
    )
    assert_close(layers.gate(gate, up, biases)(x), F.silu(of_gate) * of_up)


POLICIES = ["wolf", "hen", "fox"]


def policies_of(rows: int, *, mixed: bool) -> list[str]:
    """Beside each other, or by turns; every fourth row is the model's own."""
    names = [*POLICIES, ""]
    return [names[row % 4 if mixed else 4 * row // rows] for row in range(rows)]


def adapter_rows(policies: list[str]) -> AdapterRows:
    found = [(name, [row for row, policy in enumerate(policies) if policy == name]) for name in POLICIES]
    parts = [PolicyRows(name, torch.tensor(own)) for name, own in found if own]
    return AdapterRows(POLICIES, parts, len(policies))


def adapters_of(draw: Callable[..., Tensor], inputs: int, *layers: tuple[int, int]) -> list[list[LowRank]]:
    """One of each policy for layers of (first output, outputs); the second adds to the last layer alone."""
    ranks = (3, 16, 40)
    every = [
        [LowRank(draw(rank, inputs, scale=inputs**-0.5), draw(width, rank), first) for first, width in layers]
        for rank in ranks
    ]
    return [every[0], every[1][-1:], every[2]]


def added(adapters: list[list[LowRank]], policies: list[str], x: Tensor, outputs: int) -> Tensor:
    exact = torch.zeros(len(x), outputs, dtype=torch.float64)
    for row, policy in enumerate(policies):
        for down, up, first in adapters[POLICIES.index(policy)] if policy else []:
            exact[row, first : first + len(up)] += up.double() @ (down.double() @ x[row].double())
    return exact


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("rows", some([1, 2, 11, 33, 64, 300], 2))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_adapters_add_to_their_rows(layers: Layers, rows: int, inputs: int, outputs: int, mixed: bool) -> None:
    x, other, policies = layers.numbers(rows, inputs), layers.numbers(rows, outputs), policies_of(rows, mixed=mixed)
    weight, parts = layers.numbers(outputs, inputs, scale=inputs**-0.5), [(0, 20), (20, outputs - 20)]
    layer, adapters = layers.linear(weight), adapters_of(layers.numbers, inputs, *parts)
    layer.load_adapters(adapters)
    exact = x.double() @ weight.double().T + added(adapters, policies, x, outputs)
    assert_close(layer(x, adapter_rows(policies)), exact, roundings=2)
    assert_close(layer.add(x, other, adapter_rows(policies)), exact + other.double(), roundings=2)
    assert torch.equal(layer(x), layers.linear(weight)(x)), "no rows of adapters"
    layer.load_adapters([[], [], []])
    assert torch.equal(layer(x, adapter_rows(policies)), layer(x)), "adapters of other layers"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("rows", some([1, 2, 11, 33, 64, 300], 2))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_adapters_add_to_a_gate(layers: Layers, rows: int, inputs: int, outputs: int, mixed: bool) -> None:
    x, policies = layers.numbers(rows, inputs), policies_of(rows, mixed=mixed)
    gate, up = (layers.numbers(outputs, inputs, scale=inputs**-0.5) for _ in range(2))
    layer, adapters = layers.gate(gate, up), adapters_of(layers.numbers, inputs, (0, outputs), (outputs, outputs))
    layer.load_adapters(adapters)
    exact = x.double() @ torch.cat([gate, up]).double().T + added(adapters, policies, x, 2 * outputs)
    of_gate, of_up = exact.chunk(2, dim=1)
    assert_close(layer(x, adapter_rows(policies)), F.silu(of_gate) * of_up, roundings=4)


def quantized(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What 8 bits keep: multiples of a scale, which is kept in `dtype`, of every 32 numbers; ties are those of products
    with its inverse."""
    groups = x.float().unflatten(1, (-1, 32))
    scales = (groups.abs().amax(2, keepdim=True) / 127).to(dtype).float()
    rounded = (groups * (1 / scales.where(scales > 0, 1))).round().clamp(-127, 127)
    return (rounded.double() * scales.double()).flatten(1)


IN_INT8 = [(576, 192), (128, 33), (1536, 576)]


@in_8_bits
@pytest.mark.parametrize("rows", some(ROWS, 6))
@pytest.mark.parametrize(("inputs", "outputs"), IN_INT8)
def test_8_bits_multiply_quantized_rows_with_quantized_weights(
    own: Layers, rows: int, inputs: int, outputs: int
) -> None:
    weight, bias = own.numbers(outputs, inputs, scale=inputs**-0.5), own.numbers(outputs)
    other_weight, other = own.numbers(outputs, inputs, scale=inputs**-0.5), own.numbers(rows, outputs)
    x = own.numbers(rows, inputs) * own.numbers(rows, inputs).exp()  # of many sizes
    x[:, 64:128] = 0
    rounded = quantized(x, torch.float32)
    exact, exact_up = (rounded @ quantized(each, torch.bfloat16).T for each in (weight, other_weight))
    linear = own.linear(weight, bias)
    assert_close(linear(x), exact + bias.double())
    assert_close(linear.add(x, other), exact + bias.double() + other.double())
    assert_close(own.gate(weight, other_weight)(x), F.silu(exact) * exact_up)


@in_8_bits
@pytest.mark.parametrize(("inputs", "outputs"), IN_INT8)
def test_adapters_beside_8_bits_are_in_the_models_dtype(own: Layers, inputs: int, outputs: int) -> None:
    x, policies = own.numbers(33, inputs), policies_of(33, mixed=True)
    weight, adapters = (
        own.numbers(outputs, inputs, scale=inputs**-0.5),
        adapters_of(own.numbers, inputs, (0, 20), (20, outputs - 20)),
    )
    layer = own.linear(weight)
    layer.load_adapters(adapters)
    exact = quantized(x, torch.float32) @ quantized(weight, torch.bfloat16).T
    assert_close(layer(x, adapter_rows(policies)), exact + added(adapters, policies, x, outputs), roundings=2)
    halves = outputs // 2
    biases = own.numbers(halves), own.numbers(halves)
    gate = own.gate(weight[:halves], weight[halves : 2 * halves], biases)
    adapters = adapters_of(own.numbers, inputs, (0, halves), (halves, halves))
    gate.load_adapters(adapters)
    exact = exact[:, : 2 * halves] + torch.cat(biases).double() + added(adapters, policies, x, 2 * halves)
    of_gate, of_up = exact.chunk(2, dim=1)
    assert_close(gate(x, adapter_rows(policies)), F.silu(of_gate) * of_up, roundings=4)


@in_8_bits
def test_8_bits_take_zeros_and_keep_numbers_that_are_none_in_their_row(own: Layers) -> None:
    weight = torch.ones(3, 64, dtype=own.dtype)
    layer, x = own.linear(weight), torch.zeros(4, 64, dtype=own.dtype)
    x[1, 5], x[2, 6], x[3] = float("nan"), float("-inf"), 1e30
    found = layer(x)
    assert found[0].tolist() == [0.0] * 3
    assert found[1:3].isnan().all()
    weight[1, 40] = float("inf")
    assert own.linear(weight)(x).isnan().tolist()[3] == [False, True, False]
    torch.testing.assert_close(found[3].float(), torch.full([3], 64e30), rtol=1e-2, atol=0)


@in_8_bits
def test_a_layer_that_no_scale_divides_is_not_quantized(own: Layers) -> None:
    weight, x = own.numbers(33, 50), own.numbers(7, 50)
    assert torch.equal(own.linear(weight)(x), products.PackedProduct(weight)(x))


@pytest.mark.parametrize("own", [*OURS, *IN_8_BITS], indirect=True)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_is_the_same_bit_for_bit_beside_any_others(own: Layers, inputs: int, outputs: int) -> None:
    linear = own.linear(own.numbers(outputs, inputs), own.numbers(outputs))
    gate = own.gate(own.numbers(outputs, inputs), own.numbers(outputs, inputs))
    linear.load_adapters(adapters_of(own.numbers, inputs, (0, outputs)))
    gate.load_adapters(adapters_of(own.numbers, inputs, (0, outputs), (outputs, outputs)))
    x, other, policies = own.numbers(300, inputs), own.numbers(300, outputs), policies_of(300, mixed=False)

    def computed(part: slice) -> list[Tensor]:
        rows = adapter_rows(policies[part])
        plain = [linear(x[part]), linear.add(x[part], other[part]), gate(x[part])]
        return [*plain, linear(x[part], rows), linear.add(x[part], other[part], rows), gate(x[part], rows)]

    whole = computed(slice(300))
    for part in (slice(0, 1), slice(5, 17), slice(70, 83), slice(238, 243), slice(100, 299)):
        for ours, all_rows in zip(computed(part), whole, strict=True):
            assert torch.equal(ours, all_rows[part])


def test_weights_are_the_same_bit_for_bit_in_half_the_bytes(vectors: None) -> None:
    if not products.are_available(torch.float32, 2):
        pytest.skip("this CPU lacks AVX2")
    torch.manual_seed(0)
    weight, x = numbers(33, 50).float(), torch.randn(13, 50)
    compact, whole = products.PackedProduct(weight), products.PackedProduct(torch.cat([weight, weight + 1e-6]))
    assert torch.equal(compact(x), whole(x)[:, :33])
    assert_close(compact(x), x.double() @ weight.double().T)
    assert [layer.entry()[-1] for layer in (compact, whole)] == [products._Form.HALVES, products._Form.WHOLE]


def test_rows_need_not_lie_one_behind_the_other(own: Layers) -> None:
    linear, x, other = own.linear(own.numbers(33, 50)), own.numbers(50, 70).T, own.numbers(33, 70).T
    assert torch.equal(linear.add(x, other), linear.add(x.contiguous(), other.contiguous()))


def test_large_numbers_and_those_that_are_none_pass_through(own: Layers) -> None:
    ones = torch.ones(1, 2, dtype=own.dtype)
    gate = own.gate(torch.eye(2, dtype=own.dtype), torch.eye(2, dtype=own.dtype))
    x = torch.tensor([[-1e4, 1e4], [-90.0, 88.0]], dtype=own.dtype)
    exact = F.silu(x.float()) * x.float()
    torch.testing.assert_close(gate(x).float(), exact, rtol=1e-2, atol=1e-29)
    x[0, 0] = float("nan")
    assert gate(x).isnan().tolist() == [[True, True], [False, False]]
    assert own.linear(ones)(x).isnan().flatten().tolist() == [True, False]


def test_an_odd_number_of_inputs_of_bfloat16_is_left_to_onednn() -> None:
    assert not products.are_available(torch.bfloat16, 33)
