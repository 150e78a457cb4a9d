"""`make e2e-trinity`: the calculator is trained on a CPU by real Trinity-RFT: FSDP2, vLLM, weights by checkpoints.

It gets better; the models' probabilities stay those of the trainer; weights that do not arrive are found out, in both
of the ways there are; episodes may be run ahead; agents that fail, and groups that cannot be completed, neither stop it
nor lose an episode.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import (
    assert_failing_agents_lose_nothing,
    assert_finds_out_what_is_faked,
    assert_goes_on_where_it_was_interrupted,
    assert_learnt,
    begin,
    kill_all_between_steps,
    kill_while_training,
    metrics_of,
    python_of,
    run_of,
)
from program_runs import (
    assert_trains_a_program,
    assert_trains_an_agent_on_workers,
    assert_trains_an_agent_that_is_a_server,
)
from tiny_runs import (
    assert_goes_on,
    assert_refuses_gpus_that_it_would_not_use,
    assert_runs_ahead,
    assert_trains_on_a_head_that_astune_starts,
    assert_trains_on_two_nodes,
    assert_trains_with_all_terms,
)

from astune.runs import balance_of

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


@pytest.mark.parametrize("fake", ["changed", "same"])
def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path, fake: str) -> None:
    assert_finds_out_what_is_faked("trinity", tmp_path, fake)


def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    process = begin("trinity", tmp_path)
    out, seconds = kill_while_training(process, tmp_path)
    assert seconds < 60, out
    assert process.returncode == 1, out
    assert "died" in out


def test_runners_that_are_killed_between_two_steps_are_replaced(tmp_path: Path) -> None:
    process = begin("trinity", tmp_path, "--set", "trainer.total_steps=2")
    kill_all_between_steps("ray::WorkflowRunner", process, tmp_path)
    out, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, out
    assert all(balance_of(line).difference == 0 for line in metrics_of(run_of(tmp_path)))


@pytest.mark.parametrize("style", ["fixed", "fully_async"])
def test_episodes_are_run_ahead_of_the_trainer(tmp_path: Path, tiny_folder: Path, style: str) -> None:
    assert_runs_ahead("trinity", tmp_path, tiny_folder, f"trinity.synchronizer.sync_style={style}")


def test_a_loss_with_all_its_terms_is_trained_and_answers_keep_to_a_form(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_with_all_terms("trinity", tmp_path, tiny_folder)


def test_it_joins_a_cluster_and_trains_across_its_nodes(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_on_two_nodes("trinity", tmp_path, tiny_folder, {"cluster": {"node_num": 2, "gpu_per_node": 1}})


def test_a_cluster_with_gpus_is_not_trained_on_without_them(tmp_path: Path, tiny_folder: Path) -> None:
    assert_refuses_gpus_that_it_would_not_use("trinity", tmp_path, tiny_folder)


def test_it_trains_on_a_ray_head_that_is_started_first(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_on_a_head_that_astune_starts("trinity", tmp_path, tiny_folder)


def test_a_run_goes_on_with_what_is_left_of_it(tmp_path: Path, tiny_folder: Path) -> None:
    assert_goes_on("trinity", tmp_path, tiny_folder)


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    assert_goes_on_where_it_was_interrupted("trinity", tmp_path)


def test_a_program_is_trained(tmp_path: Path) -> None:
    assert_trains_a_program("trinity", tmp_path)


def test_an_agent_that_is_a_server_is_trained(tmp_path: Path) -> None:
    assert_trains_an_agent_that_is_a_server("trinity", tmp_path)


def test_an_agent_on_workers_is_trained_when_one_is_killed_and_after_a_resume(tmp_path: Path) -> None:
    assert_trains_an_agent_on_workers("trinity", tmp_path)
