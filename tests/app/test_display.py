"""The live display: what it shows, that it fits, and that it costs nothing."""

import io
import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from astune.app.console import Console
from astune.app.display import LivePanel, duration, open_display, plain_line, sparkline
from astune.app.progress import Progress
from astune.config.schema import AstuneConfig
from astune.runs import RunDirectory, balance_metrics
from astune.schema import Episode, Forest, Task, TokenBalance

BALANCE = TokenBalance(1000, 700, Counter({"not a training target": 100}), Counter({"group has no variance": 200}))
METRICS = {
    "reward/mean": 0.5,
    "reward/success_rate": 0.25,
    "episodes/finished": 64.0,
    "episodes/failed_attempts": 1.0,
    "engine/tokens_per_s_in": 2310.0,
    "engine/tokens_per_s_out": 812.0,
    "train/logprob_diff_mean": 0.0432,
    "train/logprob_diff_p99": 0.221,
    "train/engine_kl": 0.00229,
    "time/rollout_s": 3.25,
    "time/train_s": 2.0,
} | balance_metrics(BALANCE)
TASK = Task(task_id="t", main_query="q")


def finished(episode_id: str) -> Episode:
    return Episode(episode_id, TASK, "train", 1, 0, 0, 0, Forest(), "success")


def console(width: int = 100, **options: object) -> Console:
    options = {"force_terminal": True, "color_system": None, "legacy_windows": False} | options
    return Console(width=width, file=io.StringIO(), **options)  # type: ignore[arg-type]


def drawn(progress: Progress, width: int = 100) -> str:
    on = console(width)
    on.print(LivePanel(progress, "calculator · [builtin:smollm2-135m] · local"))
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_panel_shows_the_step_rewards_episodes_rates_phases_and_the_balance() -> None:
    clock = Clock()
    progress = Progress(total_steps=15, episodes_of={"rollout": 64}, clock=clock)
    progress.on_record(0, "validation", METRICS | {"reward/mean": 0.02})
    progress.on_phase("rollout")
    clock.now = 6.0
    progress.on_phase("train")
    clock.now = 8.0
    progress.on_record(1, "train", METRICS)
    progress.on_phase("rollout")
    for name in "abc":
        progress.on_started(name, TASK)
    progress.on_waits_for("a", "model")
    progress.on_waits_for("b", "model")
    progress.on_finished(finished("c"))
    progress.on_attempt_failed(finished("b"))
    clock.now = 9.5
    shown = drawn(progress)
    for expected in (
        "calculator · [builtin:smollm2-135m] · local",
        "1/15  0:10 so far, about 2:13 left  rollout",
        "reward 0.50  success 0.25",
        "reward 0.02  success 0.25  after step 0",
        "1 running (1 model)  1 finished  1 failed  62 waiting",
        "2,310 in  812 out",
        "rollout 1.5  train 2.0",
        "0.043 mean  0.22 p99  KL 0.0023",
        "1,000 sampled = 700 trained + 100 masked (not a training target 100) + 200 dropped",
    ):
        assert expected in shown, shown
    assert "OFF BY" not in shown


def test_books_that_do_not_balance_are_shown() -> None:
    progress = Progress(total_steps=1)
    progress.on_record(1, "train", METRICS | {"balance/sampled": 1005.0})
    assert "OFF BY 5" in drawn(progress, 160)


@pytest.mark.parametrize("width", [10, 24, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width) -> None:
    progress = Progress(total_steps=100, episodes_of={"rollout": 64})
    assert max(map(len, drawn(progress, width).splitlines())) <= width
    for step in range(60):
        progress.on_record(step, "train", METRICS)
        progress.on_record(step, "validation", METRICS)
    progress.on_phase("a phase with a very long name that nobody has thought of")
    progress.on_started("x" * 300, TASK)
    progress.on_waits_for("x" * 300, "something with [brackets] " * 20)
    shown = drawn(progress, width)
    assert max(map(len, shown.splitlines())) <= width


def test_a_metric_that_is_missing_or_no_number_is_a_dash() -> None:
    progress = Progress(total_steps=3)
    progress.on_record(1, "train", {"reward/mean": math.nan})
    assert "reward -  success -" in drawn(progress)
    assert plain_line(progress, progress.train[0]).startswith("step 1/3 | reward - success -")


def test_without_a_terminal_each_step_is_one_plain_line(tmp_path) -> None:
    on = console(force_terminal=False)
    with RunDirectory.create(tmp_path, "calculator") as run, open_display(AstuneConfig(), run, console=on) as progress:
        progress.on_phase("validation")
        progress.on_record(0, "validation", METRICS)
        progress.on_phase("rollout")
        for index in range(50):
            progress.on_started(str(index), TASK)
        progress.on_record(1, "train", METRICS)
    assert isinstance(on.file, io.StringIO)
    first, held_out, step = on.file.getvalue().splitlines()
    assert first == f"run {run.path}: step 0 of 100"
    assert held_out.startswith("step 0/100 | held-out reward 0.50 success 0.25 | episodes 64 finished 1 failed")
    assert "tokens/s 2310 in 812 out | rollout 3.2 s train 2.0 s | balance 1,000 sampled = 700 trained" in step
    assert "\x1b" not in on.file.getvalue()


def test_a_resumed_run_shows_its_earlier_steps_and_says_them_no_second_time(tmp_path) -> None:
    on = console(force_terminal=False)
    with RunDirectory.create(tmp_path, "x") as run:
        with run.open_metrics() as metrics:
            for step in (1, 2, 3):
                metrics.append(step, "train", METRICS)
        run.checkpoints.save(2, model=lambda folder: None, state=lambda folder: None)
        with open_display(AstuneConfig(), run, console=on) as progress:
            assert (progress.step, progress.first_step, len(progress.train)) == (2, 2, 2)
            assert progress.eta_s is None
    assert isinstance(on.file, io.StringIO)
    assert len(on.file.getvalue().splitlines()) == 1


def test_a_run_that_is_resumed_after_its_last_step_names_the_setting_that_trains_on(tmp_path) -> None:
    on = console(force_terminal=False)
    config = AstuneConfig.model_validate({"trainer": {"total_steps": 2}})
    with RunDirectory.create(tmp_path, "x") as run:
        run.checkpoints.save(2, model=lambda folder: None, state=lambda folder: None)
        with open_display(config, run, console=on):
            pass
    assert isinstance(on.file, io.StringIO)
    assert on.file.getvalue().startswith("step 2 was the last one; --set trainer.total_steps=N trains up to step N\n")


def test_the_terminal_is_left_as_it_was_when_the_run_fails(tmp_path) -> None:
    on = console()

    def interrupted(run: RunDirectory) -> None:
        with open_display(AstuneConfig(), run, console=on) as progress:
            progress.on_record(1, "train", METRICS)
            raise KeyboardInterrupt

    with RunDirectory.create(tmp_path, "x") as run, pytest.raises(KeyboardInterrupt):
        interrupted(run)
    assert isinstance(on.file, io.StringIO)
    assert on.file.getvalue().count("\x1b[?25l") == on.file.getvalue().count("\x1b[?25h") == 1
    assert "1/100" in on.file.getvalue()


class Terminal(io.StringIO):
    """A terminal that notes when each frame was drawn, and by which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[float, threading.Thread]] = []
        self.drawn = threading.Condition()

    def write(self, text: str) -> int:
        written = super().write(text)
        if "episodes" in text:
            with self.drawn:
                self.frames.append((time.monotonic(), threading.current_thread()))
                self.drawn.notify_all()
        return written


def cpu_seconds(do: Callable[[], object], times: int) -> float:
    """Processor time of one call in this thread."""
    began = time.thread_time()
    for _ in range(times):
        do()
    return (time.thread_time() - began) / times


@pytest.mark.slow
def test_the_display_redraws_at_most_five_times_a_second_and_costs_little(tmp_path) -> None:
    terminal = Terminal()
    on = Console(width=100, file=terminal, force_terminal=True, color_system=None, legacy_windows=False)
    with RunDirectory.create(tmp_path, "x") as run, open_display(AstuneConfig(), run, console=on) as progress:
        call_s = cpu_seconds(lambda: progress.on_waits_for("episode", "model"), 1000)
        with terminal.drawn:
            assert terminal.drawn.wait_for(lambda: len(terminal.frames) >= 4, timeout=60)
        frames = [*terminal.frames]
    drawers = [thread for _, thread in frames]
    assert drawers[0] is threading.main_thread()  # as it opens; no call draws
    assert threading.main_thread() not in drawers[1:]
    assert min(after - before for (before, _), (after, _) in pairwise(frames)) >= 1 / 5
    frame_s = min(cpu_seconds(lambda: drawn(progress), 1) for _ in range(5))
    assert 100 * call_s + 5 * frame_s < 0.2  # of each second with 100 calls


def test_a_terminal_without_unicode_gets_a_curve_in_ascii() -> None:
    raw = io.BytesIO()
    on = Console(width=80, file=io.TextIOWrapper(raw, encoding="ascii"), force_terminal=True)
    progress = Progress(total_steps=3)
    progress.on_record(1, "train", METRICS)
    on.print(LivePanel(progress, "x"))
    on.file.flush()
    assert b"reward 0.50" in raw.getvalue()


def test_a_sparkline_averages_down_to_its_width_and_leaves_gaps() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"
    assert sparkline([0.0, math.nan, 1.0], 3) == "▁ █"
    assert sparkline([-1.0, 3.0], 2) == "▁█"
    assert sparkline([math.nan], 3) == sparkline([], 3) == sparkline([1.0], 0) == ""
    assert len(sparkline([0.1] * 997, 40)) == 40


def test_durations_read_like_a_clock() -> None:
    assert [duration(seconds) for seconds in (-1, 5, 65, 3723)] == ["0:00", "0:05", "1:05", "1:02:03"]


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines() -> None:
    program = """
        import tempfile
        from pathlib import Path
        from astune.app.display import open_display
        from astune.config.schema import AstuneConfig
        from astune.runs import RunDirectory
        with RunDirectory.create(Path(tempfile.mkdtemp()), "x") as run, open_display(AstuneConfig(), run) as progress:
            progress.on_record(1, "train", {"reward/mean": 1.0})
    """
    environment = os.environ | {"TERM": "dumb", "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=True
    )
    assert "step 1/100 | reward 1.00" in done.stdout
    assert "\x1b[?25l" not in done.stdout
