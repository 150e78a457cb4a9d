"""The table of docs/en/backbones.md: a row for each backbone that an e2e target has trained with.

    python scripts/backbone_table.py docs/en/backbones.md launcher_record/calculator/RUN

A row that is there for the same backbone is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean, median

from astune.config.loader import load_config
from astune.runs import RunDirectory, balance_of
from astune.schema import TokenBalance

BEGIN, END = "<!-- runs: written by scripts/backbone_table.py -->", "<!-- end of runs -->"
_HEAD = [
    "| backbone | what ran | steps | s a step: all | rollout | train | sync | reward, first two → last two steps "
    "| correlation, lowest | tokens sampled | trained | dropped |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
]
_PHASES = ("rollout", "train", "sync")


def row_of(run: RunDirectory) -> str:
    """The table's row of a finished run."""
    config = load_config(run.config_path)
    steps = [line.metrics for line in run.metrics() if line.kind == "train"]
    seconds = [[step.get(f"time/{phase}_s", 0.0) for phase in _PHASES] for step in steps]
    rewards = [step["reward/mean"] for step in steps]
    lowest = min(step["train/engine_correlation"] for step in steps if "train/engine_correlation" in step)
    balance = sum((balance_of(step) for step in steps), TokenBalance())
    trainer, rollout = config.trainer, config.rollout
    cells = [
        f"`{config.backbone}`",
        f"{config.experiment_name}, {trainer.tasks_per_step} tasks x {rollout.num_repeat} episodes",
        str(len(steps)),
        f"{median(map(sum, seconds)):.0f}",
        *(f"{median(column):.1f}" for column in zip(*seconds, strict=True)),
        f"{fmean(rewards[:2]):.2f} → {fmean(rewards[-2:]):.2f}",
        f"{lowest:.4f}",
        *(f"{tokens:,}" for tokens in (balance.sampled, balance.trained, balance.dropped.total())),
    ]
    return f"| {' | '.join(cells)} |"


def put(page: Path, row: str) -> None:
    """Write the row into the page's table."""
    before, _, rest = page.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    backbone = row.split("|")[1]
    rows = [line for line in table.strip().splitlines()[len(_HEAD) :] if line.split("|")[1] != backbone]
    lines = [BEGIN, "", *_HEAD, *sorted([*rows, row]), "", END]
    page.write_text(before + "\n".join(lines) + after)


if __name__ == "__main__":
    put(Path(sys.argv[1]), row_of(RunDirectory.open(Path(sys.argv[2]))))
