"""The compiled softmax: statistics, gradients and draws against float64, and sampling against training bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from examples import some
from torch import Tensor

from astune.engine.local.grammar import forbid_others
from astune.engine.local.softmax import SoftmaxKernels, softmax_kernels

pytestmark = pytest.mark.usefixtures("vectors")
VOCABULARIES = some([700, 1, 5, 256, 257, 1024], 2)


def kernels_for(logits: Tensor) -> SoftmaxKernels:
    kernels = softmax_kernels(logits)
    if kernels is None:
        pytest.skip("no gcc, or not an x86 processor")
    return kernels


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """Logits of which row 0 has a token that is all but certain, and row 1 tokens that a grammar forbids."""
    generator = torch.Generator().manual_seed(rows * vocabulary)
    logits = (torch.randn(rows, vocabulary, generator=generator) * 4).to(dtype)
    logits[0, vocabulary // 2] = 30.0
    allowed = torch.rand(8 * -(-vocabulary // 8), generator=generator) < 0.3
    allowed[0] = True
    packed = (allowed.view(-1, 8) * 2 ** torch.arange(8)).sum(1).to(torch.uint8)
    forbid_others(logits, {1: packed.numpy()})
    return logits


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """In float64; of tokens that no float32 can tell from impossible ones too."""
    return (logits.double() / temperature).log_softmax(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_statistics_are_those_of_float64(vocabulary: int, temperature: float, dtype: torch.dtype) -> None:
    logits = logits_of(5, vocabulary, dtype)
    top, lse, entropy = kernels_for(logits).statistics(logits, temperature)
    expected = log_softmax(logits, temperature)
    assert torch.equal(top, logits.amax(1).float())
    found = (logits.double() - top[:, None].double()) / temperature - lse[:, None].double()
    likely = expected > -60
    torch.testing.assert_close(found[likely], expected[likely], rtol=1e-6, atol=2e-7)
    torch.testing.assert_close(entropy.double(), -(expected.exp() * expected).sum(1), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("temperature", "with_entropy"), [(1.0, False), (0.7, True)])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_gradient_is_that_of_float64(
    vocabulary: int, temperature: float, with_entropy: bool, dtype: torch.dtype
) -> None:
    """Several targets to a row, the same one twice, and a row without any."""
    logits = logits_of(5, vocabulary, dtype)
    rows = torch.tensor([0, 1, 1, 3, 3, 3, 4])
    tokens = torch.randint(0, vocabulary, (7,), generator=torch.Generator().manual_seed(1))
    tokens[0], tokens[1], tokens[4] = vocabulary // 2, 0, tokens[3]
    slopes = torch.tensor([-0.4, 1.5, 0.25, -2.0, 0.7, 1e-3, -1.0])
    entropy_slopes = torch.tensor([0.1, -0.3, 0.0, 2.0, -1.0]) if with_entropy else None

    exact = logits.double().requires_grad_()
    logprobs = (exact / temperature).log_softmax(1)
    value = (slopes.double() * logprobs[rows, tokens]).sum()
    if entropy_slopes is not None:
        entropy = -(logprobs.exp() * logprobs).sum(1)
        value = value + (entropy_slopes.double() * entropy).sum()
    [expected] = torch.autograd.grad(value, exact)

    kernels = kernels_for(logits)
    statistics = kernels.statistics(logits, temperature)
    kernels.into_gradient(logits, temperature, statistics, (rows, tokens), slopes, entropy_slopes)
    rounding = 2**-8 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(logits.double(), expected, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_drawn_tokens_logprob_is_to_the_last_bit_what_training_computes(vocabulary: int, dtype: torch.dtype) -> None:
    logits = logits_of(40, vocabulary, dtype)
    kernels = kernels_for(logits)
    for temperature in (1.0, 0.7):
        stream = random.Random(3)
        draws = [-1.0, *(stream.random() for _ in range(39))]
        tokens, logprobs = kernels.draw(logits, [temperature] * 40, draws)
        top, lse, _ = kernels.statistics(logits, temperature)
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0].float()
        assert torch.equal(torch.tensor(logprobs), ((chosen - top) / temperature - lse).clamp(max=0))
        assert tokens[0] == vocabulary // 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_draw_is_the_token_whose_share_of_the_cumulative_probability_holds_it(dtype: torch.dtype) -> None:
    rows, vocabulary = 200, 700
    logits = logits_of(rows, vocabulary, dtype)
    stream = random.Random(4)
    draws = [0.0, 1 - 2**-53, *(stream.random() for _ in range(rows - 2))]
    tokens, _ = kernels_for(logits).draw(logits, [0.7] * rows, draws)
    cumulative = log_softmax(logits, 0.7).exp().cumsum(1)
    for row, (token, number) in enumerate(zip(tokens, draws, strict=True)):
        before = float(cumulative[row, token - 1]) if token else 0.0
        assert before - 1e-6 <= number <= float(cumulative[row, token]) + 1e-6
        assert float(cumulative[row, token]) > before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    logits = torch.zeros(2, 700, dtype=torch.bfloat16)
    logits[1, 300] = bad
    kernels = kernels_for(logits)
    statistics = kernels.statistics(logits, 1.0)
    _, logprobs = kernels.draw(logits, [1.0, 1.0], [0.5, 0.5])
    assert [torch.tensor(value).isfinite().item() for value in logprobs] == [True, False]
    target = torch.tensor([1])
    kernels.into_gradient(logits, 1.0, statistics, (target, target), torch.ones(1), None)
    assert logits[0].isfinite().all()
    assert not logits[1].isfinite().all()
