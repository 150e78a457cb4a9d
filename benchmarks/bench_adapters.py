"""What several policies cost in the in-process engine: `make bench-adapters`.

The same prompts and numbers of new tokens, answered by the model itself and by 1, 2 and 4 adapters of rank 16 on it,
their requests mixed, by turns in one process with two engines. A ratio is the median over the repetitions of tokens per
second with adapters to those without; 0.8 at 64 requests is the bar. Memory is that of a process which has loaded
engine and trainer of two adapters on one model, or of two whole models.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

NEW_TOKENS = 48
RANK = 16
BAR = 0.8
REQUESTS = (1, 8, 64)
ADAPTERS = (1, 2, 4)
NAMES = tuple(f"policy{number}" for number in range(max(ADAPTERS)))
MODELS = {name: {"lora": {"rank": RANK}} for name in NAMES}

_RESIDENT = """
import gc, sys
from pathlib import Path
from astune.config.schema import AstuneConfig
from astune.engine.local.in_process import InProcessEngine
from astune.trainer.policies import Policies
from astune.trainer.policy import PolicyTrainer

def engine(config):
    made = dict(model=config.model, engine=config.engine, max_model_len=1024, adapters=dict.fromkeys(config.models))
    return InProcessEngine.load(folder, **made)

folder, kind = Path(sys.argv[1]), sys.argv[2]
names = {"wolf": {"lora": {"rank": 16}}, "village": {"lora": {"rank": 16}}}
plain, several = AstuneConfig(), AstuneConfig.model_validate({"models": names})
if kind == "adapters":
    kept = [engine(several), Policies.load([(several.bases()[0], folder)], several)]
else:
    kept = [part for _ in range(2) for part in (engine(plain), PolicyTrainer.load(folder, plain))]
gc.collect()
status = Path("/proc/self/status").read_text()
print("KIB", next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")), flush=True)
import os
os._exit(0)
"""


async def _measure_all(folder: Path, repetitions: int) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """(tokens per second with adapters, without) of each repetition, by adapters and requests."""
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from astune.config.schema import AstuneConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import SamplingParams
    from astune.trainer.policies import Policies

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt: list[int] = tokenizer.encode("Who of the players is a werewolf, and why do you think so? " * 20)
    config = AstuneConfig.model_validate({"models": MODELS})
    settings: dict[str, Any] = {"model": config.model, "engine": config.engine, "max_model_len": 1024}
    plain = InProcessEngine.load(folder, **settings)
    adapted = InProcessEngine.load(folder, adapters=dict.fromkeys(config.models), **settings)
    await Policies.load([(config.bases()[0], folder)], config).publish(adapted)

    async def rate(n_requests: int, repetition: int, n_adapters: int) -> float:
        engine = adapted if n_adapters else plain

        async def one(index: int) -> int:
            policy = NAMES[index % n_adapters] if n_adapters else ""
            ids = [*prompt, *tokenizer.encode(f" Game {repetition}, player {index}:\n")]
            params = SamplingParams(NEW_TOKENS, seed=index, policy=policy)
            return len((await engine.generate(ids, params, session=f"{index}")).token_ids)

        started = time.perf_counter()
        drawn = sum(await asyncio.gather(*(one(index) for index in range(n_requests))))
        return drawn / (time.perf_counter() - started)

    measured: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for n_adapters in ADAPTERS:
        for n_requests in REQUESTS:
            for kind in (n_adapters, 0):
                await rate(n_requests, -1, kind)
            pairs = [
                (await rate(n_requests, number, n_adapters), await rate(n_requests, number, 0))
                for number in range(100 * n_adapters, 100 * n_adapters + repetitions)
            ]
            measured[n_adapters, n_requests] = pairs
            shown = " ".join(f"{one:.0f}/{other:.0f}" for one, other in pairs)
            print(f"  {n_adapters} adapters, {n_requests:2} requests  {shown} tokens/s", flush=True)
    await plain.aclose()
    await adapted.aclose()
    return measured


def _resident_gib(folder: Path, kind: str) -> float:
    command = [sys.executable, "-c", _RESIDENT, str(folder), kind]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return int(said.split("KIB ")[1].split()[0]) / 2**20


def _report(
    facts: dict[str, Any], measured: dict[tuple[int, int], list[tuple[float, float]]], memory: dict[str, float]
) -> bool:
    """Print and write what came; True where the bar is reached."""
    rows, results, missed = [], [], []
    for (n_adapters, n_requests), pairs in measured.items():
        ours, plain = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        rows.append((n_adapters, n_requests, f"{ours:.0f}", f"{plain:.0f}", f"{ratio:.2f}"))
        results.append(
            {"adapters": n_adapters, "requests": n_requests, "tokens_per_s": pairs, "ratio": round(ratio, 3)}
        )
        if n_requests == max(REQUESTS) and ratio < BAR:
            missed.append(f"{n_adapters} adapters, {n_requests} requests: {ratio:.2f}, {BAR} is the bar")
    head = ("adapters", "requests", "with adapters, tokens/s", "the model itself, tokens/s", "ratio")
    table = markdown_table(head, rows)
    held = (
        f"{memory['adapters']:.2f} GiB with two adapters on one model, {memory['models']:.2f} GiB with two whole models"
    )
    repetitions = len(next(iter(measured.values())))
    text = f"""# Several policies in the in-process engine

{describe(facts)}

Medians of {repetitions} repetitions; {NEW_TOKENS} new tokens a request, adapters of rank {RANK}.

{table}

Resident memory of a process with engine and trainer, loaded and before the first step: {held}.
"""
    write_results("adapters", {"machine": facts, "results": results, "memory_gib": memory}, text)
    print(f"\n{table}\n\n{held}")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model

    facts, folder = machine(), resolve_model(arguments.model)
    print(describe(facts))
    memory = {kind: _resident_gib(folder, kind) for kind in ("adapters", "models")}
    if not _report(facts, asyncio.run(_measure_all(folder, arguments.repetitions)), memory):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
