"""What structured answers cost in the in-process engine: `make bench-grammar`.

The same prompts and the same number of new tokens, once free and once under a grammar, turn by turn in one process.
The grammars cannot end before the last token, so that the work is the same whatever was drawn. A ratio is the
median over the repetitions of tokens per second under the grammar to those without; 0.9 is the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.report import describe, machine, markdown_table, write_results

NEW_TOKENS = 48
STOP = 2
BAR = 0.9
ORDERS = {
    "type": "array",
    "minItems": 40,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "kind": {"enum": ["fruit", "tool", "book"]},
            "price": {"type": "number"},
            "gift": {"type": "boolean"},
        },
        "required": ["name", "count", "kind", "price", "gift"],
        "additionalProperties": False,
    },
}
LOG = r"(20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9] (info|warning|error): .{20,60}\n){20}"


@dataclass(frozen=True)
class Scenario:
    name: str
    kind: Any
    text: str
    concurrent: int


SCENARIOS = tuple(
    Scenario(f"{name}, {n} request{'s' * (n > 1)}", kind, text, n)
    for name, kind, text in (("JSON schema", "json_schema", json.dumps(ORDERS)), ("regular expression", "regex", LOG))
    for n in (1, 8, 64)
)


async def _measure_all(folder: Any, repetitions: int) -> list[list[tuple[float, float]]]:
    """(tokens per second under the grammar, free) of each repetition, a scenario each."""
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import Grammar, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt: list[int] = tokenizer.encode("List the orders of the day as they came in. " * 10)
    engine = InProcessEngine.load(folder, model=ModelConfig(), engine=EngineConfig(), max_model_len=1024)

    async def rate(scenario: Scenario, repetition: int, grammar: Grammar | None) -> float:
        async def one(index: int) -> int:
            params = SamplingParams(NEW_TOKENS, seed=index, stop_token_ids=(STOP,) if grammar else (), grammar=grammar)
            day = 2 * repetition + (grammar is None)  # no other run has the same prompt in the cache
            ids = tokenizer.encode(f" Day {day}, customer {index}:\n")
            return len((await engine.generate(prompt + ids, params, session=f"{index}")).token_ids)

        started = time.perf_counter()
        drawn = sum(await asyncio.gather(*(one(index) for index in range(scenario.concurrent))))
        seconds = time.perf_counter() - started
        if drawn != scenario.concurrent * NEW_TOKENS:
            raise SystemExit(f"{scenario.name}: {drawn} tokens were drawn, the grammar ended too early")
        return drawn / seconds

    measured: list[list[tuple[float, float]]] = []
    try:
        for scenario in SCENARIOS:
            grammar = Grammar(scenario.kind, scenario.text)
            await rate(scenario, 1000, grammar)  # compiled, and everything warm
            pairs: list[tuple[float, float]] = []
            for repetition in range(repetitions):
                first = await rate(scenario, repetition, grammar if repetition % 2 else None)
                second = await rate(scenario, repetition, None if repetition % 2 else grammar)
                pairs.append((first, second) if repetition % 2 else (second, first))
            shown = " ".join(f"{under:.0f}/{free:.0f}" for under, free in pairs)
            print(f"  {scenario.name:32} {shown} tokens/s", flush=True)
            measured.append(pairs)
    finally:
        await engine.aclose()
    return measured


def _report(facts: dict[str, Any], measured: list[list[tuple[float, float]]]) -> bool:
    """Print and write what came; True where the bar is reached everywhere."""
    rows, results, missed = [], [], []
    for scenario, pairs in zip(SCENARIOS, measured, strict=True):
        under, free = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        rows.append((scenario.name, f"{under:.0f}", f"{free:.0f}", f"{ratio:.2f}"))
        results.append({"scenario": scenario.name, "under_and_free_tokens_per_s": pairs, "ratio": round(ratio, 3)})
        if ratio < BAR:
            missed.append(f"{scenario.name}: {ratio:.2f}, {BAR} is the bar")
    table = markdown_table(("scenario", "under the grammar, tokens/s", "free, tokens/s", "ratio"), rows)
    text = f"""# Structured answers in the in-process engine

{describe(facts)}

Medians of {len(measured[0])} repetitions, free and under the grammar by turns; {NEW_TOKENS} new tokens a request.

{table}
"""
    write_results("grammar", {"machine": facts, "results": results}, text)
    print(f"\n{table}\n")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    for row in rows:
        print(f"{row[0]}: {row[3]} of the free engine's tokens/s")
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model

    facts = machine()
    print(describe(facts))
    if not _report(facts, asyncio.run(_measure_all(resolve_model(arguments.model), arguments.repetitions))):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
