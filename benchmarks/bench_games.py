"""What agents of games and teams learn on this machine: `make bench-games`.

    duel    one werewolf against villagers played by rules, three seeds
    both    the werewolf and the villagers train against each other, as two adapters on one model
    team    a planner and a solver: both trained, and each of them alone

Through the `astune` command and the tutorials' own configurations. Rates are those of held-out games before and after
training, with 95 % intervals. A finished run is kept in `results/games.json` and not run again unless `--fresh` is
given, so that the benchmark can be run piecewise (`--only duel/1 team/solver`).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from astune.runs import RunDirectory
from astune.runs.interval import wilson_interval
from benchmarks.own_runs import lines_of, step_seconds, train
from benchmarks.report import RESULTS, ROOT, describe, machine, markdown_table, success_rate, write_results

WEREWOLVES = ROOT / "tutorial" / "example_werewolves"
TEAM = ROOT / "tutorial" / "example_planner_solver" / "planner_solver.yaml"
PICTURE = ROOT / "docs" / "assets" / "werewolves-both-sides.svg"
WITHIN_S = 900
"""A seed of the duel may take as long."""
SUCCESS = {"success": "reward/success_rate"}
SIDES = {"werewolf": "episodes/wolves_win_mean", "villagers": "episodes/village_wins_mean"}


class Plan(NamedTuple):
    """A run: its configuration, what it overrides, and the held-out rates that are read from it."""

    conf: Path
    overrides: tuple[str, ...]
    rates: Mapping[str, str]


def _team(*trained: str) -> Plan:
    measured = ("astune.trainer.test_freq=25", "astune.task_reader.params.validation=192")
    return Plan(TEAM, (f"astune.rollout.params.trained=[{','.join(trained)}]", *measured), SUCCESS)


PLANS = {
    **{f"duel/{seed}": Plan(WEREWOLVES / "duel.yaml", (f"astune.seed={seed}",), SUCCESS) for seed in range(3)},
    "both/0": Plan(WEREWOLVES / "both.yaml", (), SIDES),
    "team/planner": _team("planner"),
    "team/solver": _team("solver"),
    "team/planner and solver": _team("planner", "solver"),
}


def run(name: str, plan: Plan) -> dict[str, Any]:
    facts, before = machine(), resource.getrusage(resource.RUSAGE_CHILDREN)
    directory = train(plan.conf, "games_" + name.replace("/", "_").replace(" ", "_"), plan.overrides)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"machine": facts, "cpu_s": round(cpu_s), **read_run(directory, plan.rates)}


def read_run(directory: RunDirectory, rates: Mapping[str, str]) -> dict[str, Any]:
    """What a finished run reached; `curves` holds (step, games won, games) by rate."""
    steps, measured = lines_of(directory, "train"), lines_of(directory, "validation")
    curves = {
        name: [
            (line.step, round(line.metrics[key] * line.metrics["episodes/finished"]), line.metrics["episodes/finished"])
            for line in measured
        ]
        for name, key in rates.items()
    }
    return {
        "steps": len(steps),
        "training_s": round(sum(step_seconds(line) for line in steps)),
        "games": round(sum(line.metrics["episodes/finished"] for line in steps)),
        "curves": curves,
    }


def rose_clearly(curve: list[tuple[int, int, int]]) -> bool:
    """Whether the intervals before and after do not meet."""
    (_, won_before, before), *_, (_, won_after, after) = curve
    return wilson_interval(won_before, before)[1] < wilson_interval(won_after, after)[0]


def missed_by(name: str, found: dict[str, Any]) -> list[str]:
    if not name.startswith("duel"):
        return []
    missed = [] if rose_clearly(found["curves"]["success"]) else [f"{name}: the intervals before and after meet"]
    if found["training_s"] > WITHIN_S:
        missed.append(f"{name}: {found['training_s']} s of training, {WITHIN_S} is the bar")
    return missed


def table(data: dict[str, Any]) -> str:
    head = ("run", "won", "before", "after", "steps", "games", "training, s", "processor, s", "load at start")
    rows = [
        (
            name,
            rate,
            success_rate(*curve[0][1:]),
            success_rate(*curve[-1][1:]),
            found["steps"],
            found["games"],
            found["training_s"],
            found["cpu_s"],
            found["machine"]["load_average"],
        )
        for name, found in sorted(data.items())
        for rate, curve in found["curves"].items()
    ]
    return markdown_table(head, rows)


def draw(curves: Mapping[str, list[tuple[int, int, int]]]) -> None:
    """Both sides' held-out wins by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 3.5))
    for name, curve in curves.items():
        steps, rates = [step for step, _, _ in curve], [won / games for _, won, games in curve]
        lows, highs = zip(*(wilson_interval(won, games) for _, won, games in curve), strict=True)
        panel.plot(steps, rates, marker="o", markersize=4, label=f"{name} won")
        panel.fill_between(steps, lows, highs, alpha=0.2)
    panel.set(xlabel="training step", ylabel="held-out games", ylim=(-0.02, 1.02))
    panel.grid(alpha=0.3)
    panel.legend()
    figure.tight_layout()
    figure.savefig(PICTURE)
    pyplot.close(figure)


def save(data: dict[str, Any]) -> None:
    last = next(reversed(data.values()))["machine"]
    facts = describe({name: fact for name, fact in last.items() if name not in ("date", "load_average")})
    write_results("games", data, f"# What agents of games and teams learn\n\n{facts}\n\n{table(data)}")
    for name, found in data.items():
        if name.startswith("both"):
            draw(found["curves"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PLANS), nargs="+", default=list(PLANS), help="these runs")
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    arguments = parser.parse_args()
    kept = RESULTS / "games.json"
    data: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    missed: list[str] = []
    for name in arguments.only:
        if arguments.fresh or name not in data:
            data[name] = run(name, PLANS[name])
            save(data)
        missed += missed_by(name, data[name])
    print(f"\n{table(data)}")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
