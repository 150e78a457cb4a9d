"""Engine against trainer in numbers: what they are, and that they are in every step's metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_helpers import config, episode, group, node, random_batch

from astune.schema import TrainerError, TrainingBatch
from astune.trainer.mismatch import Mismatch
from astune.trainer.policy import PolicyTrainer


def mismatch(differences: list[float], versions: list[int] | None = None) -> Mismatch:
    return Mismatch(torch.tensor(differences), torch.tensor(versions or [0] * len(differences)))


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=200))
def test_quantiles_are_exact_and_the_kl_estimate_is_never_negative(differences: list[float]) -> None:
    measured = mismatch(differences)
    ordered = np.sort(np.abs(np.array(differences)))
    assert measured.quantiles()["max"] == pytest.approx(ordered[-1])
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        position = share * (len(ordered) - 1)
        low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
        assert low - 1e-9 <= measured.quantiles()[name] <= high + 1e-9
    assert measured.mean == pytest.approx(float(ordered.mean()))
    assert measured.kl >= 0


def test_both_kl_estimates_are_those_of_two_known_distributions() -> None:
    engine, trainer = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((engine * (engine / trainer).log()).sum())
    tokens = torch.repeat_interleave(torch.arange(3), torch.tensor([500, 300, 200]))
    measured = mismatch((trainer.log() - engine.log())[tokens].tolist())
    assert measured.kl_k1 == pytest.approx(exact, rel=1e-4)
    assert measured.kl == pytest.approx(exact, rel=1e-4)


def test_a_huge_difference_is_still_a_number() -> None:
    assert math.isfinite(mismatch([300.0]).kl)


def test_tokens_are_counted_back_from_the_weights_that_are_trained() -> None:
    metrics = mismatch([0.1, -0.3, 0.5], [7, 7, 5]).metrics_by_age(7)
    assert metrics["versions_behind_0/tokens"] == 2
    assert metrics["versions_behind_0/logprob_diff_mean"] == pytest.approx(0.2)
    assert metrics["versions_behind_2/tokens"] == 1
    assert metrics["versions_behind_2/engine_kl"] == pytest.approx(math.expm1(0.5) - 0.5)
    assert not any(name.startswith("versions_behind_1") for name in metrics)


@pytest.mark.slow
def test_a_step_measures_every_trained_token_once_with_the_version_that_sampled_it(small_folder: Path) -> None:
    """Whatever micro-batches and updates it is cut into."""
    batch = random_batch(5, n_groups=4)
    for number, members in enumerate(batch.groups):
        for member in members.episodes:
            member.forest.nodes = [
                replace(each, weights_version=number % 2) if each.sampled else each for each in member.forest.nodes
            ]
    plain = PolicyTrainer.load(small_folder, config()).step(batch)
    cut = PolicyTrainer.load(small_folder, config(tokens_per_microbatch=30, loss={"updates_per_step": 2})).step(batch)
    assert plain.mismatch.n_tokens == cut.mismatch.n_tokens == plain.trained_tokens
    by_version = {
        version: sum(
            timeline.n_trained
            for members in batch.groups[version::2]
            for member in members.episodes
            for timeline in member.timelines
        )
        for version in (0, 1)
    }
    for report in (plain, cut):
        assert {version: part.n_tokens for version, part in report.mismatch.by_version().items()} == by_version
    for version, part in plain.mismatch.by_version().items():
        other = cut.mismatch.by_version()[version]
        torch.testing.assert_close(
            part.difference_E.sort().values, other.difference_E.sort().values, atol=1e-5, rtol=1e-4
        )
        assert (part.limits is None, other.limits is None) == (False, False)
    assert plain.metrics["logprob_diff_p50"] == pytest.approx(plain.mismatch.quantiles()["p50"])
    for name in ("clip_fraction", "importance_capped_fraction", "logprob_diff_mean"):
        parts = [
            (plain.metrics[f"versions_behind_{age}/{name}"], by_version[version]) for age, version in ((0, 0), (-1, 1))
        ]
        whole = sum(value * tokens for value, tokens in parts) / sum(by_version.values())
        assert plain.metrics[name] == pytest.approx(whole)


def test_a_steps_metrics_say_how_many_sampled_tokens_were_masked(small_folder: Path) -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4], sampled=1), node(2, 1, [5, 6, 7], sampled=3, trainable=False)]
    report = PolicyTrainer.load(small_folder, config()).step(TrainingBatch(1, [group([episode(nodes)])], [[1.0]]))
    assert report.metrics["masked_fraction"] == 0.75


def test_sampled_tokens_without_a_version_are_refused(small_folder: Path) -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3], sampled=1, weights_version=None)]
    with pytest.raises(TrainerError, match="without a weights version"):
        PolicyTrainer.load(small_folder, config()).step(TrainingBatch(1, [group([episode(nodes)])], [[1.0]]))
