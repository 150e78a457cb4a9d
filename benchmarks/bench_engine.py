"""Our in-process engine against real vLLM on the same CPU, in one run: `make bench-engine`.

Both serve the same prompts (a 300-token beginning that all share, then a question of its own) and draw the same
number of new tokens at temperature 1, each with its exact log-probability, in bf16. Stop tokens are ignored, so
that the work is the same whatever was drawn. Scenarios: 1, 8, 32 and 64 requests at once, and 8 and 64 episodes
of two turns, where the second prompt extends the first prompt and answer.

Both are loaded and warm, and take turns, repetition by repetition, vLLM's processes stopped while ours is measured.
So a machine that grows slower or faster meanwhile does so for both; a ratio is the median of the repetitions' ratios.
Every repetition has questions of its own, so that only the shared beginning and an episode's own first turn can come
from a cache, on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import describe, machine, markdown_table, write_results
from benchmarks.vllm_server import VllmServer

SHARED_TOKENS = 300
NEW_TOKENS = 64
TURN_TOKENS = 40
MAX_MODEL_LEN = 2048
SYSTEM = (
    "You are a careful assistant that solves word problems one step at a time. You may ask a calculator by writing "
    "an expression between two tags, and you read its result in the next message before you go on. Say what is asked, "
    "name the quantities, and write the final answer in a box at the very end. "
)
QUESTION = "{name} has {a} {thing} and buys {b} more, then gives {c} of them to a friend. How many {thing} are left?"
OBSERVATION = "\nThe calculator says {value}. What is the final answer?\n"
NAMES = ("Mia", "Omar", "Lena", "Kofi", "Yuki", "Ravi", "Ines", "Tom")
THINGS = ("apples", "stamps", "marbles", "books", "coins", "shells", "cards", "pencils")

Generate = Callable[[list[int], int, str], Awaitable[list[int]]]


@dataclass(frozen=True)
class Scenario:
    name: str
    concurrent: int
    turns: int
    bar: float | None
    """The ratio to vLLM that has to be reached."""

    @property
    def new_tokens(self) -> int:
        return self.concurrent * (NEW_TOKENS if self.turns == 1 else self.turns * TURN_TOKENS)


SCENARIOS = (
    Scenario("1 request", 1, 1, 1.0),
    Scenario("8 requests", 8, 1, 1.0),
    Scenario("32 requests", 32, 1, None),
    Scenario("64 requests", 64, 1, 0.8),
    Scenario("8 episodes of two turns", 8, 2, None),
    Scenario("64 episodes of two turns", 64, 2, None),
)


class Prompts:
    """Token ids of prompts; `repetition` and `index` give a question that no other pair has."""

    def __init__(self, folder: Path) -> None:
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._shared: list[int] = self._tokenizer.encode(SYSTEM * 8)[:SHARED_TOKENS]

    def first(self, repetition: int, index: int) -> list[int]:
        number = repetition * 64 + index
        text = QUESTION.format(
            name=NAMES[index % 8], a=number + 10, b=number % 37 + 11, c=number % 23 + 2, thing=THINGS[number % 7]
        )
        return self._shared + self._tokenizer.encode(f"{text}\n")

    def observation(self, index: int) -> list[int]:
        return self._tokenizer.encode(OBSERVATION.format(value=index + 17))


async def _measure(scenario: Scenario, repetition: int, prompts: Prompts, generate: Generate) -> float:
    """Tokens per second of one repetition."""

    async def episode(index: int) -> int:
        session = f"{scenario.name}-{repetition}-{index:03d}"
        prompt = prompts.first(repetition, index)
        if scenario.turns == 1:
            return len(await generate(prompt, NEW_TOKENS, session))
        drawn = 0
        for _ in range(scenario.turns):
            answer = await generate(prompt, TURN_TOKENS, session)
            drawn += len(answer)
            prompt = prompt + answer + prompts.observation(index)
        return drawn

    started = time.perf_counter()
    drawn = sum(await asyncio.gather(*(episode(index) for index in range(scenario.concurrent))))
    seconds = time.perf_counter() - started
    if drawn != scenario.new_tokens:
        raise SystemExit(f"{scenario.name}: {drawn} tokens were drawn, {scenario.new_tokens} were asked for")
    return drawn / seconds


@dataclass(frozen=True)
class Side:
    """One of the two; `alone` keeps the other quiet."""

    generate: Generate
    alone: Callable[[], AbstractContextManager[None]] = nullcontext


async def _measure_all(repetitions: int, prompts: Prompts, sides: dict[str, Side]) -> list[dict[str, list[float]]]:
    """Tokens per second of every repetition by side, a scenario each; who goes first changes with each repetition."""
    for side in sides.values():
        for scenario in SCENARIOS[:4]:
            await _measure(scenario, 1000 + scenario.concurrent, prompts, side.generate)
    measured: list[dict[str, list[float]]] = []
    for number, scenario in enumerate(SCENARIOS):
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for repetition in range(repetitions):
            for name in sorted(sides, reverse=repetition % 2 == 1):
                with sides[name].alone():
                    rate = await _measure(scenario, 100 * number + repetition, prompts, sides[name].generate)
                rates[name].append(rate)
        for name, values in rates.items():
            print(f"  {name:5} {scenario.name:26} {' '.join(f'{rate:.0f}' for rate in values)} tokens/s", flush=True)
        measured.append(rates)
    return measured


@asynccontextmanager
async def _ours(folder: Path) -> AsyncIterator[Generate]:
    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import SamplingParams

    engine = InProcessEngine.load(
        folder, model=ModelConfig(), engine=EngineConfig(), max_model_len=MAX_MODEL_LEN, deterministic=False
    )

    async def generate(prompt: list[int], max_tokens: int, session: str) -> list[int]:
        engine.open_session(session)
        try:
            completion = await engine.generate(prompt, SamplingParams(max_tokens=max_tokens), session=session)
        finally:
            engine.close_session(session)
        return completion.token_ids

    try:
        yield generate
    finally:
        await engine.aclose()


async def _compare(folder: Path, repetitions: int, prompts: Prompts, facts: dict[str, Any]) -> bool:
    with VllmServer(folder, max_model_len=MAX_MODEL_LEN) as server:
        facts["vllm"] = server.version()
        async with server.client() as client, _ours(folder) as ours:

            async def vllm(prompt: list[int], max_tokens: int, session: str) -> list[int]:
                return (await server.generate(client, prompt, max_tokens=max_tokens)).token_ids

            sides = {"ours": Side(ours, server.stopped), "vLLM": Side(vllm)}
            return _report(facts, await _measure_all(repetitions, prompts, sides))


async def _measure_ours(folder: Path, repetitions: int, prompts: Prompts) -> None:
    async with _ours(folder) as ours:
        await _measure_all(repetitions, prompts, {"ours": Side(ours)})


def _report(facts: dict[str, Any], measured: list[dict[str, list[float]]]) -> bool:
    """Print and write what came; True where every bar is reached."""
    rows, results, missed = [], [], []
    for scenario, rates in zip(SCENARIOS, measured, strict=True):
        ours, vllm = rates["ours"], rates["vLLM"]
        own, peer = statistics.median(ours), statistics.median(vllm)
        ratio = statistics.median(one / other for one, other in zip(ours, vllm, strict=True))
        bar = "" if scenario.bar is None else f"{scenario.bar:.1f}"
        rows.append((scenario.name, f"{own:.0f}", f"{peer:.0f}", f"{ratio:.2f}", bar))
        results.append(
            {
                "scenario": scenario.name,
                "ours_tokens_per_s": ours,
                "vllm_tokens_per_s": vllm,
                "ratio": round(ratio, 3),
                "bar": scenario.bar,
            }
        )
        if scenario.bar is not None and ratio < scenario.bar:
            missed.append(f"{scenario.name}: {ratio:.2f} of vLLM, {scenario.bar} is the bar")
    table = markdown_table(("scenario", "ours, tokens/s", "vLLM, tokens/s", "ratio", "bar"), rows)
    text = f"""# The in-process engine against vLLM on a CPU

{describe(facts)}

Medians of {len(measured[0]["ours"])} repetitions, in which both take turns;
{SHARED_TOKENS} shared prompt tokens and a question of its own;
{NEW_TOKENS} new tokens a request, two turns of {TURN_TOKENS} for episodes; bf16, temperature 1, with log-probabilities.

{table}
"""
    write_results("engine", {"machine": facts, "results": results}, text)
    print(f"\n{table}\n")
    for scenario, row in zip(SCENARIOS, rows, strict=True):
        print(f"{scenario.name}: {row[3]}x vLLM")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--ours-only", action="store_true", help="measure our engine alone, write and compare nothing")
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model

    folder = resolve_model(arguments.model)
    prompts = Prompts(folder)
    if arguments.ours_only:
        asyncio.run(_measure_ours(folder, arguments.repetitions, prompts))
        return
    facts = machine()
    print(describe(facts))
    if not asyncio.run(_compare(folder, arguments.repetitions, prompts, facts)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
