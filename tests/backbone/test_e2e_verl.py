"""`make e2e-verl`: the calculator is trained on a CPU by real verl: FSDP2, vLLM and its weight sync, on a local Ray.

It gets better; the servers' probabilities stay those of the trainer; weights that do not arrive are found out, in both
of the ways there are; episodes may be run ahead; a killed worker ends the run with its name; an interrupted run goes
on; agents that fail lose nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import (
    assert_failing_agents_lose_nothing,
    assert_finds_out_what_is_faked,
    assert_goes_on_where_it_was_interrupted,
    assert_learnt,
    assert_trains_adapters,
    begin,
    kill_while_training,
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

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not python_of("verl").exists(), reason="verl is not in .venv-verl: make env-verl"),
]


def test_the_calculator_gets_better_with_verl(tmp_path: Path) -> None:
    out, _ = begin("verl", tmp_path).communicate(timeout=2400)
    assert_learnt(run_of(tmp_path), out)


@pytest.mark.parametrize("fake", ["changed", "same"])
def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path, fake: str) -> None:
    assert_finds_out_what_is_faked("verl", tmp_path, fake)


def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    process = begin("verl", tmp_path)
    out, seconds = kill_while_training(process, tmp_path)
    assert seconds < 60, out
    assert process.returncode == 1, out
    assert "the trainer worker 0 died" in out


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_episodes_are_run_ahead_of_the_trainer(tmp_path: Path, tiny_folder: Path, mode: str) -> None:
    assert_runs_ahead("verl", tmp_path, tiny_folder, f"verl.trainer.v1.trainer_mode={mode}")


def test_adapters_are_trained(tmp_path: Path) -> None:
    assert_trains_adapters("verl", tmp_path)


def test_a_loss_with_all_its_terms_is_trained_and_answers_keep_to_a_form(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_with_all_terms("verl", tmp_path, tiny_folder)


def test_it_joins_a_cluster_and_trains_across_its_nodes(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_on_two_nodes("verl", tmp_path, tiny_folder, {"trainer": {"nnodes": 2, "n_gpus_per_node": 1}})


def test_a_cluster_with_gpus_is_not_trained_on_without_them(tmp_path: Path, tiny_folder: Path) -> None:
    assert_refuses_gpus_that_it_would_not_use("verl", tmp_path, tiny_folder)


def test_it_trains_on_a_ray_head_that_is_started_first(tmp_path: Path, tiny_folder: Path) -> None:
    assert_trains_on_a_head_that_astune_starts("verl", tmp_path, tiny_folder)


def test_a_run_goes_on_with_what_is_left_of_it(tmp_path: Path, tiny_folder: Path) -> None:
    assert_goes_on("verl", tmp_path, tiny_folder)


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    assert_goes_on_where_it_was_interrupted("verl", tmp_path)


def test_agents_that_fail_stop_nothing_and_lose_nothing(tmp_path: Path) -> None:
    assert_failing_agents_lose_nothing("verl", tmp_path)


def test_a_program_is_trained(tmp_path: Path) -> None:
    assert_trains_a_program("verl", tmp_path)


def test_an_agent_that_is_a_server_is_trained(tmp_path: Path) -> None:
    assert_trains_an_agent_that_is_a_server("verl", tmp_path)


def test_an_agent_on_workers_is_trained_when_one_is_killed_and_after_a_resume(tmp_path: Path) -> None:
    assert_trains_an_agent_on_workers("verl", tmp_path)
