"""`make e2e-trinity`: the calculator is trained on a CPU by real Trinity-RFT: FSDP2, vLLM, weights by checkpoints.

It gets better; the models' probabilities stay those of the trainer; weights that do not arrive are found out, in both
of the ways there are; agents that fail, and groups that cannot be completed, neither stop it nor lose an episode.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from astune_command import ROOT
from cluster_runs import (
    assert_failing_agents_lose_nothing,
    assert_goes_on_where_it_was_interrupted,
    assert_learnt,
    begin,
    kill_while_training,
    python_of,
    run_of,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not python_of("trinity").exists(), reason="Trinity is not in .venv-trinity: make env-trinity"),
]


def test_the_calculator_gets_better_with_trinity(tmp_path: Path) -> None:
    out, _ = begin("trinity", tmp_path).communicate(timeout=2400)
    assert_learnt(run_of(tmp_path), out)


def test_agents_that_fail_stop_nothing_and_lose_nothing(tmp_path: Path) -> None:
    assert_failing_agents_lose_nothing("trinity", tmp_path)


@pytest.mark.parametrize(
    ("fake", "found"),
    [("changed", "did not sample with the weights that are trained"), ("same", "says of a text what it said before")],
)
def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path, fake: str, found: str) -> None:
    modules = "astune.backbone.verl.cpu,untrue_trinity"
    path = f"{ROOT}:{Path(__file__).parent}"
    process = begin("trinity", tmp_path, VERL_USE_EXTERNAL_MODULES=modules, PYTHONPATH=path, ASTUNE_TEST_FAKE=fake)
    out, _ = process.communicate(timeout=2400)
    assert process.returncode == 1, out
    assert found in out
    assert run_of(tmp_path).info().status == "failed"


def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    process = begin("trinity", tmp_path)
    out, seconds = kill_while_training(process, tmp_path)
    assert seconds < 60, out
    assert process.returncode == 1, out
    assert "died" in out


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    assert_goes_on_where_it_was_interrupted("trinity", tmp_path)
