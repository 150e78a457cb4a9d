"""Recording many calls in one episode: `make bench-forest`.

Agents, one for two hundred calls, take turns; each call sends the agent's whole conversation, 200 messages on average,
and two in a hundred edit or drop something first. The real template and tokenizer of the small model turn the messages
into tokens, answers are made up. Timelines are made at the end. Beside it, the obvious way: keep every call's message
list, and find the call that a new one continues by comparing it with all of them. What agents do themselves, such as
copying their conversations, is not counted.

A power of the number of calls is fitted to the seconds by least squares; it is printed last. Below 5,000 calls the
agents' conversations stay in the processor's caches, and a call takes somewhat less.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from math import log
from statistics import linear_regression, median
from typing import Any

from benchmarks.report import describe, machine, markdown_table, write_results

MESSAGES_A_CALL = 200
EDITS = 0.02
SECONDS_BAR_CALLS = 10_000
SECONDS_BAR = 5.0
"""For so many calls."""
MOST_COMPARED = 20_000
"""Calls that are compared pairwise; more would take hours."""
EXPONENT_BAR = 1.1

Message = dict[str, Any]
Record = Callable[[str, list[Message]], Message]
"""(agent, messages) to the answer."""


def talk(calls: int, record: Record) -> float:
    """Agents in turn; an agent starts anew when its conversation has become twice the average length.

    Returns:
        the seconds spent in `record`.
    """
    seconds = 0.0
    rng = random.Random(0)
    agents = max(1, calls // MESSAGES_A_CALL)
    histories: list[list[Message]] = [[] for _ in range(agents)]
    for call in range(calls):
        history = histories[call % agents]
        if not history or len(history) > 2 * MESSAGES_A_CALL:
            history[:] = [{"role": "system", "content": f"You are agent {call} of many."}]
        history.append({"role": "user", "content": f"Here is what step {call} gave: {rng.randrange(10**6)}. Go on."})
        if rng.random() < EDITS and len(history) > 4:
            history[-2] = {"role": "user", "content": f"summary of what came before step {call}"}
        messages = [dict(message) for message in history]
        start = time.perf_counter()
        history.append(record(f"agent {call % agents}", messages))
        seconds += time.perf_counter() - start
    return seconds


def forest_seconds(renderer: Any, calls: int) -> tuple[float, int]:
    """Seconds to record the calls and make their timelines, and the tokens of these."""
    from astune.context_tracker import ContextTracker
    from astune.schema import Completion

    tracker = ContextTracker(renderer, 1 << 40)
    rng = random.Random(1)

    def record(agent: str, messages: list[Message]) -> Message:
        pending = tracker.prepare(messages, agent=agent, trainable=True)
        token_ids = [rng.randrange(1000, 40_000) for _ in range(8)]
        completion = Completion([*token_ids, renderer.stop_token_ids[0]], [-1.0] * 9, "stop", 0)
        return tracker.commit(pending, completion)

    seconds = talk(calls, record)
    start = time.perf_counter()
    tokens = sum(len(timeline.token_ids) for timeline in tracker.forest.timelines())
    return seconds + time.perf_counter() - start, tokens


def pairwise_seconds(calls: int) -> float:
    """Seconds to find what each call continues by comparing message lists, and nothing else."""
    recorded: list[list[Message]] = []

    def record(agent: str, messages: list[Message]) -> Message:
        answer = {"role": "assistant", "content": f"answer {len(recorded)}"}
        max((len(old) for old in recorded if messages[: len(old)] == old), default=0)
        recorded.append([*messages, answer])
        return answer

    return talk(calls, record)


def exponent(points: list[tuple[int, float]]) -> float:
    """Of the power law through (calls, seconds): the slope of the line of least squares on logarithmic scales."""
    return linear_regression(*zip(*((log(calls), log(seconds)) for calls, seconds in points), strict=True)).slope


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[5000, 10_000, 20_000, 40_000])
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model
    from astune.renderers import load_renderer

    renderer = load_renderer(resolve_model("builtin:smollm2-135m"))
    facts = machine()
    rows: list[list[object]] = []
    forest: list[tuple[int, float]] = []
    naive: list[tuple[int, float]] = []
    # The sizes take turns, so that a slow minute of the machine is no property of one size.
    turns = [[forest_seconds(renderer, calls) for calls in arguments.calls] for _ in range(arguments.repetitions)]
    for calls, runs in zip(arguments.calls, zip(*turns, strict=True), strict=True):
        forest.append((calls, median(seconds for seconds, _ in runs)))
        compared = "-"
        if calls <= MOST_COMPARED:
            naive.append((calls, pairwise_seconds(calls)))
            compared = f"{naive[-1][1]:.2f}"
        rows.append([f"{calls:,}", f"{forest[-1][1]:.2f}", f"{runs[0][1]:,}", compared])
        sys.stdout.write(f"{calls} calls: forest {forest[-1][1]:.2f} s, pairwise {compared} s\n")
    found = {"forest": exponent(forest), "pairwise": exponent(naive)}
    table = markdown_table(["calls", "forest, s", "tokens of its timelines", "pairwise comparison, s"], rows)
    words = f"Exponents: forest {found['forest']:.2f}, pairwise comparison {found['pairwise']:.2f}."
    write_results(
        "forest",
        {"machine": facts, "forest": forest, "pairwise": naive, "exponents": found},
        f"# Recording calls in one episode\n\n{describe(facts)}\n\n{table}\n\n{words}\n",
    )
    sys.stdout.write(f"\n{table}\n\n{words}\n")
    missed = [
        f"{calls} calls took {seconds:.1f} s"
        for calls, seconds in forest
        if calls <= SECONDS_BAR_CALLS and seconds > SECONDS_BAR
    ]
    missed += [f"exponent {found['forest']:.2f}"] if found["forest"] > EXPONENT_BAR else []
    sys.stdout.write(f"bars missed: {', '.join(missed) or 'none'}\n")
    sys.stdout.write(f"forest: {forest[-1][0]} calls in {forest[-1][1]:.2f} s, exponent {found['forest']:.2f}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
