"""What every benchmark says of its measurement: the machine, the versions, and files under `results/`.

It measures nothing itself.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from astune.runs.interval import wilson_interval

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> dict[str, Any]:
    """What a figure depends on beside the code; `load_average` tells whether the machine was idle at the start."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "priority": _priority(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def describe(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def success_rate(successes: float, n: float) -> str:
    """A rate with its counts and its 95 % interval."""
    low, high = wilson_interval(successes, n)
    return f"{successes / n:.2f} ({successes:.0f} of {n:.0f}, {low:.2f} to {high:.2f})"


def write_results(name: str, data: dict[str, Any], markdown: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(markdown.rstrip() + "\n")


def _priority() -> str:
    """Return `real-time` where others on the machine wait for this process, as under `chrt --rr 5`."""
    if not hasattr(os, "sched_getscheduler"):
        return "normal"
    return "real-time" if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR) else "normal"


def _commit() -> str:
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return asked.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
