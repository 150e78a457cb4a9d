from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from trainer_helpers import policy_loss

from astune.trainer.loss import LossInputs


def one(
    logprob: float,
    *,
    advantage: float = 1.0,
    engine: float | None = None,
    old: float | None = None,
    start: float | None = None,
    entropy: float = 0.0,
    weight: float = 1.0,
    **loss: float | None,
) -> tuple[float, float, dict[str, float]]:
    """The loss of one token, its slope, and the metrics."""

    def tensor(value: float | None) -> Tensor | None:
        return None if value is None else torch.tensor([value])

    logprob_E = torch.tensor([logprob], requires_grad=True)
    engine_E = torch.tensor([engine if engine is not None else old if old is not None else logprob])
    zero_E = torch.tensor([0])
    inputs = LossInputs(
        torch.tensor([advantage]), torch.tensor([weight]), engine_E, zero_E, zero_E, tensor(old), tensor(start)
    )
    value, sums = policy_loss(**loss)(logprob_E, torch.tensor([entropy]), inputs)
    value.backward()
    assert logprob_E.grad is not None
    return float(value.detach()), float(logprob_E.grad), sums.metrics() | sums.mismatch.metrics()


def test_on_policy_the_slope_is_the_advantage_times_the_weight() -> None:
    assert one(-2.0, advantage=1.5, weight=0.25)[1] == pytest.approx(-1.5 * 0.25)
    assert one(-2.0, advantage=-0.5)[1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.3, 1.0, True),
        (1.25, 1.0, False),
        (0.7, 1.0, False),
        (0.75, -1.0, True),
        (0.85, -1.0, False),
        (1.5, -1.0, False),
    ],
)
def test_a_step_too_far_in_the_wanted_direction_has_no_slope(ratio: float, advantage: float, clipped: bool) -> None:
    value, slope, metrics = one(-1.0, old=-1.0 - math.log(ratio), advantage=advantage)
    bound = 1.28 if advantage > 0 else 0.8
    assert metrics["clip_fraction"] == clipped
    assert slope == pytest.approx(0 if clipped else -ratio * advantage, abs=1e-6)
    assert value == pytest.approx(-(bound if clipped else ratio) * advantage, rel=1e-5)


def test_importance_corrects_for_the_engine_up_to_its_cap_and_only_when_it_is_on() -> None:
    below = one(-1.0, engine=-1.0 + math.log(2))
    assert below[1] == pytest.approx(-0.5)
    assert below[2]["importance_mean"] == pytest.approx(0.5)
    capped = one(-1.0, engine=-1.0 - math.log(5), importance_cap=2.0)
    assert capped[1] == pytest.approx(-2.0)
    assert capped[2]["importance_capped_fraction"] == 1.0
    assert below[2]["importance_capped_fraction"] == 0.0
    off = one(-1.0, engine=-1.0 - math.log(5), importance_cap=None)
    assert off[2]["importance_capped_fraction"] == 0.0
    assert off[1] == pytest.approx(-1.0)
    assert off[2]["importance_mean"] == 1.0


def test_the_kl_term_is_never_negative_and_pulls_towards_the_starting_weights() -> None:
    for start in (-3.0, -1.0, -0.2):
        value, slope, metrics = one(-1.0, start=start, advantage=0.0, kl_coef=0.5)
        log_ratio = start + 1.0
        assert metrics["kl_to_start"] == pytest.approx(math.exp(log_ratio) - log_ratio - 1, abs=1e-6)
        assert value == pytest.approx(0.5 * metrics["kl_to_start"], abs=1e-6)
        assert slope == pytest.approx(0.5 * (1 - math.exp(log_ratio)), abs=1e-6)
    given_up, slope, _ = one(-60.0, start=-1.0, advantage=0.0, kl_coef=0.5)
    assert given_up == pytest.approx(0.5 * (math.exp(10) - 11), rel=1e-5)
    assert slope == 0


def test_the_entropy_bonus_lowers_the_loss() -> None:
    assert one(-1.0, advantage=0.0, entropy=3.0, entropy_coef=0.1)[0] == pytest.approx(-0.3)


def test_mismatch_with_the_engine_is_measured() -> None:
    _, _, metrics = one(-1.0, engine=-1.5)
    assert metrics["logprob_diff_mean"] == metrics["logprob_diff_max"] == pytest.approx(0.5)
    assert metrics["engine_kl"] == pytest.approx(math.exp(0.5) - 0.5 - 1)
