"""How fast the log viewer lists 200 runs of 1,000 steps and 63 metrics, and lays ten of them over each other.

The second part of `make bench-viewer`. Times are taken in a real Chromium as in `bench_viewer.py`. The server's memory
is its resident set after everything; the first list is that of a server that has just begun, with the files in the
page cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.chromium import Chromium, chromium
from benchmarks.report import describe, machine, markdown_table, write_results
from benchmarks.viewer_many import LONG_STEPS, METRICS, RUNS, STEPS, written_long, written_runs
from benchmarks.viewer_reader import Times
from benchmarks.viewers import our_viewer

OVERLAID = 10
LIST_BAR_MS = 1000.0
OVERLAY_BAR_MS = 500.0
MEMORY_BAR_MB = 300.0
FIRST = "the list of runs, the first time after the server began"
LISTED = "the list of runs"
OVERLAY = "ten runs over each other, asked for the first time"
OVERLAY_AGAIN = "ten runs over each other, asked for again"
LONG = f"the curves of one run of {LONG_STEPS:,} steps, from the navigation on"
_LIST = f"document.querySelectorAll('.run-table tbody tr').length === {RUNS}"
_DRAWN = (
    "document.querySelectorAll('.chart').length > 5 && "
    f"document.querySelectorAll('[data-chart=reward] .values-line li').length > {OVERLAID} && "
    "[...document.querySelectorAll('[data-chart=reward] canvas')].every(canvas => canvas.height !== 150)"
)


def measure(browser: Chromium, folder: Path, repeats: int) -> tuple[Times, float]:
    """Milliseconds of each thing, and the server's memory in MB."""
    times: Times = {name: [] for name in (FIRST, LISTED, OVERLAY, OVERLAY_AGAIN)}
    memory = 0.0
    for _ in range(repeats):
        with our_viewer(folder) as url:
            for number in range(2):
                with browser.screen() as screen:
                    times[LISTED if number else FIRST].append(screen.opens(f"{url}#view=runs", _LIST))
                    for box in screen.page.locator(".run-table tbody input[type=checkbox]").all()[:OVERLAID]:
                        box.check()
                    button = screen.page.get_by_role("button", name=f"Curves of {OVERLAID} runs")
                    taken = screen.takes(partial(button.click), _DRAWN)
                    times[OVERLAY_AGAIN if number else OVERLAY].append(taken)
            memory = max(memory, _viewer_memory())
    return times, memory


def measure_long(browser: Chromium, folder: Path, repeats: int) -> list[float]:
    """Milliseconds until a curve of that many points is drawn, by a server that has read it."""
    drawn = "document.querySelector('[data-chart=reward] canvas')?.height > 150"
    with our_viewer(folder) as url:
        times: list[float] = []
        for _ in range(repeats + 1):
            with browser.screen() as screen:
                times.append(screen.opens(f"{url}#view=dashboard", drawn))
        return times[1:]


def _viewer_memory() -> float:
    """The resident set of the viewer that this process started, in MB."""
    children = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    [viewer] = [each for each in children if "view" in each.cmdline() and "astune" in each.cmdline()]
    return viewer.memory_info().rss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="keeps the runs that are looked at, some 500 MB",
    )
    arguments = parser.parse_args()
    folder = written_runs(arguments.folder / "astune-bench-viewer-runs")
    with chromium() as browser:
        facts = machine() | {"chromium": browser.version}
        print(describe(facts), flush=True)
        times, memory = measure(browser, folder, arguments.repeats)
        long = written_long(arguments.folder / "astune-bench-viewer-long")
        times[LONG] = measure_long(browser, long, arguments.repeats)
    facts["load_average_at_the_end"] = round(os.getloadavg()[0], 2)
    rows = [(name, f"{median(values):.0f}", f"{max(values):.0f}") for name, values in times.items()]
    table = markdown_table((f"{RUNS} runs of {STEPS:,} steps and {METRICS} metrics", "median, ms", "slowest, ms"), rows)
    text = f"# The log viewer with many runs\n\n{describe(facts)}\n\n{table}\n\nThe server held {memory:.0f} MB.\n"
    write_results("viewer_runs", {"machine": facts, "ms": times, "server_mb": round(memory)}, text)
    print(f"\n{table}\n\nthe server held {memory:.0f} MB")
    bars = [
        ("ms until the runs are painted", median(times[LISTED]), LIST_BAR_MS),
        ("ms until ten runs are overlaid", median(times[OVERLAY]), OVERLAY_BAR_MS),
        ("MB of the server", memory, MEMORY_BAR_MB),
    ]
    missed = [f"{what}: {value:.0f}, {bar:.0f} is the bar" for what, value, bar in bars if value >= bar]
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
