"""Sampling and training on a GPU, random weights in Qwen3's shapes, beside what the device can do: `make bench-gpu`.

- limits: the GPU's copies and its products in bfloat16, which bound what follows
- sampling: 1, 8, 64 and 256 requests at once, each a prompt of about 340 tokens and 64 new ones; of the limit is the
  time that reading the weights and the cache takes, once for each new token, as a part of the time taken, prompts
  included
- training: forward and backward passes of the traces of `make bench-tree`, as a prefix tree and packed, all weights, or
  adapters of rank 16 for the largest shape; of the limit is its arithmetic as a part of the device's products

Each part is a process of its own that ends after `--limit-s`. The table is written after each; what failed or took too
long is in it too, with what was measured until then. Parts can be measured one by one: figures of others stay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.random_models import QWEN3, random_qwen3
from benchmarks.report import RESULTS, ROOT, describe, machine, markdown_table, write_results

REQUESTS = (1, 8, 64, 256)
CACHE_GB = 24.0
"""For 256 requests of the largest shape."""
COPIED_BYTES = 2**32
PRODUCT = 8192
REPEATED = 5
LORA_RANK = {"8B": 16}
"""Of shapes whose weights, gradients and moments no single GPU holds."""
HEAD = ("shape", "part", "measured", "tokens/s", "of the limit", "memory, GiB")
SPEED = "tokens_per_s"
MARK = "measured: "
"""Begins a line of a part's output that is a row."""

Row = dict[str, Any]


def limits(shape: str, device: str) -> None:
    """Print the speed of copies, read and written bytes counted, and of products in bfloat16."""
    import torch

    size, n = (COPIED_BYTES, PRODUCT) if device == "cuda" else (2**26, 512)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left = torch.randn(n, n, device=device).bfloat16()
    gb_per_s = 2 * size / _seconds(lambda: target.copy_(source)) / 1e9
    tflops = 2 * n**3 / _seconds(lambda: left @ left) / 1e12
    row(shape, "limits", f"copies {gb_per_s:.0f} GB/s, products {tflops:.1f} TFLOP/s", gb_per_s=gb_per_s, tflops=tflops)


def sampling(shape: str, device: str) -> None:
    """Print the new tokens per second of each number of requests."""
    from benchmarks.engine_scenarios import NEW_TOKENS, Prompts, Scenario, tokens_per_s
    from benchmarks.engine_sides import ours

    async def measure(folder: Path, weights: int) -> None:
        _, _, layers, _, kv_heads, head_dim = QWEN3[shape]
        prompts = Prompts(folder)
        length = len(prompts.first(0, 0)) + NEW_TOKENS / 2
        cache_gb = CACHE_GB if device == "cuda" else 2.0
        async with ours(folder, kv_cache_gb=cache_gb, max_batch_size=max(REQUESTS)) as [side, *_]:
            for n in REQUESTS if device == "cuda" else REQUESTS[:2]:
                scenario = Scenario(f"{n} requests", n, 1, None)
                await tokens_per_s(side, scenario, 0, prompts)  # compiles, and fills what stays
                found = [await tokens_per_s(side, scenario, repetition, prompts) for repetition in (1, 2, 3)]
                read_bytes = 2 * weights + n * length * 4 * layers * kv_heads * head_dim
                row(shape, "sampling", scenario.name, statistics.median(found), gb_per_token=read_bytes / n / 1e9)

    with tempfile.TemporaryDirectory() as scratch:
        weights = random_qwen3(Path(scratch), shape)
        asyncio.run(measure(Path(scratch), weights))


def training(shape: str, device: str) -> None:
    """Print the tokens per second of a forward and backward pass of each trace."""
    from benchmarks.agent_traces import made_groups
    from benchmarks.bench_tree import FULL, QUICK, Bench

    traces = FULL if device == "cuda" else QUICK
    with tempfile.TemporaryDirectory() as scratch:
        random_qwen3(Path(scratch), shape)
        rank = LORA_RANK.get(shape, 0)
        bench = Bench(Path(scratch), 8192, device="cuda" if device == "cuda" else "cpu", rank=rank)
        for name, trace in traces.items():
            found = bench.ours(name, made_groups(trace, vocabulary=bench.vocabulary, seed=0), 3, with_memory=True)
            for layout, one in (("as a tree", found.tree), ("packed", found.packed)):
                tflop_per_token = one.work / one.tokens / 1e12
                adapted = f", adapters of rank {rank}" if rank else ""
                speed = one.tokens / one.seconds
                row(shape, "training", f"{name}, {layout}{adapted}", speed, tflop_per_token=tflop_per_token)


PARTS: dict[str, Callable[[str, str], None]] = {"limits": limits, "sampling": sampling, "training": training}


def row(shape: str, part: str, measured: str, tokens_per_s: float | None = None, **limit: float) -> None:
    """Print a row of the table, for the process that writes it."""
    import torch

    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_initialized() else None
    found = {"shape": shape, "part": part, "measured": measured, SPEED: tokens_per_s, "memory_gib": peak}
    print(MARK + json.dumps(found | limit), flush=True)


def _seconds(work: Callable[[], object]) -> float:
    """Median seconds of a call, once what it started has ended."""
    import torch

    passes: list[float] = []
    for _ in range(REPEATED + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        passes.append(time.perf_counter() - start)
    return statistics.median(passes[1:])


def rows_of(shape: str, part: str, device: str, limit_s: float) -> list[Row]:
    """Measure a part in a process of its own; a row at the end says what ended it early."""
    command = [sys.executable, "-m", "benchmarks.bench_gpu", "--device", device, "--only", shape, part]
    with tempfile.TemporaryFile("w+") as out:
        try:
            done = subprocess.run(command, check=False, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, timeout=limit_s)
            ended = f"failed with status {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit_s:g} s"
        out.seek(0)
        lines = out.read().splitlines()
    rows = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if ended is not None:
        print("\n".join(lines[-30:]), file=sys.stderr)
        rows.append({"shape": shape, "part": part, "measured": f"{ended}: {lines[-1] if lines else 'no output'}"})
    return rows


def of_limit(found: Row, limit: Row | None) -> str:
    """The measured speed as a part of what the device's copies or products allow."""
    if limit is None or not found.get(SPEED):
        return ""
    if "gb_per_token" in found:
        return f"{found[SPEED] * found['gb_per_token'] / limit['gb_per_s']:.2f}"
    return f"{found[SPEED] * found['tflop_per_token'] / limit['tflops']:.2f}"


def table(rows: Sequence[Row]) -> str:
    limit = next((each for each in rows if "gb_per_s" in each), None)
    shown = [
        (
            each["shape"],
            each["part"],
            each["measured"],
            f"{each[SPEED]:,.0f}" if each.get(SPEED) else "",
            of_limit(each, limit),
            f"{each['memory_gib']:.1f}" if each.get("memory_gib") else "",
        )
        for each in rows
    ]
    return markdown_table(HEAD, shown)


def measure(shapes: Sequence[str], parts: Sequence[str], limit_s: float) -> bool:
    """Measure the parts on the GPU and write the table after each; True where none ended early."""
    import torch

    facts = machine() | {"gpu": torch.cuda.get_device_name()}
    about = (__doc__ or "").partition("\n\n")[2].strip()
    written = RESULTS / "gpu.json"
    rows: list[Row] = json.loads(written.read_text())["rows"] if written.exists() else []
    whole = True
    for part in parts:
        for shape in shapes if part != "limits" else ["-"]:
            found = rows_of(shape, part, "cuda", limit_s)
            rows = [each for each in rows if (each["shape"], each["part"]) != (shape, part)] + found
            text = "\n\n".join(["# On a GPU", describe(facts), about, table(rows)])
            write_results("gpu", {"machine": facts, "rows": rows}, text)
            print(table(found), flush=True)
            whole = whole and all(SPEED in each for each in found)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=QWEN3, default=["0.6B", "1.7B", "8B"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit-s", type=float, default=540, help="of each part, loading included")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu prints, for a look at the tool")
    parser.add_argument("--only", nargs=2, metavar=("SHAPE", "PART"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        shape, part = arguments.only
        PARTS[part](shape, arguments.device)
        return

    import torch

    if arguments.device == "cpu":
        for part in arguments.parts:
            print(table(rows_of(arguments.shapes[0], part, "cpu", arguments.limit_s)), flush=True)
    elif not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use; `--device cpu --shapes tiny` tries the tool without one")
    elif not measure(arguments.shapes, arguments.parts, arguments.limit_s):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
