"""A model of 0.6 billion weights with LoRA on this machine: `make bench-larger`.

The shape is Qwen3-0.6B's, the weights are random, since no real ones are shipped; a user of the real ones sets
`model.path` to their folder. Three steps of 64 answers of 48 tokens to the calculator tutorial's questions, rewarded by
chance. Printed are the seconds of each part of a step, and the peak memory of the whole process, which is to stay below
8 GB.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

from astune import AstuneProxy, Task
from astune.workflow import Workflow, WorkflowOutput
from benchmarks.own_runs import lines_of, train
from benchmarks.random_models import random_qwen3
from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

CONF = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
BAR_GB = 8.0
NEW_TOKENS = 48
PARTS = {"rollout": "sampling", "train": "training", "sync": "handing weights to the engine"}


class ByChance(Workflow):
    """One answer, whose length decides its reward."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        reply = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(len(reply["content"]) % 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory() as scratch:
        weights = random_qwen3(Path(scratch) / "model", "0.6B")
        settings = {
            "model.path": f"{scratch}/model",
            "model.lora.rank": 16,
            "rollout.workflow": f"{__file__}->ByChance",
            "rollout.max_response_length_in_one_turn": NEW_TOKENS,
            "trainer.total_steps": arguments.steps,
            "trainer.test_freq": 1000,
            "trainer.validation.max_tasks": 8,
        }
        run = train(CONF, "larger", [f"astune.{key}={value}" for key, value in settings.items()])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    steps = [line.metrics for line in lines_of(run, "train")]
    seconds = {name: statistics.median(step[f"time/{part}_s"] for step in steps) for part, name in PARTS.items()}
    rows = [(name, f"{value:.1f} s") for name, value in seconds.items()]
    rows += [("a step", f"{sum(seconds.values()):.1f} s"), ("peak memory", f"{peak:.2f} GB")]
    title = f"# {weights / 1e6:.0f} million weights with LoRA of rank 16"
    note = (
        f"The shape of Qwen3-0.6B, random weights, 64 answers of up to {NEW_TOKENS} tokens a step; medians of "
        f"{len(steps)} steps."
    )
    table = markdown_table(("", "measured"), rows)
    data = {"machine": facts, "weights": weights, "steps": steps, "seconds": seconds, "peak_gb": peak}
    write_results("larger", data, "\n\n".join([title, describe(facts), note, table]))
    print(table)
    if peak > BAR_GB:
        raise SystemExit(f"MISSED: {peak:.2f} GB at the peak, {BAR_GB:g} are the bar")


if __name__ == "__main__":
    main()
