"""Runs that meet a fault in a tenth of their steps, and where their time went.

Each start is a process of its own that imports everything anew, as a user's is. The model is tiny and the world slow:
a step takes what steps of agents take, and little of it is computing, which others of this machine could delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from chaos_stage import ROOT, Slot, begun, write_experiment
from faulty_wire import FAULTS
from plans import JUDGE, PROCESSES, Plan

from astune.runs import MetricsLine, RunDirectory

KINDS = {
    "processes": PROCESSES,
    "wire": FAULTS,
    "agent": ("raises", "raises what nobody expects", "hangs", "blocks", "exits", "exits at once"),
    "judge": JUDGE,
}
_MOST_STARTS = 20
_LOOKS_S = 0.1


@dataclass(frozen=True)
class Fault:
    where: str
    what: str
    after: float
    """For one of processes: the part of a step's time after which it comes."""


def faults_of(seed: int, steps: int, *, kills_alone: bool) -> dict[int, Fault]:
    """A fault in a tenth of the steps, by step; each boundary in turn."""
    rng = random.Random(seed)
    steps_hit = sorted(rng.sample(range(2, steps + 1), steps // 10))
    if kills_alone:
        return {step: Fault("processes", "kill run", rng.random()) for step in steps_hit}
    faults: dict[int, Fault] = {}
    for number, step in enumerate(steps_hit, start=seed):
        where = list(KINDS)[number % len(KINDS)]
        faults[step] = Fault(where, rng.choice(KINDS[where]), rng.random())
    return faults


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of one run, from its first start to its end; they add up to `all`."""

    all: float
    kept: float
    """Rolling out, training and publishing weights in steps that were kept, at the speed of those without a fault. What
    a step that was resumed within lacks of that was done before the kill."""
    excess: float
    """What steps with a fault took longer than those without one: waiting for deadlines, and episodes played again."""
    starting: float
    """From each start to the beginning of its first step."""
    saving: float
    """Between kept steps."""
    repeated: float
    """In steps that were lost, and in ending."""
    n_steps: int
    n_starts: int
    faults: tuple[Fault, ...]
    n_resumed: int = 0
    """Episodes that were kept of steps in which the run was killed."""

    @classmethod
    def of(
        cls,
        lines: Sequence[MetricsLine],
        starts: Sequence[tuple[float, float]],
        faults: dict[int, Fault],
        n_resumed: int = 0,
    ) -> TimeSpent:
        """Attribute the time of `starts`, from when to when each ran, by the lines of the kept steps."""
        seconds = {line.step: _seconds(line) for line in lines}
        usual = fmean(value for step, value in seconds.items() if step not in faults)
        excess = sum(max(0.0, seconds[step] - usual) for step in faults)
        kept = sum(seconds.values()) - excess
        starting = saving = repeated = unfinished = 0.0
        for begin, end in starts:
            own = [line for line in lines if begin < line.time <= end]
            if not own:
                repeated += end - begin
                continue
            resumed_s = seconds[own[0].step]
            starting += own[0].time - resumed_s - begin
            before_kill = min(unfinished, max(0.0, usual - resumed_s))
            kept, repeated = kept + before_kill, repeated - before_kill
            saving += sum(after.time - seconds[after.step] - before.time for before, after in pairwise(own))
            unfinished = end - own[-1].time
            repeated += unfinished
        total = kept + excess + starting + saving + repeated
        met = tuple(faults.values())
        return cls(total, kept, excess, starting, saving, repeated, len(lines), len(starts), met, n_resumed)


def _seconds(line: MetricsLine) -> float:
    return sum(line.metrics.get(f"time/{phase}_s", 0.0) for phase in ("rollout", "train", "sync"))


async def paced(
    slot: Slot, seed: int, steps: int, waits_s: float, repeats: int, at_once: int, *, kills_alone: bool
) -> TimeSpent:
    """Play one run to its end, with a fault in a tenth of its steps, started again whenever it ends too early.

    An episode takes at most twice `waits_s`, and its deadline is twice that.
    """
    folder = slot.folder / f"paced-{seed}"
    deadlines = {"call_timeout_s": 2 * waits_s, "episode_timeout_s": 4 * waits_s, "step_timeout_s": 40 * waits_s}
    plan, shape = Plan(seed, waits_s=waits_s), {"num_repeat": repeats, "max_env_worker": at_once}
    write_experiment(folder, plan, slot.url, slot.model, steps=steps, **deadlines, **shape)
    faults, starts = faults_of(seed, steps, kills_alone=kills_alone), list[tuple[float, float]]()
    waiting = dict(faults)
    run: RunDirectory | None = None
    while run is None or run.info().status != "finished":
        assert len(starts) < _MOST_STARTS, (folder / "log").read_text()[-3000:]
        words = ("--conf", "conf.yaml") if run is None else ("--resume", str(run.path))
        began = time.time()
        with (folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "astune", *words),
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "CHAOS_START": str(len(starts) + 1),
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        striking = asyncio.ensure_future(_strike(slot, folder, process.pid, waiting))
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            striking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await striking
        starts.append((began, time.time()))
        run = begun(folder / "launcher_record")
    assert not waiting, f"{waiting} did not come"
    left = [path.name for path in folder.glob("order-*")]
    assert not left, f"nobody met {left}"
    n_resumed = sum(map(int, re.findall(r"(?m)^keeping (\d+) finished episode", (folder / "log").read_text())))
    return TimeSpent.of([line for line in run.metrics() if line.kind == "train"], starts, faults, n_resumed)


async def _strike(slot: Slot, folder: Path, pid: int, waiting: dict[int, Fault]) -> None:
    """Let each fault come in its step, or at once in the next one where that one ended earlier than usual."""
    step, began, usual_s = 0, time.monotonic(), 0.0
    while True:
        run = begun(folder / "launcher_record")
        lines = [] if run is None else [line for line in run.metrics() if line.kind == "train"]
        now = 1 + (lines[-1].step if lines else 0)
        if now != step:
            step, began = now, time.monotonic()
            usual_s = median(_seconds(line) for line in lines) if lines else 0.0
            slot.wire.go_wrong((), 0.0, 0)
        due = min((planned for planned in waiting if planned <= step), default=0)
        fault = waiting.get(due)
        late_enough = fault is not None and (due < step or time.monotonic() > began + fault.after * usual_s)
        if fault is not None and (fault.where != "processes" or late_enough):
            del waiting[due]
            match fault.where:
                case "processes":
                    await slot.strike(fault.what, pid)
                case "wire":
                    slot.wire.go_wrong((fault.what,), 0.25, step)
                case _:
                    (folder / f"order-{fault.where}").write_text(fault.what)
        await asyncio.sleep(_LOOKS_S)
