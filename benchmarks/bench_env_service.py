"""What it costs to have an environment behind a service: `make bench-env-service`.

The calculator, in this process and behind a server on this machine; one episode is create, two steps, evaluate and
release. Beside a step, in the same run: `GET /healthz` through the same client, which is what HTTP itself costs. First
episodes need processes that were not started yet; the second round finds them waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from astune.env_service import open_environment
from astune.environments.calculator import Calculator
from astune.schema import Task
from benchmarks.report import describe, machine, markdown_table, write_results

ACTIONS = ("<calc>10 + 10</calc>", r"\boxed{20}")
RATIO_BAR = 5.0
"""A step may take so many times what an empty answer takes."""

Seconds = dict[str, list[float]]


class Server:
    """A service with so many places, and what it costs to have it."""

    def __init__(self, places: int) -> None:
        start = time.perf_counter()
        command = [sys.executable, "-m", "astune.env_service", "--env", "calculator", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--max-instances", str(places)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self.process.stderr is not None
        while not (found := re.search(r"on (http://\S+), up to", line := self.process.stderr.readline())):
            assert line, "the server ended"
        self.url = found[1]
        httpx.get(f"{self.url}/healthz", trust_env=False)
        self.starts_s = time.perf_counter() - start

    def memory_mb(self) -> list[float]:
        """Of each of its processes: memory that is its own, and its part of what is shared (PSS)."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        rollups = [Path(f"/proc/{child}/smaps_rollup").read_text() for child in children]
        return [int(re.findall(r"^Pss: +(\d+) kB", rollup, re.M)[0]) / 1024 for rollup in rollups]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)


async def episode(task: Task, seconds: Seconds) -> None:
    handle = open_environment("calculator", task, seed=0)
    assert handle is not None
    await timed(seconds, "create", handle.create())
    for action in ACTIONS:
        await timed(seconds, "step", handle.step({"role": "assistant", "content": action}))
    assert await handle.evaluate() == 1.0
    await timed(seconds, "release", handle.release())


async def timed(seconds: Seconds, name: str, work: Any) -> None:
    start = time.perf_counter()
    await work
    seconds.setdefault(name, []).append(time.perf_counter() - start)


async def round_of(url: str | None, at_once: int, episodes: int) -> tuple[Seconds, float]:
    """Seconds of each call, and of the whole round for an episode."""
    [task_id, *_] = Calculator.get_query_list("train", {})
    task = Task(task_id=task_id, main_query=task_id, env_type="calculator", metadata={"env_url": url} if url else {})
    seconds: Seconds = {}
    waiting = iter(range(episodes))

    async def work() -> None:
        for _ in waiting:
            await episode(task, seconds)

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return seconds, (time.perf_counter() - start) / episodes


async def empty_answer_s(url: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as client:
        seconds: Seconds = {}
        for _ in range(300):
            await timed(seconds, "healthz", client.get(f"{url}/healthz"))
    return median(seconds["healthz"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--episodes", type=int, default=320)
    arguments = parser.parse_args()
    facts = machine()
    rows: list[list[object]] = []
    results: dict[str, Any] = {"machine": facts}
    for at_once in arguments.at_once:
        server = Server(at_once)
        try:
            first, _ = asyncio.run(round_of(server.url, at_once, at_once))
            seconds, per_episode = asyncio.run(round_of(server.url, at_once, arguments.episodes))
            empty = asyncio.run(empty_answer_s(server.url))
            memory = server.memory_mb()
        finally:
            server.end()
        _, embedded = asyncio.run(round_of(None, at_once, arguments.episodes))
        ms = {name: 1000 * median(values) for name, values in seconds.items()}
        results[str(at_once)] = {
            "server_starts_s": server.starts_s,
            "first_create_ms": 1000 * max(first["create"]),
            "ms": ms,
            "empty_answer_ms": 1000 * empty,
            "episode_ms": 1000 * per_episode,
            "embedded_episode_ms": 1000 * embedded,
            "process_mb": median(memory),
        }
        found = results[str(at_once)]
        rows.append(
            [at_once, f"{found['first_create_ms']:.0f}"]
            + [f"{ms[name]:.1f}" for name in ("create", "step", "release")]
            + [f"{found['empty_answer_ms']:.1f}", f"{found['episode_ms']:.1f}", f"{found['embedded_episode_ms']:.2f}"]
        )
    heads = ["episodes at once", "slowest first create, ms", "create, ms", "step, ms", "release, ms"]
    heads += ["empty answer, ms", "whole episode, ms", "in this process, ms"]
    table = markdown_table(heads, rows)
    alone = results[str(arguments.at_once[0])]
    ratio = alone["ms"]["step"] / alone["empty_answer_ms"]
    words = (
        f"The server is ready after {alone['server_starts_s']:.1f} s; a process takes {alone['process_mb']:.0f} MB. "
        f"A step takes {ratio:.1f} times what an empty answer takes."
    )
    write_results(
        "env_service", results, f"# An environment behind a service\n\n{describe(facts)}\n\n{table}\n\n{words}\n"
    )
    sys.stdout.write(f"\n{table}\n\n{words}\n")
    return 1 if ratio > RATIO_BAR else 0


if __name__ == "__main__":
    sys.exit(main())
