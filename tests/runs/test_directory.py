"""A run's directory: complete when it appears, written by one process, found again by what people type."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astune.runs import CheckpointStore, EpisodeStore, MetricsLog, RunDirectory, resolve_run, superseded
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
        for folder in (run.backup, run.rollout, run.plots, run.checkpoints.folder):
            assert folder.is_dir()


def test_runs_begun_in_the_same_second_get_names_that_sort_by_age(tmp_path) -> None:
    runs = [RunDirectory.create(tmp_path, "x") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert sorted(run.path.name for run in runs) == [run.path.name for run in runs]
    assert resolve_run(None, record_dir=tmp_path) == runs[-1].path


def test_how_a_run_ended_is_recorded_even_where_its_record_was_removed_meanwhile(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "x", "debug") as run:
        (run.path / "run.json").unlink()
        run.finish("failed", "why")
    info = RunDirectory.open(run.path).info()
    assert (info.status, info.message, info.kind, info.experiment) == ("failed", "why", "debug", "x")


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\0b"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name) -> None:
    with pytest.raises(RunStoreError, match="experiment_name"):
        RunDirectory.create(tmp_path, name)


@pytest.mark.slow
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


def test_rewinding_a_run_moves_all_that_was_recorded_later_into_a_run_of_its_own(tmp_path, episode) -> None:
    with RunDirectory.create(tmp_path, "x") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for step in (1, 2, 3):
                metrics.append(step, "train", {})
                episodes.append(episode(step))
                episodes.annotate(f"train-{step:06d}-task0-000-0", advantages=[0.5])
                episodes.annotate_logprobs(f"train-{step:06d}-task0-000-0", np.zeros(1, dtype=np.float32))
        run.save_config("seed: 1\n")
        run.checkpoints.save(2, model=lambda folder: None, state=lambda folder: None)
        run.checkpoints.save(3, model=lambda folder: None, score=1.0)
        with run.episodes() as episodes:
            recorded = episodes.list(step=3)
        moved = run.rewind(2)
        assert [line.step for line in run.metrics()] == [1, 2]
        with run.episodes() as episodes:
            assert [row.step for row in episodes.list()] == [1, 2]
        assert [checkpoint.step for checkpoint in run.checkpoints.list()] == [2]
        best = run.checkpoints.best()
        assert best is not None
        assert (best.step, best.score) == (3, 1.0)
        assert moved is not None
        assert str(moved) == (
            "resuming after step 2: records of step 3 (1 episode, the model of step 3 with validation success "
            f"1.00) were moved to {run.path / 'superseded' / '1'}"
        )
        assert run.rewind(2) is None
        assert resolve_run(run.path) == run.path
    later = RunDirectory.open(resolve_run(moved.path / "rollout"))
    assert (later.path, later.info().status, later.config_path.read_text()) == (moved.path, "interrupted", "seed: 1\n")
    assert [line.step for line in later.metrics()] == [3]
    with later.episodes() as episodes:
        assert episodes.list() == recorded
        assert recorded[0].advantages == [0.5]
        assert episodes.trainer_logprobs(recorded[0].episode_id) is not None
        assert list(episodes.search("BOXED"))
        assert episodes.read(recorded[0].episode_id).step == 3


@pytest.mark.slow
def test_a_cleaned_run_keeps_its_records_and_its_best_model_and_is_not_resumed(tmp_path, episode) -> None:
    run = RunDirectory.create(tmp_path, "x")
    with run.open_episodes() as episodes:
        episodes.append(episode(1))

    def write(folder) -> None:
        (folder / "numbers").write_bytes(b"x" * 1000)

    for step, score in ((1, 0.9), (2, 0.1)):
        run.checkpoints.save(step, model=write, state=write, score=score)
    (run.checkpoints.folder / "verl" / "global_step_2").mkdir(parents=True)
    CheckpointStore(run.path / "superseded" / "1" / "checkpoints").save(3, model=write, score=0.5)
    with pytest.raises(RunStoreError, match="is being written by process"):
        RunDirectory.open(run.path).clean()
    run.finish("finished")
    run.close()
    folders = {path.name: size for path, size in run.removable().items()}
    assert folders.keys() == {"step-000002", "verl", "step-000003"}
    assert folders["step-000002"] > 2000
    RunDirectory.open(run.path).clean()
    assert [path.name for path in run.checkpoints.folder.iterdir()] == ["step-000001"]
    best = run.checkpoints.best()
    assert best is not None
    assert (best.model / "numbers").stat().st_size == 1000
    assert (run.info().status, run.removable()) == ("finished", {})
    with run.episodes() as episodes:
        assert episodes.count() == 1
    with pytest.raises(RunStoreError, match="was cleaned, so its resume point is gone"):
        RunDirectory.open(run.path, write=True)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["", "999999999", "9" * 64])
def test_a_reader_that_looks_for_the_writer_for_long_is_none(tmp_path: Path, left: str) -> None:
    run = RunDirectory.create(tmp_path, "x")
    run.close()
    [lock] = run.path.glob("*lock*")
    lock.write_text(left)  # of a writer that was killed
    with lock.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        stalled = threading.Timer(1.5, lambda: fcntl.flock(reader, fcntl.LOCK_UN))
        stalled.start()
        RunDirectory.open(run.path, write=True).close()
        stalled.join()


REWINDS = [(superseded, "fsync_tree"), (CheckpointStore, "rewind"), (MetricsLog, "rewind"), (EpisodeStore, "rewind")]


@pytest.mark.parametrize("broken", REWINDS)
def test_a_rewind_that_was_broken_off_lost_nothing_and_is_done_by_the_next(tmp_path, episode, monkeypatch, broken):
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with RunDirectory.create(tmp_path, "x") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for step in (1, 2):
                metrics.append(step, "train", {})
                episodes.append(episode(step))
        run.checkpoints.save(2, model=lambda folder: None, score=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(*broken, breaks)
            with pytest.raises(RuntimeError, match="killed"):
                run.rewind(1)
        assert run.rewind(1) is not None
        best = run.checkpoints.best()
        assert best is not None
        assert (best.step, best.superseded) == (2, True)
        assert [line.step for line in run.metrics()] == [1]
        with run.episodes() as episodes:
            assert [row.step for row in episodes.list()] == [1]
    assert [path.name for path in run.superseded()] == ["1"]
    with RunDirectory.open(run.superseded()[0]).episodes() as episodes:
        assert [row.step for row in episodes.list()] == [2]
    with pytest.raises(RunStoreError, match="holds superseded steps of a run"):
        RunDirectory.open(run.superseded()[0], write=True)


def test_a_rewind_that_was_broken_off_when_all_was_done_does_not_swallow_the_next_ones_episodes(
    tmp_path, episode, monkeypatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with RunDirectory.create(tmp_path, "x") as run:
        for round_ in (1, 2):
            with run.open_episodes() as episodes:
                episodes.append(replace(episode(2), episode_id=f"round-{round_}"))
            monkeypatch.setattr(Path, "unlink", breaks)
            with pytest.raises(RuntimeError):
                run.rewind(1)
            monkeypatch.undo()
            assert run.rewind(1) is None
        with run.episodes() as episodes:
            assert episodes.count() == 0
        for folder, round_ in zip(run.superseded(), (1, 2), strict=True):
            with RunDirectory.open(folder).episodes() as episodes:
                assert [row.episode_id for row in episodes.list()] == [f"round-{round_}"]


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


def test_an_experiment_means_its_newest_run_that_trains_or_has_a_model_before_a_newer_debug_run(tmp_path) -> None:
    runs = [RunDirectory.create(tmp_path, "x", kind) for kind in ("training", "training", "debug")]
    runs[0].checkpoints.save(1, model=lambda folder: None)
    paths = [run.path for run in runs]
    assert resolve_run("x", record_dir=tmp_path) == paths[2]
    assert resolve_run("x", record_dir=tmp_path, prefer="training") == paths[1]
    assert resolve_run(None, record_dir=tmp_path, prefer="model") == paths[0]
    assert resolve_run(paths[2], prefer="model") == paths[2]
    runs[2].finish("finished")
    assert runs[2].info().kind == "debug"
    only = RunDirectory.create(tmp_path, "y", "debug").path
    assert resolve_run("y", record_dir=tmp_path, prefer="training") == only


def test_no_run_is_an_error_that_says_where_was_looked(tmp_path) -> None:
    with pytest.raises(RunStoreError, match=r"no run found in nothing and .*records/nothing"):
        resolve_run("nothing", record_dir=tmp_path / "records")
    for experiment in ("calculator", "lake"):
        RunDirectory.create(tmp_path, experiment)
    with pytest.raises(RunStoreError, match=r"; /.* contains calculator$"):
        resolve_run("calculater", record_dir=tmp_path)
    with pytest.raises(RunStoreError, match=r"; /.* contains calculator, lake$"):
        resolve_run("nothing", record_dir=tmp_path)
    with pytest.raises(RunStoreError, match="is not a run"):
        RunDirectory.open(tmp_path)


def test_a_half_made_folder_is_no_run(tmp_path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    half = run.path.parent / ".new-2999_01_01_00_00_00"
    half.mkdir()
    (half / "run.json").write_text("{}")
    assert resolve_run(tmp_path / "x") == run.path


@pytest.mark.parametrize("name", ["x" * 5000, "a\x1b]0;b\x07", "a\nb"])
def test_a_name_that_no_folder_should_have_is_refused_in_short(name: str, tmp_path) -> None:
    with pytest.raises(RunStoreError, match="is not a valid folder name") as caught:
        RunDirectory.create(tmp_path, name)
    assert len(str(caught.value)) < 400
