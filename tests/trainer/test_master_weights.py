"""Sums of gradients in float32."""

from __future__ import annotations

import pytest
import torch

from astune.config.schema import OptimConfig
from astune.trainer import master_weights
from astune.trainer.master_weights import MasterWeights, add_up


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (1025, 2049), (2, 3, 700_000), (3 << 20,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_part_of_any_shape_is_added_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    total = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    part = torch.randn(shape[::-1], generator=torch.Generator().manual_seed(1)).to(dtype)
    part = part.permute(tuple(reversed(range(part.dim()))))  # as of a transposed weight
    expected = total + part
    add_up(total, part)
    assert torch.equal(total, expected)


def test_a_part_is_added_to_a_total_of_any_layout() -> None:
    total = torch.randn(300, 500, generator=torch.Generator().manual_seed(0)).T
    part = torch.randn(500, 300, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = total + part
    add_up(total, part)
    assert torch.equal(total, expected)


def test_sums_are_the_same_bits_with_and_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    part = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40, 3.0, -1.25]).repeat(9000).bfloat16()
    totals = [torch.full_like(part, 0.1, dtype=torch.float32) for _ in range(2)]
    add_up(totals[0], part)
    monkeypatch.setattr(master_weights, "kernels_for", lambda _: None)
    add_up(totals[1], part)
    assert torch.equal(totals[0].nan_to_num(7), totals[1].nan_to_num(7))
    assert torch.equal(totals[0].isnan(), totals[1].isnan())


def test_a_resumed_optimiser_has_the_settings_of_the_resumed_run_and_the_moments_of_the_one_before() -> None:
    start, gradients = torch.tensor([1.0, -2.0, 3.0]), [torch.tensor([0.3, -0.1, 0.2]), torch.tensor([0.1, 0.2, -0.3])]
    before, after = OptimConfig(), OptimConfig(betas=(0.5, 0.6), weight_decay=0.5)

    def stepped(weights: MasterWeights, optim: OptimConfig, gradient: torch.Tensor) -> None:
        [buffer] = weights.gradients().values()
        buffer.copy_(gradient)
        weights.step(optim, 0.1)

    first, second = (torch.nn.ParameterList([start.clone()]) for _ in range(2))
    weights = MasterWeights(first, torch.float32)
    stepped(weights, before, gradients[0])
    resumed = MasterWeights(second, torch.float32)
    resumed.load_state_dict(weights.state_dict(before), after)
    stepped(resumed, after, gradients[1])

    # AdamW by hand, Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2, in float64
    value = start.double()
    mean, square = torch.zeros_like(value), torch.zeros_like(value)
    for step, (optim, gradient) in enumerate(zip((before, after), gradients, strict=True), start=1):
        (decay, decay_of_square), gradient = optim.betas, gradient.double()
        mean = decay * mean + (1 - decay) * gradient
        square = decay_of_square * square + (1 - decay_of_square) * gradient.square()
        value *= 1 - 0.1 * optim.weight_decay
        value -= 0.1 * mean / (1 - decay**step) / ((square / (1 - decay_of_square**step)).sqrt() + 1e-8)
    torch.testing.assert_close(second[0].detach().double(), value, rtol=1e-5, atol=1e-6)
