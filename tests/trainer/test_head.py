"""The head's gradient, row by row, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from trainer_helpers import Counted

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


@pytest.mark.slow
def test_an_accelerator_starts_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here: that a weight lies on the CPU is hidden from the head, and layers compute on the meta device."""
    monkeypatch.setattr("astune.trainer.head.softmax_kernels", lambda _: None)
    torch.manual_seed(0)
    weight_VD, hidden_RD = torch.randn(50_000, 8) * 0.3, torch.randn(900, 8)
    targets = Targets(torch.arange(900), torch.randint(0, 50_000, (900,)))

    def loss(logprob_E: Tensor, entropy_E: Tensor, tokens: slice) -> tuple[Tensor, LossSums]:
        return -logprob_E.sum(), LossSums(1, torch.zeros(5, dtype=torch.float64), torch.zeros(()))

    def computed() -> tuple[Tensor, Tensor, int]:
        head = Head(weight_VD, None, 1.0, weight_grad_VD=torch.zeros_like(weight_VD))
        with Counted() as counted:
            _, grad_RD = head.loss_and_gradient(hidden_RD, targets, loss, entropy_has_gradient=False)
        assert head.weight_grad_VD is not None
        return grad_RD, head.weight_grad_VD, counted.number

    on_cpu = computed()
    monkeypatch.setattr(Head, "_on_cpu", False)
    on_gpu = computed()
    for ours, theirs in zip(on_gpu[:2], on_cpu[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert on_gpu[2] < 100 < on_cpu[2]
