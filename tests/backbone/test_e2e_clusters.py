"""`make e2e-verl`, `make e2e-trinity`: the calculator is trained on a CPU by the real engine, on a local Ray.

verl has FSDP2, vLLM and its weight sync; Trinity-RFT has FSDP2, vLLM and weights by checkpoints. It gets better; the
servers' probabilities stay those of the trainer; weights that do not arrive are found out, in both of the ways there
are; episodes may be run ahead; a killed worker ends the run with its name; an interrupted run goes on; agents that
fail, and groups that cannot be completed, neither stop it nor lose an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_runs import (
    assert_failing_agents_lose_nothing,
    assert_finds_out_what_is_faked,
    assert_goes_on_where_it_was_interrupted,
    assert_learnt,
    assert_trains_adapters,
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


def _there(engine: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not python_of(engine).exists(), reason=f"{engine} is not in .venv-{engine}: make env-{engine}"
    )


VERL, TRINITY = (pytest.param(engine, marks=_there(engine), id=engine) for engine in ("verl", "trinity"))
both = pytest.mark.parametrize("engine", [VERL, TRINITY])
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


@both
def test_the_calculator_gets_better(tmp_path: Path, engine: str) -> None:
    out, _ = begin(engine, tmp_path).communicate(timeout=2400)
    assert_learnt(run_of(tmp_path), out)


@both
@pytest.mark.parametrize("fake", ["changed", "same"])
def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path, engine: str, fake: str) -> None:
    assert_finds_out_what_is_faked(engine, tmp_path, fake)


@both
def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path, engine: str) -> None:
    process = begin(engine, tmp_path)
    out, seconds = kill_while_training(process, tmp_path)
    assert seconds < 60, out
    assert process.returncode == 1, out
    assert ("the trainer worker 0 died" if engine == "verl" else "died") in out


@pytest.mark.parametrize("engine", [TRINITY])
def test_runners_that_are_killed_between_two_steps_are_replaced(tmp_path: Path, engine: str) -> None:
    process = begin(engine, tmp_path, "--set", "trainer.total_steps=2")
    kill_all_between_steps("ray::WorkflowRunner", process, tmp_path)
    out, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, out
    assert all(balance_of(line).difference == 0 for line in metrics_of(run_of(tmp_path)))


@pytest.mark.parametrize(
    ("engine", "setting"),
    [
        pytest.param(engine, f"{engine}.{setting}", marks=_there(engine), id=f"{engine}-{setting.partition('=')[2]}")
        for engine, setting in [
            ("verl", "trainer.v1.trainer_mode=colocate_async"),
            ("verl", "trainer.v1.trainer_mode=separate_async"),
            ("trinity", "synchronizer.sync_style=fixed"),
            ("trinity", "synchronizer.sync_style=fully_async"),
        ]
    ],
)
def test_episodes_are_run_ahead_of_the_trainer(tmp_path: Path, tiny_folder: Path, engine: str, setting: str) -> None:
    assert_runs_ahead(engine, tmp_path, tiny_folder, setting)


@pytest.mark.parametrize("engine", [VERL])
def test_adapters_are_trained(tmp_path: Path, engine: str) -> None:
    assert_trains_adapters(engine, tmp_path)


@both
def test_it_joins_a_cluster_and_trains_across_its_nodes(tmp_path: Path, tiny_folder: Path, engine: str) -> None:
    nodes: dict[str, dict[str, object]] = {
        "verl": {"trainer": {"nnodes": 2, "n_gpus_per_node": 1}},
        "trinity": {"cluster": {"node_num": 2, "gpu_per_node": 1}},
    }
    assert_trains_on_two_nodes(engine, tmp_path, tiny_folder, nodes[engine])


@both
@pytest.mark.parametrize(
    "holds",
    [
        pytest.param(assert_trains_with_all_terms, id="a_loss_with_all_its_terms_and_answers_in_a_form"),
        pytest.param(assert_refuses_gpus_that_it_would_not_use, id="a_cluster_with_gpus_is_not_trained_on_without"),
        pytest.param(assert_trains_on_a_head_that_astune_starts, id="a_ray_head_that_is_started_first"),
        pytest.param(assert_goes_on, id="a_run_goes_on_with_what_is_left_of_it"),
    ],
)
def test_a_tiny_model(tmp_path: Path, tiny_folder: Path, engine: str, holds: Callable[[str, Path, Path], None]) -> None:
    holds(engine, tmp_path, tiny_folder)


@both
@pytest.mark.parametrize(
    "holds",
    [
        pytest.param(assert_goes_on_where_it_was_interrupted, id="a_run_that_was_interrupted_goes_on"),
        pytest.param(assert_failing_agents_lose_nothing, id="agents_that_fail_stop_nothing_and_lose_nothing"),
        pytest.param(assert_trains_a_program, id="a_program_is_trained"),
        pytest.param(assert_trains_an_agent_that_is_a_server, id="an_agent_that_is_a_server_is_trained"),
        pytest.param(assert_trains_an_agent_on_workers, id="an_agent_on_workers_is_trained_when_one_is_killed"),
    ],
)
def test_the_calculator(tmp_path: Path, engine: str, holds: Callable[[str, Path], None]) -> None:
    holds(engine, tmp_path)
