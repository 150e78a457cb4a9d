"""Checkpoints: whole or not there, the newest resumable, the best kept."""

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import some

from astune.runs import CheckpointStore
from astune.schema import RunStoreError


def writes(text: str, size: int = 0) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "nested").mkdir()
        (folder / "nested" / "weights").write_text(text)
        (folder / "padding").write_bytes(b"x" * size)

    return write


def save(store: CheckpointStore, step: int, score: float | None = None, *, state: bool = True) -> None:
    store.save(step, model=writes(f"model {step}"), state=writes(f"state {step}") if state else None, score=score)


def test_the_newest_can_be_gone_on_from_and_the_best_is_kept(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.latest() is store.best() is None
    for step, score in [(5, 0.1), (10, 0.9), (15, 0.5), (20, None)]:
        save(store, step, score)
    latest, best = store.latest(), store.best()
    assert latest is not None
    assert best is not None
    assert (latest.step, (latest.state / "nested" / "weights").read_text()) == (20, "state 20")
    assert (best.step, best.resumable, (best.model / "nested" / "weights").read_text()) == (10, False, "model 10")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-000010", "step-000020"]


def test_a_best_model_between_resumable_checkpoints_takes_nothing_from_them(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10, 0.2)
    save(store, 12, 0.8, state=False)
    assert store.latest() == store.list()[0]
    assert store.best() == store.list()[1]


def test_a_model_that_is_measured_after_it_was_saved_is_the_best_and_stays(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    store.rate(10, 0.5)
    save(store, 20)
    store.rate(20, 0.2)
    store.rate(15, 0.9)
    save(store, 30)
    assert [(each.step, each.score) for each in store.list()] == [(10, 0.5), (30, None)]
    best = store.best()
    assert best is not None
    assert best.step == 10


def test_a_model_that_is_still_to_be_measured_stays_until_it_is(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10, 0.5)
    for step in (11, 12):
        store.save(step, model=writes(f"model {step}"), state=writes(f"state {step}"), unrated={11})
    assert [(each.step, each.resumable) for each in store.list()] == [(10, False), (11, False), (12, True)]
    store.rate(11, 0.9, unrated={12})
    assert [(each.step, each.score) for each in store.list()] == [(11, 0.9), (12, None)]
    store.rate(12, 0.1)
    assert [(each.step, each.score) for each in store.list()] == [(11, 0.9), (12, 0.1)]


def test_of_equal_scores_the_first_is_the_best_as_reports_and_the_viewer_have_it(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        save(store, step, 1.0)
    assert [checkpoint.step for checkpoint in store.list()] == [1, 3]
    best = store.best()
    assert best is not None
    assert (best.step, store.would_be_best(1.0)) == (1, False)


def test_the_same_step_can_be_saved_again(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 3, 0.5, state=False)
    save(store, 3, 0.5)
    (only,) = store.list()
    assert only.resumable
    save(store, 4, 0.4)
    assert [checkpoint.step for checkpoint in store.list()] == [3, 4]


def test_a_score_that_is_no_number_is_no_score(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 0.5)
    save(store, 2, float("nan"))
    best = store.best()
    assert best is not None
    assert best.step == 1


def test_a_step_before_the_newest_is_refused_until_the_run_is_rewind(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5)
    with pytest.raises(RunStoreError, match=r"step 3 .* rewind"):
        save(store, 3)
    store.rewind(0, a_folder(tmp_path, "later"))
    save(store, 3)


def test_metadata_comes_back(tmp_path) -> None:
    CheckpointStore(tmp_path).save(1, model=writes("m"), metadata={"success": 0.5, "tasks": 64})
    (checkpoint,) = CheckpointStore(tmp_path).list()
    assert checkpoint.metadata == {"success": 0.5, "tasks": 64}


def test_the_best_model_stays_the_best_when_its_steps_are_run_again_until_one_is_as_good(tmp_path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", tmp_path / "superseded")
    later = CheckpointStore(a_folder(tmp_path, "superseded/1/checkpoints"))
    save(store, 10, 0.1)
    save(store, 12, 0.9, state=False)
    store.rewind(10, later.folder)
    assert [checkpoint.step for checkpoint in store.list()] == [10]
    save(store, 11, 0.5)
    best = store.best()
    assert best is not None
    assert (best.step, best.superseded, (best.model / "nested" / "weights").read_text()) == (12, True, "model 12")
    assert [store.would_be_best(score) for score in (0.5, 0.9)] == [False, True]
    save(store, 12, 0.9)
    best = store.best()
    assert best is not None
    assert (best.step, best.superseded, later.list(), store.would_be_best(0.9)) == (12, False, [], False)


def a_folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir(parents=True)
    return parent / name


def test_a_writer_that_fails_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("weights are not finite")

    with pytest.raises(RunStoreError, match=r"state of step 2.*weights are not finite"):
        store.save(2, model=writes("m"), state=fails)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000001"]


def test_too_little_space_is_said_before_anything_is_written(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(RunStoreError, match=r"step 7 needs .* GiB, but .* left; free some space"):
        store.save(7, model=writes("m"), needs_bytes=2**60)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_keeps_the_earlier_checkpoint(small_disk) -> None:
    store = CheckpointStore(small_disk)
    save(store, 1)
    with pytest.raises(RunStoreError, match=r"the disk is full.*--resume"):
        store.save(2, model=writes("m", size=10_000_000), state=writes("s"))
    assert [checkpoint.step for checkpoint in store.list()] == [1]
    assert [entry.name for entry in small_disk.iterdir()] == ["step-000001"]


def test_a_damaged_checkpoint_is_named(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (tmp_path / "step-000001" / "checkpoint.json").write_text("{")
    assert store.latest() is None
    for ask in (store.list, lambda: store.resume_point(lambda _: None)):
        with pytest.raises(RunStoreError, match="step-000001 is damaged"):
            ask()


@pytest.mark.parametrize("saves_before_the_kill", some([4, 1], 1))
def test_a_sigkill_while_saving_leaves_whole_checkpoints_only(tmp_path, saves_before_the_kill) -> None:
    program = f"""
        from pathlib import Path
        from astune.runs import CheckpointStore

        def write(folder):
            for index in range(40):
                (folder / str(index)).write_bytes(b"x" * 50_000)

        store = CheckpointStore(Path({str(tmp_path)!r}))
        for step in range(1, 10**6):
            store.save(step, model=write, state=write, score=1 / step)
            print(step, flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(saves_before_the_kill):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = max([saves_before_the_kill, *map(int, process.stdout.read().split())])
    process.wait()

    store = CheckpointStore(tmp_path)
    latest, best = store.latest(), store.best()
    assert latest is not None
    assert best is not None
    assert latest.step >= acknowledged
    assert best.step == 1
    for folder in (latest.model, latest.state, best.model):
        assert [file.stat().st_size for file in folder.iterdir()] == [50_000] * 40
    save(store, latest.step + 1, 0.0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-000001", f"step-{latest.step + 1:06d}"]


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def two_resume_points(folder: Path, kept: Path) -> CheckpointStore:
    """The older one is whole, as a kill before it was tidied away leaves it."""
    store = CheckpointStore(folder)
    save(store, 10)
    shutil.copytree(folder / "step-000010", kept)
    save(store, 20)
    shutil.rmtree(folder / "step-000010", ignore_errors=True)
    kept.rename(folder / "step-000010")
    return store


@pytest.mark.parametrize("part", ["model", "state"])
@pytest.mark.parametrize("harm", [flip_a_bit, lambda file: file.write_bytes(b"m"), Path.unlink])
def test_a_damaged_checkpoint_is_put_aside_for_an_older_whole_one(tmp_path, part, harm) -> None:
    store = two_resume_points(tmp_path / "checkpoints", tmp_path / "kept")
    harm(store.folder / "step-000020" / part / "nested" / "weights")
    told: list[str] = []
    point = store.resume_point(told.append)
    assert point is not None
    assert point.step == 10
    assert "resuming from step 10 instead" in told[-1]
    assert [each.step for each in store.list()] == [10]
    assert len(list(store.folder.glob("damaged-step-000020-*"))) == 1
    save(store, 20)


def test_a_cut_manifest_does_not_stop_a_resume_beside_an_older_whole_one(tmp_path) -> None:
    store = two_resume_points(tmp_path / "checkpoints", tmp_path / "kept")
    (store.folder / "step-000020" / "checkpoint.json").write_text("{")
    assert store.latest() is not None
    point = store.resume_point(lambda _: None)
    latest = store.latest()
    assert point is not None
    assert latest is not None
    assert point.step == latest.step == 10


def test_with_damaged_checkpoints_alone_nothing_is_resumed_silently(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    flip_a_bit(tmp_path / "step-000010" / "state" / "nested" / "weights")
    with pytest.raises(RunStoreError, match="state/nested/weights was changed after it was written"):
        store.resume_point(lambda _: None)
    assert (tmp_path / "step-000010").is_dir()


def test_a_checkpoint_of_before_there_were_checksums_is_resumed_and_a_rated_one_keeps_them(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    store.rate(10, 0.5)
    point = store.resume_point(lambda _: None)
    assert point is not None
    assert point.files is not None
    manifest = tmp_path / "step-000010" / "checkpoint.json"
    manifest.write_text(json.dumps({k: v for k, v in json.loads(manifest.read_text()).items() if k != "files"}))
    old = store.resume_point(lambda _: None)
    assert old is not None
    assert (old.step, old.files) == (10, None)
