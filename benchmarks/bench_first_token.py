"""How long `--backbone debug` takes to the first sampled token: `make bench-first-token`.

Each repetition starts `astune` as a user does, in a process of its own, on one task and with answers of one token, so
that its first answer is the first token; the command itself says when it came, counted from the start of its process.

    in this process      nothing runs before: torch is imported and the small model loaded
    behind warm vLLM     a vLLM server of the small model runs on this machine's CPU and has answered before

The agent is the calculator tutorial's, written with AgentScope, and behind vLLM also one without a framework. Beside
them stand two bare processes: one that imports torch and transformers and loads the model, to which the ratios are, and
one that imports AgentScope. All take turns; the server is stopped while others are measured. A first round is not
counted: it fetches the model, compiles kernels, and keeps what was read of the tokenizer.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import ROOT, describe, machine, markdown_table, write_results
from benchmarks.vllm_server import VllmServer

CALCULATOR = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
PLAIN_AGENT = """
from astune import Workflow, WorkflowOutput

class Agent(Workflow):
    async def execute(self, task, proxy):
        await proxy.achat([{"role": "user", "content": task.main_query}])
        return WorkflowOutput(reward=1.0)
"""
PLAIN_CONF = """
astune:
  model: {path: "builtin:smollm2-135m"}
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
  rollout: {workflow: agent.py->Agent, max_model_len: 512}
"""
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
"""
FIRST_ANSWER = re.compile(r"first answer (\d+\.\d+) s after the start")


@dataclass(frozen=True)
class Case:
    """`seconds` measures it once; `bar` is what it may take at most."""

    name: str
    seconds: Callable[[], float]
    bar: float | None = None
    beside: Callable[[], AbstractContextManager[None]] = nullcontext


def bare_seconds(*words: str) -> float:
    """From the start of a bare Python process to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return time.perf_counter() - started


def first_token_seconds(conf: Path, record_dir: Path, *settings: str) -> float:
    """What the command says of itself."""
    command = [str(Path(sys.executable).with_name("astune")), "--conf", str(conf), "--backbone", "debug"]
    for setting in (
        f"record_dir={record_dir}",
        "debug.debug_first_n_tasks=1",
        "rollout.max_response_length_in_one_turn=1",
        *settings,
    ):
        command += ["--set", setting]
    ended = subprocess.run(command, cwd=conf.parent, check=False, capture_output=True, text=True)
    said = FIRST_ANSWER.search(ended.stdout)
    if said is None:
        raise SystemExit(f"no first answer of {' '.join(command)}:\n{ended.stdout}\n{ended.stderr}")
    return float(said[1])


def cases(folder: Path, scratch: Path, server: VllmServer) -> list[Case]:
    (scratch / "agent.py").write_text(PLAIN_AGENT)
    (scratch / "tasks.jsonl").write_text('{"main_query": "What is one and one?"}\n')
    plain = scratch / "plain.yaml"
    plain.write_text(PLAIN_CONF)
    record = scratch / "runs"
    behind_vllm = ("engine.type=vllm", f"engine.base_url={server.url}")
    return [
        Case("loading the model alone", lambda: bare_seconds("-c", LOAD, str(folder)), beside=server.stopped),
        Case("importing AgentScope alone", lambda: bare_seconds("-c", "import agentscope"), beside=server.stopped),
        Case("in this process", lambda: first_token_seconds(CALCULATOR, record), 15.0, server.stopped),
        Case("behind warm vLLM", lambda: first_token_seconds(CALCULATOR, record, *behind_vllm), 3.0),
        Case("behind warm vLLM, no framework", lambda: first_token_seconds(plain, record, *behind_vllm), 3.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model

    folder = resolve_model("builtin:smollm2-135m")
    facts = machine()
    print(describe(facts))
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="astune-first-token-") as scratch, VllmServer(folder) as server:
        facts["vllm"] = server.version()
        measured = cases(folder, Path(scratch), server)
        for repetition in range(1 + arguments.repetitions):
            for case in measured:
                with case.beside():
                    took = case.seconds()
                if repetition:
                    seconds.setdefault(case.name, []).append(took)
                print(f"  {repetition or 'not counted'}: {case.name} {took:.2f} s", flush=True)
    return report(facts, measured, seconds)


def report(facts: dict[str, object], measured: list[Case], seconds: dict[str, list[float]]) -> int:
    """Print and write what came; 1 where a bar is missed."""
    medians = {case.name: statistics.median(seconds[case.name]) for case in measured}
    alone = medians[measured[0].name]
    rows = [
        (
            case.name,
            f"{medians[case.name]:.2f}",
            f"{min(seconds[case.name]):.2f} to {max(seconds[case.name]):.2f}",
            f"{medians[case.name] / alone:.2f}",
            "" if case.bar is None else f"{case.bar:g}",
        )
        for case in measured
    ]
    table = markdown_table(("", "median, s", "range, s", "ratio to loading the model alone", "bar, s"), rows)
    write_results(
        "first_token",
        {"machine": facts, "seconds": seconds, "medians": medians},
        f"""# From the start of `astune --backbone debug` to the first sampled token

{describe(facts)}

Medians of {len(seconds[measured[0].name])} repetitions, in which all take turns.

{table}
""",
    )
    print(f"\n{table}\n")
    missed = [case for case in measured if case.bar is not None and medians[case.name] >= case.bar]
    for case in missed:
        print(f"MISSED {case.name}: {medians[case.name]:.2f} s, {case.bar:g} is the bar", file=sys.stderr)
    for case in measured[2:]:
        print(f"{case.name}: {medians[case.name] / alone:.2f}x loading the model alone")
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' interpreters keep what they compile
    sys.exit(main())
