"""What it costs to have AppWorld behind a service: `make bench-appworld`.

AppWorld's own engine as a program of its own, one world after the other, and behind our server, where each world has a
confined process of its own. Both run the same code on the same small world, made from the installed package; the
databases of the official tasks are larger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from astune.env_service import open_environment
from astune.schema import Task
from benchmarks.bench_env_service import Seconds, timed
from benchmarks.report import describe, machine, markdown_table, write_results

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-appworld" / "bin" / "python"
MAKE_WORLD = ROOT / "tests" / "env_service" / "make_small_appworld.py"
SERVER = ROOT / "astune" / "env_service" / "appworld_server.py"
TASK = "groceries_1"
CODES = ("print(6 * 7)", "print(apis.supervisor.show_profile()['email'])") * 5
"""Code alone, and with one call of an app."""
RATIO_BAR = 2.0
"""A step may take so many times what it takes AppWorld alone."""

ALONE = f"""
import json, sys, time

clock = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)  # AppWorld freezes the others
began = clock()
from appworld import AppWorld
seconds = {{"open": [], "step": [], "evaluate": []}}
for _ in range(6):
    start = clock()
    world = AppWorld({TASK!r})
    seconds["open"].append(clock() - start)
    if len(seconds["open"]) == 1:
        seconds["first"] = [clock() - began]
    for code in {CODES!r}:
        start = clock()
        world.execute(code)
        seconds["step"].append(clock() - start)
    start = clock()
    world.evaluate(suppress_errors=True)
    seconds["evaluate"].append(clock() - start)
    world.close()
print(json.dumps({{**seconds, "open": seconds["open"][1:]}}))
"""


class Server:
    """AppWorld's service with so many places."""

    def __init__(self, root: Path, places: int) -> None:
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [PYTHON, SERVER, "--port", "0", "--max-instances", str(places)],
            env={**os.environ, "APPWORLD_PATH": str(root), "PYTHONPATH": ""},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stderr is not None
        lines: list[str] = []
        while not (found := re.search(r"on (http://\S+), up to", line := self.process.stderr.readline())):
            lines.append(line)
            assert line, "".join(lines)
        self.url = found[1]
        self.starts_s = time.perf_counter() - start

    def memory_mb(self) -> float:
        """Of all processes together, what they share counted once (PSS)."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        return sum(process.memory_full_info().pss for process in processes) / 2**20

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def alone(root: Path, temporary: Path) -> Seconds:
    """AppWorld without us; what it writes goes to a root of its own."""
    (temporary / "data").symlink_to(root / "data")
    places = {"APPWORLD_ROOT": str(temporary), "APPWORLD_CACHE": str(temporary), "IPYTHONDIR": str(temporary)}
    done = subprocess.run(
        [PYTHON, "-c", ALONE],
        env={**os.environ, **places},
        cwd=temporary,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


async def behind(server: Server, at_once: int, episodes: int) -> tuple[Seconds, float, float]:
    """Seconds of each call; of all steps, with `at_once` episodes in lockstep; and memory in MB at its most."""
    task = Task(TASK, main_query=TASK, env_type="appworld", metadata={"env_url": server.url})
    seconds: Seconds = {}
    stepping_s, memory = 0.0, 0.0
    for _ in range(episodes // at_once):
        handles = [open_environment("appworld", task, seed=number) for number in range(at_once)]
        opened = [handle for handle in handles if handle is not None]
        await asyncio.gather(*(timed(seconds, "open", handle.create()) for handle in opened))
        start = time.perf_counter()
        for code in CODES:
            action = {"role": "assistant", "content": f"```python\n{code}\n```"}
            await asyncio.gather(*(timed(seconds, "step", handle.step(action)) for handle in opened))
        stepping_s += time.perf_counter() - start
        memory = max(memory, server.memory_mb())
        await asyncio.gather(*(timed(seconds, "evaluate", handle.evaluate()) for handle in opened))
        await asyncio.gather(*(handle.release() for handle in opened))
    return seconds, stepping_s, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--episodes", type=int, default=32)
    arguments = parser.parse_args()
    if not PYTHON.is_file():
        raise SystemExit("there is no .venv-appworld; make it with: make appworld")
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="bench-appworld-") as folder:
        root, own = Path(folder, "root"), Path(folder, "alone")
        root.mkdir()
        own.mkdir()
        start = time.perf_counter()
        subprocess.run([PYTHON, MAKE_WORLD, root], check=True, stdout=subprocess.DEVNULL)
        results: dict[str, Any] = {"machine": facts, "small_world_made_s": time.perf_counter() - start}
        peer = alone(root, own)
        ms = {name: 1000 * median(values) for name, values in peer.items()}
        rows: list[list[object]] = [["AppWorld alone", *row_of(ms), f"{1000 / ms['step']:.0f}", ""]]
        results["alone"] = ms
        for at_once in arguments.at_once:
            server = Server(root, at_once)
            try:
                seconds, stepping_s, memory = asyncio.run(behind(server, at_once, max(at_once, arguments.episodes)))
            finally:
                server.end()
            ms = {name: 1000 * median(values) for name, values in seconds.items()}
            per_second = len(seconds["step"]) / stepping_s
            found = {"ms": ms, "steps_per_s": per_second, "memory_mb": memory, "server_starts_s": server.starts_s}
            results[str(at_once)] = {**found, "slowest_open_ms": 1000 * max(seconds["open"])}
            rows.append([f"service, {at_once} at once", *row_of(ms), f"{per_second:.0f}", f"{memory:.0f}"])
    table = markdown_table(["", "open, ms", "step, ms", "evaluate, ms", "steps/s", "memory, MB"], rows)
    first = results[str(arguments.at_once[0])]
    ratio = first["ms"]["step"] / results["alone"]["step"]
    words = (
        f"The server is ready after {first['server_starts_s']:.1f} s, AppWorld's first world alone is open after "
        f"{results['alone']['first'] / 1000:.1f} s. A step takes {ratio:.2f} times what it takes AppWorld alone."
    )
    write_results("appworld", results, f"# AppWorld behind a service\n\n{describe(facts)}\n\n{table}\n\n{words}\n")
    sys.stdout.write(f"\n{table}\n\n{words}\n")
    return 1 if ratio > RATIO_BAR else 0


def row_of(ms: dict[str, float]) -> list[str]:
    return [f"{ms[name]:.0f}" for name in ("open", "step", "evaluate")]


if __name__ == "__main__":
    sys.exit(main())
