"""Sampling: the right distribution, its exact log-probabilities, truncation for evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from examples import examples, some
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.engine.local._sampling import random_stream, sample
from astune.engine.local.softmax import exp_
from astune.schema import SamplingParams


@pytest.fixture(scope="module", autouse=True, params=["compiled", pytest.param("torch", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to sample: the compiled function, and torch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr("astune.engine.local._sampling.softmax_kernels", lambda _: None)
        yield


def draws(logits: list[float], params: SamplingParams, count: int) -> Counter[int]:
    rows = torch.tensor(logits).expand(count, -1).clone()
    streams = [random_stream(seed) for seed in range(count)]
    return Counter(one.token for one in sample(rows, [params] * count, streams))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("vocabulary", some([700, 5, 256], 1))
def test_tokens_come_as_often_as_the_distribution_says(vocabulary: int, temperature: float):
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)) * 2
    count = 20_000
    counts = draws(logits.tolist(), SamplingParams(1, temperature=temperature), count)
    expected = (logits / temperature).softmax(0) * count
    often = expected > 30
    observed = torch.tensor([float(counts[token]) for token in range(vocabulary)])
    deviation = ((observed - expected) ** 2 / expected)[often].sum()
    freedom = int(often.sum())
    assert deviation < freedom + 5 * (2 * freedom) ** 0.5


@given(
    st.lists(st.floats(-60, 60), min_size=2, max_size=600),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 10**9),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=examples(200))
def test_the_logprob_is_that_of_a_float32_log_softmax(
    values: list[float], temperature: float, seed: int, dtype: torch.dtype
):
    logits = torch.tensor([values]).to(dtype)
    [one] = sample(logits.clone(), [SamplingParams(1, temperature=temperature, seed=seed)], [random_stream(seed)])
    expected = (logits.float() / (temperature or 1.0)).log_softmax(1)[0]
    assert one.finite
    assert one.logprob == pytest.approx(float(expected[one.token]), abs=1e-5)
    if temperature == 0:
        assert expected[one.token] == expected.max()


def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(1, temperature=t) for t in (1.0, 0.0, 0.7, 1.0, 1.3, 1.0)]
    together = sample(logits.clone(), params, [random_stream(i) for i in range(6)])
    for row in range(6):
        assert sample(logits[row : row + 1].clone(), [params[row]], [random_stream(row)]) == [together[row]]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(1, top_k=2), {0, 1}),
        (SamplingParams(1, top_p=0.6), {0, 1}),
        (SamplingParams(1, top_p=0.4), {0}),
        (SamplingParams(1, top_k=3, top_p=0.99), {0, 1, 2}),
        (SamplingParams(1), {0, 1, 2, 3}),
    ],
)
def test_truncation_keeps_the_most_likely_tokens_and_renormalises(params: SamplingParams, kept: set[int]):
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    assert set(draws(probabilities.log().tolist(), params, 500)) == kept
    [one] = sample(probabilities.log()[None], [params], [random_stream(3)])
    share = probabilities[sorted(kept)]
    assert one.logprob == pytest.approx(float((probabilities[one.token] / share.sum()).log()), abs=1e-5)


def test_impossible_tokens_are_never_drawn_even_at_the_ends():
    logits = [float("-inf")] * 300 + [0.0, 1.0] + [float("-inf")] * 300
    assert set(draws(logits, SamplingParams(1), 2000)) == {300, 301}


@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9}, {"top_k": 5}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_noticed(bad: float, truncation: dict[str, Any]):
    logits = torch.zeros(2, 400)
    logits[1, 70] = bad
    fine, broken = sample(logits, [SamplingParams(1, **truncation)] * 2, [random_stream(0), random_stream(1)])
    assert fine.finite
    assert not broken.finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exponential_of_what_is_forbidden_is_zero_and_that_of_all_else_is_torchs(dtype: torch.dtype) -> None:
    logits = torch.tensor([0.0, -1e-7, -1.0, -30.0, -75.0, -82.0, -1e30, float("-inf"), float("nan")], dtype=dtype)
    found = exp_(logits.clone())
    assert torch.equal(found[:5], logits[:5].exp())
    assert found[5:8].tolist() == [0, 0, 0]
    assert found[8].isnan()
