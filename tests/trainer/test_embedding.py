"""Gradients of embeddings: what repeated tokens add up to, and that nothing is added twice or forgotten."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from examples import some
from torch import Tensor, nn

from astune.trainer.master_weights import MasterWeights

N_TOKENS, OFTEN = 4000, 7


class Scaled(nn.Embedding):
    """As Gemma's: it scales what it looked up."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3


def read(share: float) -> tuple[Tensor, Tensor]:
    """Token ids of which a share is one token, and a gradient in bfloat16 with a mean beside zero."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 40, (1, N_TOKENS), generator=generator)
    ids[0, torch.randperm(N_TOKENS, generator=generator)[: int(share * N_TOKENS)]] = OFTEN
    return ids, (torch.randn(1, N_TOKENS, 16, generator=generator) + 0.5).bfloat16()


def gradient(module: nn.Module, ids: Tensor, grad: Tensor, *, cut: int = N_TOKENS) -> Tensor:
    """What the weight's buffer holds after micro-batches of `cut` tokens."""
    masters = MasterWeights(module, torch.bfloat16)
    for some_ids, some_grad in zip(ids.split(cut, dim=1), grad.split(cut, dim=1), strict=True):
        module(some_ids).backward(some_grad)
    [total] = masters.gradients().values()
    assert cast(Tensor, module.weight).grad is None
    return total


@pytest.mark.parametrize("share", [0.1, 0.18, 0.5])
@pytest.mark.parametrize("cut", some([1000, N_TOKENS, 1], 1))
def test_a_token_that_is_half_of_a_prompt_adds_up_as_exactly_as_a_rare_one(share: float, cut: int) -> None:
    ids, grad = read(share)
    exact = torch.zeros(50, 16, dtype=torch.float64).index_add_(0, ids[0], grad[0].double())
    total = gradient(nn.Embedding(50, 16), ids, grad, cut=cut)
    torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-4)


def test_an_embedding_that_scales_or_has_padding_gets_the_gradient_that_autograd_gives() -> None:
    ids, grad = read(0.01)
    for module in (Scaled(50, 16), nn.Embedding(50, 16, padding_idx=OFTEN)):
        module(ids).backward(grad.float())
        expected = cast(Tensor, module.weight.grad)
        module.weight.grad = None
        torch.testing.assert_close(gradient(module, ids, grad), expected, rtol=1e-2, atol=1e-2)


def test_a_frozen_embedding_stays_as_it_is() -> None:
    module = nn.Embedding(50, 16).requires_grad_(False)
    MasterWeights(module, torch.bfloat16)
    assert type(module) is nn.Embedding
    assert not module(torch.tensor([1])).requires_grad
