"""How fast the log viewer's page is with 10,000 episodes, and beside beast-logger's: `make bench-viewer`.

A real Chromium shows the pages: a time runs from what the reader does until the frame that has the answer
(`chromium.py`). The runs are made once and kept (`viewer_runs.py`). By turns with ours, on the same 2,000 episodes,
beast-logger 0.1.8 shows its page; `viewers.py` says how they are logged for it. The next page of entries is there the
next of its pages of 15; here it is what the key PageDown shows, some 10 rows, to the last one in the pane. Both are
looked at for half a second before they are turned; our page asks meanwhile for the rows beside those that it shows.
The bar is ten times as fast as theirs, or the very next frame, for nothing is faster (docs/en/decisions.md).
Entries far away were asked for by neither: here a place that the scrollbar is dragged to, there the page five pages on.
Recording is what a trainer's thread spends that gives the store steps of 64 episodes at once, and then their advantages
and its log-probabilities.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astune.engine.model_files import resolve_model
from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.token_bytes import vocabulary_of
from astune.runs import EpisodeStore
from astune.schema import Vocabulary
from benchmarks import beast_logger_peer, viewer_runs, viewers
from benchmarks.chromium import chromium
from benchmarks.report import describe, machine, markdown_table, write_results
from benchmarks.viewer_reader import Times, compare, measure_ours
from benchmarks.viewer_runs import Talk, episodes, trainer_logprobs, written
from benchmarks.viewers import peer_log

KEPT = "astune-bench-viewer"
STORED = 10_000
COMPARED = 2000
STEP = 64
RECORDED_STEPS = 10
PAGE_RATIO_BAR = 10.0
OPEN_BAR_MS = 300.0
RECORD_BAR_MS = 1.0
COMPARISONS = {
    "open": "opening the list, from its address",
    "page": "the next page of entries, after half a second at the one before",
    "far": "entries far away, not asked for yet",
    "tokens": "opening an entry: its first tokens",
}


def kept(folder: Path) -> Path:
    """Where what is looked at is kept; what other versions of these files made is thrown away."""
    sources = [Path(str(module.__file__)).read_bytes() for module in (viewer_runs, viewers, beast_logger_peer)]
    place = folder / f"{KEPT}-{hashlib.sha256(b''.join(sources)).hexdigest()[:12]}"
    for other in folder.glob(f"{KEPT}-*"):
        if other != place:
            shutil.rmtree(other)
    return place


def measure_recording(vocabulary: Vocabulary, steps: int) -> dict[str, float]:
    """Milliseconds an episode in the thread that records, and until it is on disk."""
    made = list(itertools.islice(episodes(10 * STEP * steps, Talk(vocabulary, seed=1)), STEP * steps))
    calls: list[float] = []
    on_disk: list[float] = []
    cpu_s = 0.0
    with tempfile.TemporaryDirectory() as folder, EpisodeStore(Path(folder) / "episodes.sqlite") as store:
        for number in range(steps):
            step = made[number * STEP : (number + 1) * STEP]
            notes = [partial(annotate, store, episode.episode_id, trainer_logprobs(episode)) for episode in step]
            began, cpu_began = time.perf_counter(), time.thread_time()
            appending = [seconds(partial(store.append, episode)) for episode in step]
            store.flush()
            on_disk.append(time.perf_counter() - began)
            calls += [spent + seconds(note) for spent, note in zip(appending, notes, strict=True)]
            cpu_s += time.thread_time() - cpu_began
            store.flush()
    ordered = sorted(1000 * spent for spent in calls)
    return {
        "median_ms": median(ordered),
        "mean_ms": sum(ordered) / len(ordered),
        "mean_cpu_ms": 1000 * cpu_s / len(ordered),
        "p99_ms": ordered[len(ordered) * 99 // 100],
        "step_on_disk_ms": 1000 * median(on_disk),
    }


def annotate(store: EpisodeStore, episode_id: str, logprobs: NDArray[np.float32]) -> None:
    """What is known of an episode once it was trained."""
    store.annotate(episode_id, advantages=[0.5])
    store.annotate_logprobs(episode_id, logprobs)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="keeps the runs and the log that are looked at, some 600 MB",
    )
    arguments = parser.parse_args()

    place = kept(arguments.folder)
    vocabulary = vocabulary_of(ModelTokenizer.load(resolve_model("builtin:smollm2-135m")))
    compared = written(place / f"{COMPARED}", COMPARED, vocabulary)
    log = peer_log(compared, place / "beast-logger")
    stored = written(place / f"{STORED}", STORED, vocabulary)
    with chromium() as browser:
        facts = machine() | {"chromium": browser.version, "beast_logger_log_mb": round(log.stat().st_size / 1e6)}
        print(describe(facts), flush=True)
        recording = measure_recording(vocabulary, RECORDED_STEPS)
        ours, theirs = compare(browser, compared, log, arguments.repeats)
        times = measure_ours(browser, stored, Talk(vocabulary), arguments.repeats)
    facts["load_average_at_the_end"] = round(os.getloadavg()[0], 2)
    if not report(facts, times, ours, theirs, recording):
        raise SystemExit(1)


def report(facts: dict[str, Any], times: Times, ours: Times, theirs: Times, recording: dict[str, float]) -> bool:
    """Print and write what came; True where every bar is reached."""
    ratios = {name: median(theirs[name]) / median(ours[name]) for name in COMPARISONS}
    repeats = len(ours["open"])
    many = markdown_table(
        ("with 10,000 episodes", "median, ms", "slowest, ms"),
        [(name, f"{median(values):.0f}", f"{max(values):.0f}") for name, values in times.items()],
    )
    beside = markdown_table(
        ("with 2,000 episodes", "ASTuner, ms", "beast-logger, ms", "ratio"),
        [
            (words, f"{median(ours[name]):.0f}", f"{median(theirs[name]):.0f}", f"{ratios[name]:.1f}")
            for name, words in COMPARISONS.items()
        ],
    )
    first = sum(frames == 1 for frames in ours["page frames"])
    turned = (
        f"The next page of entries is there {ratios['page']:.1f} times as fast as beast-logger's, where "
        f"{PAGE_RATIO_BAR:.0f} is the bar; the frame after the key had it in {first} of {len(ours['page'])} times, "
        f"which is the other bar: of {median(ours['page']):.0f} ms, {median(ours['page waited']):.0f} are until that "
        "frame begins."
    )
    recorded = (
        f"Recording an episode of 3,000 tokens, with its advantage and the trainer's log-probabilities, takes "
        f"{recording['median_ms']:.2f} ms of its caller's thread (mean {recording['mean_ms']:.2f}, the slowest of "
        f"a hundred {recording['p99_ms']:.1f}; {recording['mean_cpu_ms']:.2f} ms of CPU time); "
        f"{STEP} of them are on disk after {recording['step_on_disk_ms']:.0f} ms."
    )
    text = f"""# The log viewer

{describe(facts)}

Medians of {repeats} repetitions in Chromium, from what the reader does until the main thread has drawn the frame that
has the answer; nothing is faster than the next frame. A search waits 250 ms for the typing to rest.

{many}

The same episodes in beast-logger, by turns in one run. Its next page has 15 entries; ours is what PageDown shows, some
10 rows, which were asked for ahead. Entries far away were asked for by neither page.

{beside}

{turned}

{recorded}
"""
    results = {
        "machine": facts,
        "ms": times,
        "compared_ms": {"astune": ours, "beast_logger": theirs},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "recording": {name: round(value, 3) for name, value in recording.items()},
    }
    write_results("viewer", results, text)
    print(f"\n{many}\n\n{beside}\n\n{turned}\n\n{recorded}\n")
    tokens_ms = median(times["opening an episode: its tokens"])
    missed = [
        f"{what}: {value:.2f}, {bar} is the bar"
        for what, value, bar, is_met in (
            (
                "a page against beast-logger's, and not in the next frame",
                ratios["page"],
                PAGE_RATIO_BAR,
                ratios["page"] >= PAGE_RATIO_BAR or median(ours["page frames"]) == 1,
            ),
            ("ms to open an episode", tokens_ms, OPEN_BAR_MS, tokens_ms < OPEN_BAR_MS),
            ("ms to record an episode", recording["median_ms"], RECORD_BAR_MS, recording["median_ms"] < RECORD_BAR_MS),
        )
        if not is_met
    ]
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return not missed


if __name__ == "__main__":
    main()
