"""Many episodes in one process with a scripted engine: memory, open files and the slowest episodes stay as they were.

`make soak N=100000`. Episodes go through the pool, the calculator, its judge and a run's store, as in training.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from chaos_report import write_section
from rollout_stage import build_stage

from astune import AstuneProxy, Task, Workflow
from astune.config import AstuneConfig
from astune.renderers import load_renderer
from astune.runs import EpisodeStore, RunDirectory
from astune.schema import Episode
from astune.task_judge import EnvServiceJudge

pytestmark = pytest.mark.e2e
N = int(os.environ.get("SOAK_N", "100000"))
REPORT = os.environ.get("CHAOS_REPORT")
PARTS, WARM_UP = 10, 2
"""The run in tenths, of which the first two fill caches."""
AT_ONCE = 64
STEPS = math.ceil(N / PARTS / AT_ONCE)
"""Of each part."""
_ENOUGH = 1.05
_FILES = 4


class Calculates(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = list(proxy.init_messages)
        for action in ("<calc>1+1</calc>", r"\boxed{2}"):
            reply = await proxy.achat(messages)
            observation, _, ended, _ = await proxy.agym_step({"role": "assistant", "content": action})
            if ended:
                return
            messages += [reply, {"role": "user", "content": observation}]


class Stored:
    """An observer that writes episodes to a run's store, and remembers how long each took."""

    def __init__(self, writer: EpisodeStore) -> None:
        self._writer = writer
        self._began: dict[str, float] = {}
        self.seconds: list[float] = []

    def on_started(self, episode_id: str, task: Task) -> None:
        self._began[episode_id] = time.monotonic()

    def on_waits_for(self, episode_id: str, what: str) -> None: ...

    def on_finished(self, episode: Episode) -> None:
        self.seconds.append(time.monotonic() - self._began.pop(episode.episode_id))
        self._writer.append(episode)

    def on_attempt_failed(self, episode: Episode) -> None:
        raise AssertionError(episode.error)


@dataclass
class Part:
    memory: int
    files: int
    p99_s: float
    """In seconds of this process's own computing: other processes of the machine make an episode longer, not this."""


def test_memory_files_and_the_slowest_episodes_stay_as_they_were(smol_folder: Path, tmp_path: Path) -> None:
    parts, took_s = asyncio.run(_soaked(smol_folder, tmp_path))
    half = (PARTS + WARM_UP) // 2
    early, late = parts[WARM_UP:half], parts[half:]
    memory, p99 = (
        float(np.median([getattr(part, name) for part in late]) / np.median([getattr(part, name) for part in early]))
        for name in ("memory", "p99_s")
    )
    files = max(part.files for part in late) - max(part.files for part in early)
    if REPORT:
        played = PARTS * STEPS * AT_ONCE
        line = (
            f"{played:,} episodes of two turns in {took_s / 60:.0f} minutes, {played / took_s:.0f} a second: "
            f"after the first {100 * WARM_UP // PARTS} % the second half held {memory:.3f} times the memory of the "
            f"first ({parts[-1].memory >> 20} MiB), {files:+d} files, and its p99, in seconds of computing, was "
            f"{p99:.2f} times as long."
        )
        write_section(Path(REPORT), "make soak", [line])
    assert memory < _ENOUGH
    assert files <= _FILES
    assert p99 < _ENOUGH or max(part.p99_s for part in late) < max(part.p99_s for part in early)


async def _soaked(model: Path, folder: Path) -> tuple[list[Part], float]:
    renderer = load_renderer(model)
    process, parts, began = psutil.Process(), list[Part](), time.monotonic()
    tasks = [
        Task(task_id=f"{n}", main_query=f"{n} + 1?", env_type="calculator", metadata={"answer": "2"}) for n in range(8)
    ]
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}]
    ids = renderer.answer_ids(asked, [])  # type: ignore[attr-defined]
    with RunDirectory.create(folder, "soak") as run, run.open_episodes() as writer:
        observer = Stored(writer)
        judge = EnvServiceJudge(AstuneConfig())
        stage = build_stage(renderer, Calculates, replies=lambda *_: ids, judge=judge, observer=observer)
        for part in range(PARTS):
            observer.seconds.clear()
            wall_s, own_s = time.monotonic(), time.process_time()
            for step in range(STEPS):
                groups = await stage.play(tasks, num_repeat=AT_ONCE // len(tasks), step=part * 10**6 + step)
                assert not any(group.dropped for group in groups)
            del groups
            gc.collect()
            share = (time.process_time() - own_s) / (time.monotonic() - wall_s)
            p99_s = float(np.quantile(observer.seconds, 0.99)) * share
            parts.append(Part(process.memory_info().rss, process.num_fds(), p99_s))
    return parts, time.monotonic() - began
