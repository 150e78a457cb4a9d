"""Linear layers of the CPU engine against float64, by our own products and by oneDNN's; ours for any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local import _cpu_linear, _products

Layers = tuple[Callable[..., _cpu_linear.Linear], Callable[..., _cpu_linear.Gate]]
PRECISION = 3e-3
"""Relative error of a whole tensor; bfloat16 rounds each number by up to 1/512 of it."""
ROWS = [1, 2, 11, 12, 13, 16, 17, 33, 64, 65, 300]
SHAPES = [(576, 192), (50, 33), (1536, 576)]
OURS = pytest.mark.skipif(not _products.are_available(torch.bfloat16, 2), reason="this CPU lacks AVX512-BF16")


@pytest.fixture(
    params=[
        pytest.param((_products.PackedProduct, _products.GatedProduct), id="ours", marks=OURS),
        pytest.param((_cpu_linear.OneDnnLinear, _cpu_linear.OneDnnGate), id="oneDNN"),
    ]
)
def layers(request: pytest.FixtureRequest) -> Layers:
    if not _cpu_linear.is_available(torch.bfloat16):
        pytest.skip("no bfloat16 on this CPU")
    torch.manual_seed(0)
    return request.param


def numbers(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


def assert_close(ours: Tensor, exact: Tensor, roundings: int = 1) -> None:
    assert ours.shape == exact.shape
    assert float((ours.double() - exact).norm() / exact.norm()) < PRECISION * roundings


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_layer_is_the_product_with_its_weight(layers: Layers, rows: int, inputs: int, outputs: int) -> None:
    weight, bias = numbers(outputs, inputs, scale=inputs**-0.5), numbers(outputs)
    x, other = numbers(rows, inputs), numbers(rows, outputs)
    exact = x.double() @ weight.double().T
    assert_close(layers[0](weight)(x), exact)
    assert_close(layers[0](weight, bias)(x), exact + bias.double())
    assert_close(layers[0](weight).add(x, other), exact + other.double())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_gate_multiplies_what_it_activates(
    layers: Layers, rows: int, inputs: int, outputs: int, biased: bool
) -> None:
    gate, up = (numbers(outputs, inputs, scale=inputs**-0.5) for _ in range(2))
    biases = (numbers(outputs), numbers(outputs)) if biased else None
    x = numbers(rows, inputs)
    of_gate, of_up = (
        x.double() @ weight.double().T + (biases[index].double() if biases else 0)
        for index, weight in enumerate((gate, up))
    )
    layer, other = layers[1](gate, up, biases), numbers(rows, 2 * outputs)
    to_gate, to_up = other.double().chunk(2, dim=1)
    assert_close(layer(x), F.silu(of_gate) * of_up)
    roundings = 1 if isinstance(layer, _products.GatedProduct) else 2  # oneDNN rounds the sums first
    assert_close(layer.add(x, other), F.silu(of_gate + to_gate) * (of_up + to_up), roundings)


@OURS
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_is_the_same_bit_for_bit_beside_any_others(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear = _products.PackedProduct(numbers(outputs, inputs), numbers(outputs))
    gate = _products.GatedProduct(numbers(outputs, inputs), numbers(outputs, inputs))
    x, other, beside_gate = numbers(300, inputs), numbers(300, outputs), numbers(300, 2 * outputs)
    whole = linear(x), linear.add(x, other), gate(x), gate.add(x, beside_gate)
    for first, last in [(0, 1), (5, 17), (238, 243), (100, 299)]:
        part, beside = x[first:last], other[first:last]
        parts = linear(part), linear.add(part, beside), gate(part), gate.add(part, beside_gate[first:last])
        for ours, all_rows in zip(parts, whole, strict=True):
            assert torch.equal(ours, all_rows[first:last])


@OURS
def test_rows_need_not_lie_one_behind_the_other() -> None:
    torch.manual_seed(0)
    linear, x, other = _products.PackedProduct(numbers(33, 50)), numbers(50, 70).T, numbers(33, 70).T
    assert torch.equal(linear.add(x, other), linear.add(x.contiguous(), other.contiguous()))


@OURS
def test_large_numbers_and_those_that_are_none_pass_through() -> None:
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    gate = _products.GatedProduct(torch.eye(2, dtype=torch.bfloat16), torch.eye(2, dtype=torch.bfloat16))
    x = torch.tensor([[-1e4, 1e4], [-90.0, 88.0]], dtype=torch.bfloat16)
    exact = F.silu(x.float()) * x.float()
    torch.testing.assert_close(gate(x).float(), exact, rtol=1e-2, atol=1e-30)
    x[0, 0] = float("nan")
    assert gate(x).isnan().tolist() == [[True, True], [False, False]]
    assert _products.PackedProduct(ones)(x).isnan().flatten().tolist() == [True, False]


def test_an_odd_number_of_inputs_is_left_to_onednn() -> None:
    assert not _products.are_available(torch.bfloat16, 33)
    assert not _products.are_available(torch.float32, 32)
