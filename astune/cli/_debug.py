"""`--backbone=debug`: each episode printed as it ends, then all of them in a table."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from rich import box
from rich.table import Table
from rich.text import Text

from astune.app.beside import Ready
from astune.app.console import Console
from astune.app.debugging import Episodes, require_one_without_error, shown_tracebacks
from astune.app.execution import Job
from astune.app.interrupts import until_interrupted
from astune.cli._episode_text import draw_episode, unit_of
from astune.launcher.companion import LOGVIEW_PORT
from astune.schema import Episode, Task, visible
from astune.viewer.server import fragment_of


def debug_episodes(job: Job, console: Console, *, with_viewer: bool = False) -> None:
    """Run the episodes and print them. Raises AstuneError if every one of them ended in an error.

    Args:
        with_viewer: end with the log viewer on the first episode, also where every episode failed.
    """
    narrator = Narrator(console)
    with ExitStack() as in_the_end, job.recorded as run, shown_tracebacks(console):
        narrator.on_note(f"debug run {run.path}")
        job.work(run, narrator)
        episodes = narrator.episodes
        if with_viewer:
            in_the_end.callback(_keep_viewer, job.ready, console, run.path, episodes[0].episode_id)
        in_the_end.callback(_sum_up, episodes, narrator, console)
        require_one_without_error(episodes, console)


def _keep_viewer(ready: Ready, console: Console, run: Path, episode_id: str) -> None:
    """On a terminal, keep the viewer until Ctrl-C; elsewhere the last line is the command that opens the episode."""
    if not (console.is_terminal and sys.stdin.isatty()):
        console.say(f"astune view {shlex.quote(str(run))} --episode {shlex.quote(episode_id)}")
        return
    fragment = fragment_of(episode_id, f"{run.parent.name}/{run.name}")
    page = f"http://127.0.0.1:{LOGVIEW_PORT}/{fragment}"
    if "logview" not in ready.companions.names:  # one that ran before stays
        console.say(f"log viewer: {page}")
        return
    with suppress(KeyboardInterrupt):
        console.say(f"log viewer until Ctrl-C: {page}")
        ready.run(until_interrupted())


def _sum_up(episodes: Sequence[Episode], narrator: Narrator, console: Console) -> None:
    console.print(episodes_table(episodes))
    if any(unit_of(episode) == "characters" for episode in episodes):
        console.print("read and sampled are in characters", highlight=False)
    if narrator.first_answer_s is not None:
        console.print(f"first answer {narrator.first_answer_s:.2f} s after the start", highlight=False)


class Narrator(Episodes):
    """Prints each episode as it ends, whole."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._asking: set[str] = set()
        self.first_answer_s: float | None = None
        """Seconds from the start of the process to the first answer of the model."""

    def on_started(self, episode_id: str, task: Task) -> None:
        super().on_started(episode_id, task)
        self.console.say(f"episode {episode_id} begins", style="dim")

    def on_waits_for(self, episode_id: str, what: str) -> None:
        if what == "model":
            self._asking.add(episode_id)
        elif episode_id in self._asking and self.first_answer_s is None:
            self.first_answer_s = process_age_s()

    def show(self, episode: Episode) -> None:
        self.console.print(draw_episode(episode))


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


def process_age_s() -> float:
    """Seconds since this process was started, its interpreter's own start included."""
    if sys.platform != "linux":
        return time.time() - psutil.Process().create_time()
    # There psutil adds the ticks at the process's start to a time of boot in whole seconds.
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
