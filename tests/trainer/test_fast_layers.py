"""Layers of our own: those of transformers that they replace, and those that they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from trainer_helpers import SHAPE, VOCABULARY, Counted, distance
from transformers import AutoModelForCausalLM, Qwen3Config

from astune.trainer._fast_layers import use_fast_layers


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
