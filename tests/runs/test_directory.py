"""A run's directory: complete when it appears, written by one process, found again by what people type."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from astune.runs import RunDirectory, resolve_run
from astune.schema import RunStoreError


def test_a_new_run_has_its_folders_its_store_and_its_name(tmp_path) -> None:
    with RunDirectory.create(tmp_path, "calculator") as run:
        assert re.fullmatch(r"\d{4}(_\d\d){5}", run.path.name)
        assert run.path.parent == tmp_path / "calculator"
        run.save_config("seed: 1\n")
        assert run.config_path.read_text() == "seed: 1\n"
        assert run.metrics() == []
        with run.episodes() as episodes:
            assert episodes.list() == []
        for folder in (run.backup, run.rollout, run.plots, run.tensorboard, run.checkpoints.folder):
            assert folder.is_dir()


def test_runs_begun_in_the_same_second_get_names_that_sort_by_age(tmp_path) -> None:
    runs = [RunDirectory.create(tmp_path, "x") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert sorted(run.path.name for run in runs) == [run.path.name for run in runs]
    assert resolve_run(None, record_dir=tmp_path) == runs[-1].path


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\0b"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name) -> None:
    with pytest.raises(RunStoreError, match="experiment_name"):
        RunDirectory.create(tmp_path, name)


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path) -> None:
    with RunDirectory.create(tmp_path, "x") as run:
        program = f"""
            from pathlib import Path
            from astune.runs import RunDirectory
            from astune.schema import RunStoreError
            RunDirectory.open(Path({str(run.path)!r})).metrics()
            try:
                RunDirectory.open(Path({str(run.path)!r}), write=True)
            except RunStoreError as error:
                print(error)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
        )
        assert f"is being written by process {os.getpid()}" in done.stdout
        assert run.writer_pid() == os.getpid()
    with RunDirectory.open(run.path, write=True) as again:
        assert again.info().status == "running"


def test_a_run_opened_to_be_read_writes_nothing(tmp_path) -> None:
    RunDirectory.create(tmp_path, "x").close()
    run = RunDirectory.open(resolve_run("x", record_dir=tmp_path))
    for write in (run.open_episodes, run.open_metrics, lambda: run.save_config(""), lambda: run.finish("failed")):
        with pytest.raises(RunStoreError, match="write=True"):
            write()


def test_how_a_run_ended_is_recorded(tmp_path) -> None:
    with RunDirectory.create(tmp_path, "x") as run:
        assert run.info().status == "running"
        run.finish("failed", "EngineError: no memory")
    info = RunDirectory.open(run.path).info()
    assert (info.status, info.message, info.experiment) == ("failed", "EngineError: no memory", "x")


def test_a_run_killed_by_sigkill_is_killed_and_can_be_gone_on_with(tmp_path) -> None:
    program = f"""
        import time
        from pathlib import Path
        from astune.runs import RunDirectory
        run = RunDirectory.create(Path({str(tmp_path)!r}), "x")
        metrics = run.open_metrics()
        metrics.append(1, "train", {{"loss": 1.0}})
        print(run.path, flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path = resolve_run(process.stdout.readline().strip())
    assert RunDirectory.open(path).info().status == "running"
    assert RunDirectory.open(path).writer_pid() == process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert RunDirectory.open(path).info().status == "killed"
    with RunDirectory.open(path, write=True) as run, run.open_metrics() as metrics:
        assert [line.step for line in metrics.read()] == [1]


def test_rewinding_a_run_rewinds_all_that_it_recorded(tmp_path, episode) -> None:
    with RunDirectory.create(tmp_path, "x") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for step in (1, 2, 3):
                metrics.append(step, "train", {})
                episodes.append(episode(step))
        run.checkpoints.save(2, model=lambda folder: None, state=lambda folder: None)
        run.checkpoints.save(3, model=lambda folder: None, score=1.0)
        run.rewind(2)
        assert [line.step for line in run.metrics()] == [1, 2]
        with run.episodes() as episodes:
            assert [row.step for row in episodes.list()] == [1, 2]
        assert [checkpoint.step for checkpoint in run.checkpoints.list()] == [2]


@pytest.mark.parametrize("completed", [True, False])
def test_rewinding_keeps_a_measurement_of_the_last_step_only_if_it_was_completed(tmp_path, episode, completed) -> None:
    measured = replace(episode(2), split="validation", episode_id="measured")
    with RunDirectory.create(tmp_path, "x") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            metrics.append(2, "train", {})
            episodes.append(episode(2))
            episodes.append(measured)
            if completed:
                metrics.append(2, "validation", {})
        run.rewind(2)
        with run.episodes() as episodes:
            assert [row.split for row in episodes.list()] == ["train", "validation"][: 1 + completed]
        assert [line.kind for line in run.metrics()] == ["train", "validation"][: 1 + completed]


def test_a_run_is_found_by_its_folder_by_what_is_in_it_and_by_its_experiment(tmp_path, monkeypatch) -> None:
    old = RunDirectory.create(tmp_path / "records", "calculator").path
    new = RunDirectory.create(tmp_path / "records", "calculator").path
    other = RunDirectory.create(tmp_path / "records", "lake").path
    records = tmp_path / "records"
    assert resolve_run(old) == resolve_run(old / "rollout") == resolve_run(old / "rollout" / "episodes.sqlite") == old
    assert resolve_run(records / "calculator") == resolve_run("calculator", record_dir=records) == new
    assert resolve_run(f"calculator/{old.name}", record_dir=records) == old
    assert resolve_run(records) == resolve_run(None, record_dir=records) == other
    monkeypatch.chdir(tmp_path)
    assert resolve_run("records/lake") == other


def test_no_run_is_an_error_that_says_where_was_looked(tmp_path) -> None:
    with pytest.raises(RunStoreError, match=r"no run found in nothing and .*records/nothing"):
        resolve_run("nothing", record_dir=tmp_path / "records")
    with pytest.raises(RunStoreError, match="is no run"):
        RunDirectory.open(tmp_path)


def test_a_half_made_folder_is_no_run(tmp_path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    half = run.path.parent / ".new-2999_01_01_00_00_00"
    half.mkdir()
    (half / "run.json").write_text("{}")
    assert resolve_run(tmp_path / "x") == run.path
