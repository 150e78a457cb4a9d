"""Metrics: a line that was appended is there, whatever happened to the process or to the disk."""

import math
import signal
import subprocess
import sys
import textwrap
from collections import Counter, deque
from pathlib import Path

import pytest

from astune.runs import MetricsLog, balance_metrics, read_metrics, total_balance
from astune.schema import RunStoreError, TokenBalance


def test_lines_come_back_in_order_with_numbers_that_json_cannot_hold(tmp_path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.append(0, "validation", {"success": 0.25})
        log.append(1, "train", {"loss": math.nan, "ratio": math.inf, "low": -math.inf})
        first, second = log.read()
    assert (first.step, first.kind, first.metrics) == (0, "validation", {"success": 0.25})
    assert math.isnan(second.metrics["loss"])
    assert second.metrics["ratio"] == -second.metrics["low"] == math.inf
    assert second.elapsed_s >= first.elapsed_s


def test_a_torn_last_line_is_ignored_and_cut_off_before_the_next(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(1, "train", {"loss": 1.0})
    whole = path.read_bytes()
    for torn in (b'{"step": 2, "ki', whole[:-1], b"\x00\x00"):
        path.write_bytes(whole + torn)
        assert [line.step for line in read_metrics(path)] == [1]
        with MetricsLog(path) as log:
            log.append(2, "train", {"loss": 2.0})
        assert [line.step for line in read_metrics(path)] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n')
    with pytest.raises(RunStoreError, match=r"metrics\.jsonl, line 1"):
        read_metrics(path)


def test_rewinding_drops_later_steps_and_goes_on_after_them(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2, 3):
            log.append(step, "train", {"loss": 1.0})
        log.append(2, "validation", {"success": 0.5})
        assert log.rewind(2) == 1
        log.append(3, "train", {"loss": 9.0})
    assert [(line.step, line.kind) for line in read_metrics(path)] == [
        (1, "train"),
        (2, "train"),
        (2, "validation"),
        (3, "train"),
    ]


def test_the_working_time_of_a_run_goes_on_across_a_resume(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1,"kind":"train","time":5.0,"elapsed_s":100.0,"metrics":{}}\n')
    with MetricsLog(path) as log:
        assert 100 <= log.append(2, "train", {}).elapsed_s < 110


def test_a_full_disk_is_named_and_leaves_the_lines_before_it(small_disk) -> None:
    log = MetricsLog(small_disk / "metrics.jsonl")
    metrics = {f"metric {index}": 1 / 3 for index in range(100)}
    appended = (log.append(step, "train", metrics).step for step in range(100_000))
    with pytest.raises(RunStoreError, match=r"the disk is full.*--resume"):
        deque(appended, maxlen=0)
    assert len(read_metrics(small_disk / "metrics.jsonl")) > 100
    assert small_disk.joinpath("metrics.jsonl").read_bytes().endswith(b"\n")
    log.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_was_removed_while_it_is_written_is_an_error(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(0, "train", {"a": 1.0})
        path.unlink()
        if replaced:
            path.write_text("")
        with pytest.raises(RunStoreError, match=r"metrics\.jsonl was removed or replaced"):
            log.append(1, "train", {"a": 1.0})


def test_lines_acknowledged_before_a_sigkill_are_on_disk(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = f"""
        from pathlib import Path
        from astune.runs import MetricsLog
        log = MetricsLog(Path({str(path)!r}))
        for step in range(10**6):
            log.append(step, "train", {{"loss": 1.0}})
            print(step, flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    process.wait()
    assert [line.step for line in read_metrics(path)][: acknowledged + 1] == list(range(acknowledged + 1))


def test_the_books_of_a_run_are_the_sum_of_its_steps(tmp_path) -> None:
    first = TokenBalance(10, 6, Counter({"not a training target": 1}), Counter({"no variance": 3}))
    second = TokenBalance(5, 5)
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for step, balance in enumerate((first, second)):
            log.append(step, "train", balance_metrics(balance))
        total = total_balance(log.read())
    assert total == first + second
    assert total.difference == 0
