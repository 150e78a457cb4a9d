"""`--backbone=debug`: each episode printed as it ends, then all of them in a table."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from astune.cli._episode_text import draw_episode, unit_of
from astune.cli._report import visible
from astune.cli._traceback import users_traceback
from astune.runs import RunDirectory
from astune.schema import AstuneError, Episode, Split, Task

if TYPE_CHECKING:
    from astune.backbone.base import RunObserver
    from astune.cli._beside import Ready


def debug_episodes(
    work: Callable[[RunDirectory, RunObserver], Coroutine[Any, Any, None]],
    ready: Ready,
    recorded: AbstractContextManager[RunDirectory],
    console: Console,
    show: Callable[[Path, str], None] = lambda _path, _episode_id: None,
) -> None:
    """Run the episodes and print them.

    Args:
        work: runs them.
        show: is called at the end with the run's folder and its first episode, also where every episode failed.

    Raises:
        AstuneError: every one of them ended in an error.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    narrator = Narrator(console)
    with ExitStack() as in_the_end, recorded as run, told_tracebacks(console):
        say(f"debug run {run.path}")

        ready.run(work(run, narrator))
        episodes = narrator.episodes
        in_the_end.callback(show, run.path, episodes[0].episode_id)
        in_the_end.callback(_sum_up, episodes, narrator, console)
        if all(episode.status == "error" for episode in episodes):
            raise AstuneError("every episode ended in an error", hint="what each one failed with stands above")


def _sum_up(episodes: Sequence[Episode], narrator: Narrator, console: Console) -> None:
    console.print(episodes_table(episodes))
    if any(unit_of(episode) == "characters" for episode in episodes):
        console.print("read and sampled are in characters", highlight=False)
    if narrator.first_answer_s is not None:
        console.print(f"first answer {narrator.first_answer_s:.2f} s after the start", highlight=False)


class Narrator:
    """Prints what happens to episodes; a `RunObserver`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._asking: set[str] = set()
        self._ended: dict[str, Episode | None] = {}
        self.first_answer_s: float | None = None
        """Seconds from the start of the process to the first answer of the model."""

    @property
    def episodes(self) -> list[Episode]:
        """Those that have ended, in the order in which they began."""
        return [episode for episode in self._ended.values() if episode is not None]

    def on_started(self, episode_id: str, task: Task) -> None:
        self._ended[episode_id] = None
        self._console.print(Text(f"episode {visible(episode_id)} begins", style="dim"), soft_wrap=True)

    def on_waits_for(self, episode_id: str, what: str) -> None:
        if what == "model":
            self._asking.add(episode_id)
        elif episode_id in self._asking and self.first_answer_s is None:
            self.first_answer_s = process_age_s()

    def on_finished(self, episode: Episode) -> None:
        self._ended[episode.episode_id] = episode
        self._console.print(draw_episode(episode))

    def on_attempt_failed(self, episode: Episode) -> None:
        self.on_finished(episode)

    def on_phase(self, phase: str) -> None: ...

    def on_record(self, step: int, split: Split, metrics: dict[str, float]) -> None: ...

    def on_note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def episodes_table(episodes: Sequence[Episode]) -> Table:
    """A line an episode; where the terminal is narrow, the tasks' ids alone are cut."""
    rows = [_cells_of(episode) for episode in episodes]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("task", min_width=8)
    for name in rows[0] if rows else ():
        width = max(len(name), *(len(row[name]) for row in rows))
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True, min_width=width)
    for episode, row in zip(episodes, rows, strict=True):
        table.add_row(Text(visible(episode.task.task_id), no_wrap=True, overflow="ellipsis"), *row.values())
    return table


def _cells_of(episode: Episode) -> dict[str, str]:
    nodes = episode.forest.nodes
    return {
        "status": episode.status,
        "reward": "-" if episode.reward is None else f"{episode.reward.raw_reward:g}",
        "calls": str(sum(node.sampled for node in nodes)),
        "read": f"{sum(len(node.prompt_delta) for node in nodes):,}",
        "sampled": f"{episode.forest.sampled_tokens():,}",
        "timelines": str(len(episode.timelines)),
        "forks": str(sum(node.fork_cause is not None for node in nodes)),
        "seconds": f"{episode.timings.get('total', 0.0):.1f}",
    }


class _Tracebacks(logging.Handler):
    """Prints failures without wrapping, or the marks below a line would stand elsewhere."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        told = users_traceback(failure) if failure is not None else record.getMessage()
        if told:
            self._console.print(Text(told), soft_wrap=True)


@contextmanager
def told_tracebacks(console: Console) -> Iterator[None]:
    """Print where in the reader's code an episode failed."""
    log = logging.getLogger("astune.rollout")
    level, handler = log.level, _Tracebacks(console)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def process_age_s() -> float:
    """Seconds since this process was started, its interpreter's own start included."""
    if sys.platform != "linux":
        return time.time() - psutil.Process().create_time()
    # There psutil adds the ticks at the process's start to a time of boot in whole seconds.
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
