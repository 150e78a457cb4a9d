"""What isolation costs a call: `make bench-sandbox`.

`print(1)` in the sandbox, by each backend that this machine has, and by a plain `subprocess.run([python, "-c", code])`,
which isolates nothing, turn by turn in one process. A ratio is the median over the calls of the backend's time to that
of the plain subprocess beside it: below 1 the sandbox is the faster one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

from astune.sandbox import BACKENDS, Sandbox, SandboxConfig
from astune.schema import SandboxError
from benchmarks.report import describe, machine, markdown_table, write_results

CODE = "print(1)"
AT_ONCE = 32


def _plain() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    return 1000 * (time.perf_counter() - started)


async def _one(sandbox: Sandbox) -> float:
    started = time.perf_counter()
    result = await sandbox.run(CODE)
    if result.stdout != "1\n":
        raise SystemExit(f"{sandbox.backend}: {result}")
    return 1000 * (time.perf_counter() - started)


async def _measure(backend: str, calls: int) -> dict[str, Any]:
    async with Sandbox.open(SandboxConfig(allow_unsafe=True), backend=backend) as sandbox:
        pairs = [(await _one(sandbox), _plain()) for _ in range(calls)]
        started = time.perf_counter()
        await asyncio.gather(*(_one(sandbox) for _ in range(AT_ONCE)))
        at_once = AT_ONCE / (time.perf_counter() - started)
    return {
        "backend": backend,
        "ms": round(statistics.median(ours for ours, _ in pairs), 2),
        "least_ms": round(min(ours for ours, _ in pairs), 2),
        "plain_ms": round(statistics.median(plain for _, plain in pairs), 2),
        "calls_per_s_at_once": round(at_once),
        "ratio": round(statistics.median(ours / plain for ours, plain in pairs), 3),
    }


async def _measure_all(calls: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What each backend took, and why others are missing."""
    results: list[dict[str, Any]] = []
    missing: list[str] = []
    for backend in BACKENDS:
        try:
            results.append(await _measure(backend, calls))
        except SandboxError as cause:
            missing.append(cause.message)
    return results, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=50)
    calls = parser.parse_args().calls

    facts = machine()
    print(describe(facts))
    results, missing = asyncio.run(_measure_all(calls))
    head = ("backend", "ms a call", "least ms", "plain subprocess, ms", f"calls/s, {AT_ONCE} at once", "ratio")
    keys = ("backend", "ms", "least_ms", "plain_ms", "calls_per_s_at_once", "ratio")
    table = markdown_table(head, [tuple(result[key] for key in keys) for result in results])
    left_out = "".join(f"\nNot measured: {reason}.\n" for reason in missing)
    text = f"""# A call in the sandbox

{describe(facts)}

Medians of {calls} calls of `{CODE}`, each beside a plain `subprocess.run` of the same interpreter.

{table}
{left_out}"""
    write_results("sandbox", {"machine": facts, "results": results, "missing": missing}, text)
    print(f"\n{table}\n{left_out}")
    for result in results:
        print(f"{result['backend']}: {result['ratio']} of a plain subprocess's time")


if __name__ == "__main__":
    main()
