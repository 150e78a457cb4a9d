"""The test of whether tokens come from the distributions that were recorded."""

from __future__ import annotations

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astune.numerics.draws import Draws


def draws(prob_EV: Tensor, token_E: Tensor) -> Draws:
    """By the definition, one token after another."""
    own_E1 = prob_EV.gather(1, token_E[:, None])
    above, equal = prob_EV > own_E1, prob_EV == own_E1
    return Draws((prob_EV * above).sum(1), (prob_EV * equal).sum(1), above.sum(1))


def distributions(seed: int, *, sharpness: float, ties: bool, n: int = 1000) -> Tensor:
    logit_EV = torch.randn(n, 50, generator=torch.Generator().manual_seed(seed)) * sharpness
    return (logit_EV.round() if ties else logit_EV).softmax(-1)


@given(seed=st.integers(0, 10_000), sharpness=st.sampled_from([0.0, 0.5, 3.0, 8.0]), ties=st.booleans())
@settings(max_examples=examples(60))
def test_honest_draws_are_never_suspected_however_sharp_or_flat_the_distributions_are(
    seed: int, sharpness: float, ties: bool
) -> None:
    prob_EV = distributions(seed, sharpness=sharpness, ties=ties)
    token_E = prob_EV.multinomial(1, generator=torch.Generator().manual_seed(seed + 1))[:, 0]
    assert draws(prob_EV, token_E).evidence() < 4


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_draws_that_are_too_sharp_or_too_flat_are_seen(temperature: float) -> None:
    prob_EV = distributions(0, sharpness=2.0, ties=False)
    drawn_from = prob_EV.log().div(temperature).softmax(-1)
    token_E = drawn_from.multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert draws(prob_EV, token_E).evidence() > 6
    assert draws(drawn_from, token_E).evidence() < 2


def test_a_tail_that_is_cut_off_is_seen_and_gone_where_what_is_left_is_known() -> None:
    prob_EV = distributions(0, sharpness=1.0, ties=False)
    ordered, order = prob_EV.sort(descending=True)
    kept = ordered.cumsum(1) - ordered < 0.9
    cut_EV = torch.zeros_like(prob_EV).scatter(1, order, ordered * kept)
    token_E = cut_EV.multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert draws(prob_EV, token_E).evidence() > 6
    assert draws(prob_EV, token_E).evidence(cut_EV.sum(1)) < 2
