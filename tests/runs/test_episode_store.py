"""The store of episodes: fast to append to, durable once flushed, readable while it is written."""

import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from examples import some

from astune.runs import EpisodeReader, EpisodeStore
from astune.runs.interval import OfTasks, wilson_interval
from astune.schema import EpisodeGroup, RunStoreError, TrainingBatch

HERE = Path(__file__).parent


def test_an_episode_is_read_back_as_it_was_appended(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        one = episode()
        store.append(one, [0.5])
        store.flush()
        assert store.read(one.episode_id) == one
        row = store.row(one.episode_id)
    assert row.advantages == [0.5]
    assert (row.n_tokens, row.n_sampled, row.n_trained, row.n_turns) == (54, 40, 40, 2)
    assert (row.n_branches, row.agents) == (1, ["agent"])
    assert (row.status, row.reward, row.success, row.seconds) == ("success", 1.0, True, 0.5)


def test_what_the_trainer_made_of_the_tokens_lies_beside_the_record(tmp_path, episode) -> None:
    path = tmp_path / "episodes.sqlite"
    logprobs = np.array([-0.5, math.nan, *[-1.25] * 38], np.float32)
    with EpisodeStore(path) as store:
        for step in (1, 2):
            store.append(episode(step))
            store.annotate_logprobs(episode(step).episode_id, np.zeros(40, np.float32))
            store.annotate_logprobs(episode(step).episode_id, logprobs)
        store.append(episode(3))
        store.flush()
        found = store.trainer_logprobs(episode(1).episode_id)
        assert found is not None
        assert np.array_equal(found, logprobs, equal_nan=True)
        assert store.trainer_logprobs(episode(3).episode_id) is None
        store.rewind(1)
        store.append(episode(2))
        store.flush()
        assert store.trainer_logprobs(episode(2).episode_id) is None
        assert list(store.search("2 + 2")) == [1, 2]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT seq FROM trainer_logprobs").fetchall() == [(1,)]
        assert connection.execute("SELECT seq FROM texts ORDER BY seq").fetchall() == [(1,), (2,)]


def test_log_probabilities_of_an_episode_that_was_not_recorded_are_refused(tmp_path) -> None:
    store = EpisodeStore(tmp_path / "episodes.sqlite")
    store.annotate_logprobs("nobody", np.zeros(1, np.float32))
    with pytest.raises(RunStoreError, match="no recorded episode 'nobody'"):
        store.close()


def test_rows_are_filtered_by_step_split_task_and_status(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        for step in (1, 2):
            for task in range(3):
                store.append(episode(step, task))
        store.append(episode(2, 1, attempt=1, error="JudgeError: no 'answer'"))
        store.append(episode(2, 0, split="validation", success=False))
        store.flush()
        assert len(store.list()) == store.count() == 8
        assert [row.task_id for row in store.list(step=1, split="train")] == ["task0", "task1", "task2"]
        assert [row.step for row in store.list(task_id="task1", split="train", status="success")] == [1, 2]
        (error,) = store.list(status="error")
        assert (error.error_type, error.reward, error.success) == ("JudgeError", None, None)
        assert len(store.list(limit=3, offset=6)) == 2
        assert [one.step for one in store.episodes(split="validation")] == [2]


def test_a_step_is_summed_up_over_its_episodes_without_errors(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        store.append(episode(3, 0, success=True))
        store.append(episode(3, 0, 1, success=False))
        store.append(episode(3, 1, error="EnvError: gone"))
        store.flush()
        (summary,) = store.summaries("train")
    assert (summary.step, summary.episodes, summary.errors, summary.success_rate) == (3, 2, 1, 0.5)
    assert (summary.reward, summary.answer_tokens, summary.turns) == (0.5, 40.0, 2.0)


def test_episodes_of_one_task_that_end_alike_count_as_one_in_an_interval(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        for task in range(6):
            for repeat in range(4):
                store.append(episode(3, task, repeat, success=task % 2 == 0))
        store.append(episode(3, 6, error="EnvError: gone"))
        store.flush()
        (summary,) = store.summaries("train")
    assert (summary.episodes, summary.tasks, summary.successes) == (24, 7, 12)
    assert summary.effective == pytest.approx(6)
    assert summary.interval == pytest.approx(wilson_interval(3, 6))


def test_what_did_not_finish_counts_as_failed_episodes_of_its_own_task(tmp_path, episode) -> None:
    """Of 10 tasks with 8 episodes 5 are solved half of the time, 4 never finish, and one was not begun."""
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        for task in range(9):
            for repeat in range(8):
                error = "EnvError: gone" if task >= 5 else None
                store.append(episode(3, task, repeat, success=repeat < 4, error=error, split="validation"))
        store.flush()
        (summary,) = store.summaries("validation")
    assert summary.effective == pytest.approx(40)
    over_all = summary.over_all(80)
    assert (over_all.episodes, over_all.successes, over_all.success_rate) == (80, 20, 0.25)
    assert over_all.interval == pytest.approx(OfTasks.of([(4, 8)] * 5 + [(0, 8)] * 5).interval)


def test_advantages_and_the_reason_of_a_dropped_group_are_written_beside_the_record(tmp_path, episode) -> None:
    kept = [episode(1, 0, repeat, success=repeat == 0) for repeat in range(2)]
    dropped = [episode(1, 1, repeat) for repeat in range(2)]
    groups = [EpisodeGroup(kept[0].task, kept), EpisodeGroup(dropped[0].task, dropped, dropped="no variance")]
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        for one in kept + dropped:
            store.append(one)
        store.annotate_batch(TrainingBatch(1, groups, [[1.0, {1: -1.0, 3: 0.5}], [0.0, 0.0]]))
        store.flush()
        rows = store.list()
        assert store.read(kept[0].episode_id) == kept[0]
    assert [row.advantages for row in rows] == [[1.0], [-1.0, 0.5], [0.0], [0.0]]
    assert [row.not_trained for row in rows] == [None, None, "no variance", "no variance"]


def test_an_advantage_that_is_no_number_stays_none(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        store.append(episode(), [math.nan, 1.5])
        store.flush()
        first, second = store.list()[0].advantages or []
    assert math.isnan(first)
    assert second == 1.5


def test_rewinding_drops_what_came_after_a_step_and_lets_it_be_recorded_again(tmp_path, episode) -> None:
    path = tmp_path / "episodes.sqlite"
    with EpisodeStore(path) as store:
        for step in (1, 2, 3):
            store.append(episode(step))
        assert store.rewind(1) == 2
    with EpisodeStore(path) as store:
        store.append(episode(2))
        store.flush()
        assert [row.step for row in store.list()] == [1, 2]


def test_appending_waits_for_no_disk_and_costs_the_caller_under_a_millisecond(tmp_path, episode) -> None:
    path, seconds = tmp_path / "episodes.sqlite", []
    with EpisodeStore(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # until this ends, nothing else is written
            for task in range(50):
                one = episode(1, task, tokens=1500)
                start = time.thread_time()
                store.append(one)
                seconds.append(time.thread_time() - start)
            assert store.list() == []
        store.flush()
        assert len(store.list()) == 50
    assert sorted(seconds)[len(seconds) // 2] < 1e-3


def test_an_episode_recorded_twice_is_an_error_that_names_rewinding(tmp_path, episode) -> None:
    store = EpisodeStore(tmp_path / "episodes.sqlite")
    store.append(episode())
    store.flush()
    store.append(episode())
    with pytest.raises(RunStoreError, match=r"recorded twice.*rewind"):
        store.flush()
    store.close()


def test_a_dead_writer_is_told_at_the_next_call_and_costs_nothing_recorded_before(tmp_path, episode) -> None:
    path = tmp_path / "episodes.sqlite"
    store = EpisodeStore(path)
    store.append(episode(1))
    store.flush()
    bad = episode(2)
    bad.forest.nodes[0].token_ids = [object()]  # type: ignore[list-item]
    store.append(bad)
    with pytest.raises(RunStoreError, match="cannot be written"):
        store.flush()
    with pytest.raises(RunStoreError, match="cannot be written"):
        store.append(episode(3))
    store.close()
    with EpisodeReader(path) as reader:
        assert [row.step for row in reader.list()] == [1]


def test_a_store_that_was_removed_while_it_is_written_is_an_error(tmp_path: Path, episode) -> None:
    store = EpisodeStore(tmp_path / "episodes.sqlite")
    store.append(episode())
    store.flush()
    (tmp_path / "episodes.sqlite").unlink()
    with pytest.raises(RunStoreError, match=r"episodes\.sqlite was removed or replaced"):
        store.flush()
    with pytest.raises(RunStoreError, match="was removed or replaced"):
        store.close()


def test_closing_tells_of_a_failure_that_nobody_has_heard_of(tmp_path, episode) -> None:
    store = EpisodeStore(tmp_path / "episodes.sqlite")
    store.annotate("nobody", advantages=[1.0])
    with pytest.raises(RunStoreError, match="no recorded episode 'nobody'"):
        store.close()
    store.close()


def test_a_reader_in_the_middle_of_a_query_does_not_block_the_writer(tmp_path, episode) -> None:
    path = tmp_path / "episodes.sqlite"
    with EpisodeStore(path) as store:
        store.append(episode(1))
        store.flush()
        held = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        held.execute("BEGIN")
        assert held.execute("SELECT COUNT(*) FROM episodes").fetchone() == (1,)
        store.append(episode(2))
        store.flush()
        assert held.execute("SELECT COUNT(*) FROM episodes").fetchone() == (1,)
        held.close()
        assert store.count() == 2


def test_many_threads_append_and_read_at_once(tmp_path, episode) -> None:
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:

        def work(thread: int) -> None:
            for repeat in range(30):
                store.append(episode(thread, 0, repeat))
                store.summaries()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.flush()
        assert store.count() == 120


def test_a_file_that_is_no_store_is_refused(tmp_path) -> None:
    (tmp_path / "text").write_text("hello, this is no database at all" * 100)
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE t (x)")
    with pytest.raises(RunStoreError, match="cannot be"):
        EpisodeStore(tmp_path / "text")
    with pytest.raises(RunStoreError, match="not an episode store"):
        EpisodeReader(tmp_path / "other")
    with pytest.raises(RunStoreError, match="no episodes at"):
        EpisodeReader(tmp_path / "nothing")


def test_a_store_of_a_newer_version_is_refused_with_the_fix(tmp_path) -> None:
    EpisodeStore(tmp_path / "episodes.sqlite").close()
    sqlite3.connect(tmp_path / "episodes.sqlite").execute("PRAGMA user_version = 99")
    with pytest.raises(RunStoreError, match=r"schema version 99.*upgrade"):
        EpisodeReader(tmp_path / "episodes.sqlite")


APPENDS_UNTIL_KILLED = """
    import sys
    sys.path[:0] = [{here!r}]
    from pathlib import Path
    from conftest import make_episode
    from astune.runs import EpisodeStore

    store = EpisodeStore(Path({path!r}))
    for step in range(1, 100000):
        for repeat in range(4):
            store.append(make_episode(step, 0, repeat, tokens=300))
        if step % 3 == 0:
            store.flush()
            print(step, flush=True)
"""


@pytest.mark.parametrize("acknowledged_before_the_kill", some([5, 1, 17], 1))
def test_what_was_acknowledged_before_a_sigkill_is_on_disk(tmp_path, acknowledged_before_the_kill) -> None:
    path = tmp_path / "episodes.sqlite"
    program = textwrap.dedent(APPENDS_UNTIL_KILLED.format(here=str(HERE), path=str(path)))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(acknowledged_before_the_kill):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    process.wait()

    with EpisodeReader(path) as reader:
        rows = reader.list()
        assert {(row.step, row.repeat) for row in rows} >= {
            (s, r) for s in range(1, acknowledged + 1) for r in range(4)
        }
        for row in rows:
            assert reader.read(row.episode_id).forest.sampled_tokens() == 600
    with EpisodeStore(path) as store:
        store.rewind(acknowledged)
        assert store.count() == 4 * acknowledged
        assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


FILLS_THE_DISK = """
    import resource, sys
    sys.path[:0] = [{here!r}]
    from pathlib import Path
    from conftest import make_episode
    from astune.runs import EpisodeStore
    from astune.schema import RunStoreError

    if {limit}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    store = EpisodeStore(Path({path!r}))
    acknowledged = 0
    try:
        for step in range(1, 100000):
            store.append(make_episode(step, tokens=2000 + step))
            store.flush()
            acknowledged = step
    except RunStoreError as error:
        print(acknowledged, error)
    try:
        store.append(make_episode(0))
    except RunStoreError as error:
        print("again", type(error).__name__)
    store.close()
"""


def run_until_full(path: Path, limit: int) -> tuple[int, str]:
    program = textwrap.dedent(FILLS_THE_DISK.format(here=str(HERE), path=str(path), limit=limit))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert last == "again RunStoreError"
    acknowledged, message = first.split(" ", 1)
    return int(acknowledged), message


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of file sizes on this system")
def test_a_file_that_may_not_grow_is_an_error_that_loses_nothing_acknowledged(tmp_path) -> None:
    acknowledged, message = run_until_full(tmp_path / "episodes.sqlite", limit=2_000_000)
    assert acknowledged > 1
    assert "cannot be written" in message
    with EpisodeReader(tmp_path / "episodes.sqlite") as reader:
        assert {row.step for row in reader.list()} >= set(range(1, acknowledged + 1))


def test_a_full_disk_is_named_and_loses_nothing_acknowledged(small_disk) -> None:
    acknowledged, message = run_until_full(small_disk / "episodes.sqlite", limit=0)
    assert acknowledged > 1
    assert "the disk is full" in message
    assert "--resume" in message
    with EpisodeReader(small_disk / "episodes.sqlite") as reader:
        assert {row.step for row in reader.list()} >= set(range(1, acknowledged + 1))
        assert reader.read(reader.list()[-1].episode_id).step >= acknowledged


def test_a_store_in_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(RunStoreError, match="opening /proc/"):
        EpisodeStore(Path("/proc/nowhere/episodes.sqlite"))
    assert os.path.isdir("/proc")
