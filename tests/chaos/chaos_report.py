"""The reports of runs under faults: benchmarks/results/chaos.md, a section a command."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos_stage import Outcome
from paced import TimeSpent


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


def write_effective(
    to: Path, runs: Sequence[TimeSpent], waits_s: float, episodes: int, at_once: int, *, kills_alone: bool
) -> None:
    """Where the time went, a row a cause."""
    total, n_steps = sum(run.all for run in runs), sum(run.n_steps for run in runs)
    n_faults, n_starts = sum(len(run.faults) for run in runs), sum(run.n_starts for run in runs)
    met = Counter(fault.what for run in runs for fault in run.faults)
    spent = {
        "kept progress": [run.kept for run in runs],
        "steps that a fault made longer": [run.excess for run in runs],
        "starting": [run.starting for run in runs],
        "saving": [run.saving for run in runs],
        "steps that were lost, and ending": [run.repeated for run in runs],
    }
    rows = [f"| {name} | {sum(each):,.0f} | {100 * sum(each) / total:.1f} |" for name, each in spent.items()]
    write_section(
        to,
        f"make effective: {'SIGKILLs of the run' if kills_alone else 'faults of every kind'}",
        [
            f"Effective training time ratio: **{100 * sum(run.kept for run in runs) / total:.1f} %**. It is the time "
            "of rollout, training and publishing weights in steps that were kept, each counted for no more than a step "
            "without a fault takes on average, over all time from the first start to the end. What a step that was "
            "resumed within lacks of that was done before the kill, and counts as well.",
            "",
            f"{len(runs)} runs at once, {n_steps} kept steps with {n_faults} faults, {n_starts} starts of a process; "
            f"{episodes} episodes a step, {at_once} at once; the world answers twice an episode, after {waits_s / 2:g} "
            f"to {waits_s:g} s each, and a step without a fault takes "
            f"{sum(run.kept for run in runs) / n_steps:.0f} s. An episode's deadline is twice what the slowest takes, "
            f"{4 * waits_s:g} s. Resumes kept {sum(run.n_resumed for run in runs)} episodes. "
            f"Faults: {', '.join(f'{what} {n}' for what, n in sorted(met.items()))}.",
            "",
            "| time | s | % |",
            "|---|---|---|",
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
