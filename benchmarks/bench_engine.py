"""Our in-process engine against vLLM, llama.cpp and OpenVINO GenAI on the same CPU, in one run: `make bench-engine`.

All serve the same prompts (a 300-token beginning that all share, then a question of its own) and draw the same
number of new tokens at temperature 1, each with its exact log-probability. Stop tokens are ignored, so that the work is
the same whatever was drawn. Scenarios: 1, 8, 32 and 64 requests at once, and 8 and 64 episodes of two turns, where the
second prompt extends the first prompt and answer. Weights are in 16 bits, and ours and llama.cpp's in 8 too.

All are loaded and warm, and take turns, repetition by repetition, the others' processes stopped while one is measured.
So a machine that grows slower or faster meanwhile does so for all; a ratio is the median of the repetitions' ratios.
Every repetition has questions of its own, so that only the shared beginning and an episode's own first turn can come
from a cache, on every side. Before anything is measured, each side's log-probabilities are compared with transformers'.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.app.openmp import let_openmp_spin_briefly
from benchmarks.engine_scenarios import (
    NEW_TOKENS,
    SCENARIOS,
    SHARED_TOKENS,
    TURN_TOKENS,
    Prompts,
    decode_ms,
    tokens_per_s,
)
from benchmarks.engine_sides import OURS, Side, environment, ours, peers
from benchmarks.machine_limit import read_gb_per_s
from benchmarks.report import describe, machine, markdown_table, write_results
from benchmarks.same_model import require_same_model

DECODE_BAR = 0.6
"""Of what reading the weights once a token would take, at one sequence."""


@dataclass(frozen=True)
class Measured:
    """One value a repetition, by the side's name."""

    tokens_per_s: list[dict[str, list[float]]]
    """A scenario each."""
    decode_ms: dict[str, list[float]]
    read_gb_per_s: list[float]
    difference: dict[str, float]
    """Mean difference of log-probabilities from transformers in float32."""


@contextmanager
def _alone(side: Side | None, sides: list[Side]) -> Iterator[None]:
    with ExitStack() as stack:
        for other in sides:
            if other is not side:
                stack.enter_context(other.stopped())
        yield


def _in_turn(sides: list[Side], repetition: int) -> list[Side]:
    """Who goes first changes with each repetition."""
    first = repetition % len(sides)
    return sides[first:] + sides[:first]


async def _measure(folder: Path, repetitions: int, prompts: Prompts, sides: list[Side]) -> Measured:
    difference = await require_same_model(folder, sides, prompts)
    for side in sides:
        with _alone(side, sides):
            for scenario in SCENARIOS[:4]:
                await tokens_per_s(side, scenario, 1000 + scenario.concurrent, prompts)
    measured = Measured([], {side.name: [] for side in sides}, [], difference)
    weight_bytes = (folder / "model.safetensors").stat().st_size
    for repetition in range(repetitions):
        with _alone(None, sides):
            measured.read_gb_per_s.append(read_gb_per_s(weight_bytes))
        for side in _in_turn(sides, repetition):
            with _alone(side, sides):
                measured.decode_ms[side.name].append(await decode_ms(side, 3000 + repetition, prompts))
    print(f"  memory {' '.join(f'{value:.1f}' for value in measured.read_gb_per_s)} GB/s")
    _print("one sequence", measured.decode_ms, "ms a token")
    for number, scenario in enumerate(SCENARIOS):
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        for repetition in range(repetitions):
            for side in _in_turn(sides, repetition):
                with _alone(side, sides):
                    rate = await tokens_per_s(side, scenario, 100 * number + repetition, prompts)
                rates[side.name].append(rate)
        _print(scenario.name, rates, "tokens/s")
        measured.tokens_per_s.append(rates)
    return measured


def _print(what: str, values: dict[str, list[float]], unit: str) -> None:
    for name, row in values.items():
        print(f"  {name:14} {what:26} {' '.join(f'{value:.1f}' for value in row)} {unit}", flush=True)


def _best(own: str, rates: dict[str, list[float]], peers: list[str]) -> tuple[str, float]:
    """The fastest of these peers, and how much faster our side `own` is."""
    best = max(peers, key=lambda name: statistics.median(rates[name]))
    return best, statistics.median(one / other for one, other in zip(rates[own], rates[best], strict=True))


def _scenario_rows(measured: Measured, sides: list[Side]) -> tuple[list[list[str]], list[dict[str, Any]], list[str]]:
    """Rows of the table, the same as data, and the bars that were missed."""
    ours, theirs = _ours_and_theirs(sides)
    names = [side.name for side in theirs]
    in_16_bits = [side.name for side in theirs if side.weights == "bf16"]
    rows, results, missed = [], [], []
    for scenario, rates in zip(SCENARIOS, measured.tokens_per_s, strict=True):
        ratios = {own.name: _best(own.name, rates, names) for own in ours}
        in_16 = _best("ours", rates, in_16_bits) if in_16_bits else ("", 0.0)
        medians = [f"{statistics.median(values):.0f}" for values in rates.values()]
        compared = [f"{ratio:.2f} ({best})" for best, ratio in (*ratios.values(), in_16)]
        bar = "" if scenario.bar is None else f"{scenario.bar:.1f}"
        rows.append([scenario.name, *medians, *compared, bar])
        results.append(
            {
                "scenario": scenario.name,
                "tokens_per_s": rates,
                "to_the_best": {own: {"peer": best, "ratio": round(ratio, 3)} for own, (best, ratio) in ratios.items()},
                "to_the_best_in_16_bits": {"peer": in_16[0], "ratio": round(in_16[1], 3)},
                "bar": scenario.bar,
            }
        )
        missed += [
            f"{scenario.name}: {own} {ratio:.2f} of {best}, {scenario.bar} is the bar"
            for own, (best, ratio) in ratios.items()
            if scenario.bar is not None and ratio < scenario.bar
        ]
    return rows, results, missed


def _ours_and_theirs(sides: list[Side]) -> tuple[list[Side], list[Side]]:
    return [side for side in sides if side.name in OURS], [side for side in sides if side.name not in OURS]


def _decode_rows(measured: Measured, sides: list[Side], weight_bytes: int) -> tuple[list[list[str]], list[str]]:
    limit_ms = weight_bytes / statistics.median(measured.read_gb_per_s) / 1e6
    rows, missed = [], []
    for side in sides:
        took_ms = statistics.median(measured.decode_ms[side.name])
        limit = f"{limit_ms:.1f}" if side.weights == "bf16" else ""
        part = f"{limit_ms / took_ms:.2f}" if side.weights == "bf16" else ""
        bar = DECODE_BAR if side.name == "ours" else None
        difference = measured.difference[side.name]
        rows.append([side.name, f"{took_ms:.1f}", limit, part, "" if bar is None else str(bar), f"{difference:.4f}"])
        if bar is not None and limit_ms / took_ms < bar:
            missed.append(f"decoding one sequence: {limit_ms / took_ms:.2f} of the limit, {bar} is the bar")
    return rows, missed


def report(
    facts: dict[str, Any], measured: Measured, sides: list[Side], left_out: list[str], weight_bytes: int
) -> bool:
    """Print and write what came; True where every bar is reached."""
    rows, results, missed = _scenario_rows(measured, sides)
    decode_rows, slow = _decode_rows(measured, sides, weight_bytes)
    compared = [f"{own.name} to the best" for own in _ours_and_theirs(sides)[0]]
    rates = [f"{side.name}, tokens/s" for side in sides]
    head = ["scenario", *rates, *compared, "ours to the best in 16 bits", "bar"]
    decode_head = ("one sequence", "ms a token", "limit", "limit / ms", "bar", "difference of log-probabilities")
    tables = f"""{markdown_table(head, rows)}

{markdown_table(decode_head, decode_rows)}"""
    absent = f"Left out: {', '.join(left_out)}, which could not be installed here.\n" if left_out else ""
    gb_per_s = statistics.median(measured.read_gb_per_s)
    text = f"""# The in-process engine against vLLM, llama.cpp and OpenVINO GenAI on a CPU

{describe(facts)}

Medians of {len(measured.read_gb_per_s)} repetitions, in which all take turns;
{SHARED_TOKENS} shared prompt tokens and a question of its own;
{NEW_TOKENS} new tokens a request, two turns of {TURN_TOKENS} for episodes; temperature 1, with log-probabilities.
A ratio is that of ours to the peer in brackets. The limit is reading {weight_bytes / 1e6:.0f} MB of bf16 weights
once a token at {gb_per_s:.1f} GB/s, which were measured by turns with it. The difference of log-probabilities is the
mean over 256 drawn tokens, each scored by transformers in float32.
{absent}
{tables}
"""
    data = {
        "machine": facts,
        "left_out": left_out,
        "results": results,
        "decode_ms": measured.decode_ms,
        "read_gb_per_s": measured.read_gb_per_s,
        "difference": measured.difference,
    }
    write_results("engine", data, text)
    print(f"\n{tables}\n")
    for line in missed + slow:
        print(f"MISSED {line}", file=sys.stderr)
    return not missed + slow


async def _compare(folder: Path, repetitions: int, prompts: Prompts) -> bool:
    facts = machine()
    print(describe(facts))
    async with peers(folder) as found, ours(folder) as own_sides:
        left_out = [peer for peer, theirs in found.items() if not theirs]
        for peer in left_out:
            print(f"{peer} is left out: make it with scripts/make_peer_env.sh {peer}", file=sys.stderr)
        facts |= {peer: (environment(peer) / ".recipe").read_text().strip() for peer in found if peer not in left_out}
        sides = [*own_sides, *(side for theirs in found.values() for side in theirs)]
        if len(sides) == len(own_sides):
            raise SystemExit("there is no peer to compare with")
        measured = await _measure(folder, repetitions, prompts, sides)
    return report(facts, measured, sides, left_out, (folder / "model.safetensors").stat().st_size)


async def _measure_ours(folder: Path, repetitions: int, prompts: Prompts) -> None:
    async with ours(folder) as sides:
        await _measure(folder, repetitions, prompts, sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--ours-only", action="store_true", help="measure our engine alone, write and compare nothing")
    arguments = parser.parse_args()

    let_openmp_spin_briefly()
    from astune.engine.model_files import resolve_model

    folder = resolve_model(arguments.model)
    prompts = Prompts(folder)
    if arguments.ours_only:
        asyncio.run(_measure_ours(folder, arguments.repetitions, prompts))
    elif not asyncio.run(_compare(folder, arguments.repetitions, prompts)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
