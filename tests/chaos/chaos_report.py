"""The reports of runs under faults: benchmarks/results/chaos.md, a section a command."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos_stage import Outcome


def write_chaos(to: Path, outcomes: Sequence[Outcome], failures: Mapping[int, str]) -> None:
    """The table of faults: how many runs met each, and how they ended."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for fault in outcome.plan.faults():
            by_fault[fault].append(outcome)
    n, starts = len(outcomes) + len(failures), [outcome.starts for outcome in outcomes]
    sampled = sum(outcome.sampled_tokens for outcome in outcomes)
    dropped = sum(outcome.dropped_tokens for outcome in outcomes)
    rows = [
        f"| {fault} | {len(met)} | {sum(one.starts > 1 for one in met)} | {max(one.seconds for one in met):.1f} |"
        for fault, met in sorted(by_fault.items())
    ]
    write_section(
        to,
        "make chaos",
        [
            f"{n} runs with seeded faults at one to three boundaries each; {len(outcomes)} ended whole, "
            f"{len(failures)} did not{'' if not failures else ': seeds ' + ', '.join(map(str, sorted(failures)))}.",
            "",
            f"{sum(number > 1 for number in starts)} had to be started more than once, "
            f"at most {max(starts, default=0)} times. Of {sampled:,} sampled tokens in kept steps {dropped:,} were "
            "dropped with a reason, and each is in one account.",
            "",
            "| fault | runs that met it | of them resumed | longest, s |",
            "|---|---|---|---|",
            *rows,
        ],
    )


def write_section(to: Path, title: str, lines: Sequence[str]) -> None:
    """Replace the section of this title in a page, or add it."""
    page = to.read_text() if to.exists() else "# Runs under faults\n\nWritten by the commands in the headings.\n"
    section = "\n".join([f"## `{title}`", "", *lines, ""])
    parts = re.split(r"(?m)^(?=## )", page)
    kept = [part.rstrip() + "\n" for part in parts if not part.startswith(f"## `{title}`")]
    to.write_text("\n".join([*kept, section]))
