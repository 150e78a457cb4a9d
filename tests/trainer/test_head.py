"""The head's gradient, row by row, against float64."""

from __future__ import annotations

import pytest
import torch

from astune.trainer.head import Head, Targets
from astune.trainer.loss import LossSums


@pytest.mark.parametrize("probability", [0.5, 0.99, 0.997, 0.9995])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_sure_token_keeps_its_gradient_in_bfloat16(probability: float, temperature: float) -> None:
    """Two tokens: one of `probability`, one of the rest; each token's gradient is the other's with the sign changed."""
    rest = torch.tensor(1 / probability - 1).log() * temperature
    hidden_RD = torch.stack([torch.zeros(()), rest])[None].to(torch.bfloat16)
    head = Head(torch.eye(2, dtype=torch.bfloat16), None, temperature)
    slope = -0.0137

    def loss(logprob_E: torch.Tensor, entropy_E: torch.Tensor, tokens: slice) -> tuple[torch.Tensor, LossSums]:
        nothing = torch.zeros(5, dtype=torch.float64)
        return slope * logprob_E.sum(), LossSums(1, nothing, torch.zeros(()))

    targets = Targets(torch.tensor([0]), torch.tensor([0]))
    _, grad_RD = head.loss_and_gradient(hidden_RD, targets, loss, entropy_has_gradient=False)
    prob = (hidden_RD[0].double() / temperature).softmax(-1)
    expected = slope / temperature * torch.tensor([1 - float(prob[0]), -float(prob[1])])
    torch.testing.assert_close(grad_RD[0].float(), expected, rtol=1e-2, atol=0)
