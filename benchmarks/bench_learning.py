"""Do real agents learn on this machine, and how fast: `make bench-learning`.

Three seeds of the demo, of the demo sampled with 8 bits, of the same file with all weights, of stories and of the
frozen lake, through the `astune` command and the tutorials' own configurations, beside what simple rules reach; each
trained calculator on problems that its run did not measure; then a training step beside TRL's. Fails where a bar is
missed. A finished seed is kept in `results/learning.json` and not run again unless astune or the tutorial changed or
`--fresh` is given, so that the benchmark can be run piecewise (`--only lake --seeds 1`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astune.backbone.origin import own_sources
from astune.config.tutorials import DEMO, DEMO_SETTINGS, tutorial_file
from astune.runs import RunDirectory
from benchmarks import bench_trl, transfer
from benchmarks.own_runs import lines_of, step_seconds, train
from benchmarks.report import RESULTS, ROOT, describe, machine, markdown_table, write_results
from tutorial.example_frozen_lake import rules as lake_rules
from tutorial.example_frozen_lake.tasks import make_tasks as make_lakes

EPISODES_A_STEP = 64


@dataclass(frozen=True)
class Bar:
    """What a section has to reach in every seed; success rates are those of held-out tasks."""

    name: str
    title: str
    conf: Path
    below_before: float
    reach: float
    stable: bool
    """The last measurement has to reach it as well, not only the best one."""
    within_steps: float | None = None
    """Steps of 64 episodes until it is reached."""
    within_s: float | None = None
    """Seconds of training until it is reached."""
    settings: tuple[str, ...] = ()
    """What is set beside the file."""


CALCULATOR = Bar(
    "calculator",
    "Word problems with a calculator",
    tutorial_file(DEMO),
    below_before=0.05,
    reach=0.90,
    stable=False,
    within_steps=30,
    within_s=300,
)
DEMO_BAR = replace(CALCULATOR, name="demo", title="The demo: the same with adapters", settings=DEMO_SETTINGS)
INT8_BAR = replace(
    DEMO_BAR,
    name="demo_int8",
    title="The demo, sampled with 8 bits",
    settings=(*DEMO_SETTINGS, "engine.quantization=int8"),
)
STORIES = Bar(
    "stories",
    "Stories that no cue word solves",
    ROOT / "tutorial" / "example_calculator" / "stories.yaml",
    below_before=0.05,
    reach=0.85,
    stable=False,
)
LAKE = Bar(
    "lake",
    "Frozen lake",
    ROOT / "tutorial" / "example_frozen_lake" / "frozen_lake.yaml",
    below_before=0.15,
    reach=0.50,
    stable=True,
)
SECTIONS = (DEMO_BAR, INT8_BAR, CALCULATOR, STORIES, LAKE)
RULE_BAR = 0.25
"""No rule of one look may cross more of the held-out lakes."""


def run_seed(bar: Bar, seed: int) -> dict[str, Any]:
    facts = machine()
    run = train(bar.conf, f"{bar.name}_seed{seed}", [f"astune.seed={seed}", *bar.settings])
    found = {"machine": facts, "settings": [*bar.settings], **read_run(run, bar)}
    if bar is not LAKE:
        best = run.checkpoints.best() or run.checkpoints.latest()
        if best is None:
            raise SystemExit(f"{run.path} has no checkpoint")
        found["transfer"] = transfer.measure(bar.conf, str(best.model))
    return found


def rules() -> dict[str, Any]:
    """Return what simple rules reach on the same tasks."""
    lakes = make_lakes("validation", 96)
    kinds = {"one look": lake_rules.ONE_LOOK, "two looks": lake_rules.TWO_LOOKS}
    words = transfer.rules()
    return {
        **dict.fromkeys((DEMO_BAR.name, INT8_BAR.name, CALCULATOR.name, STORIES.name), words),
        LAKE.name: {
            kind: {name: lake_rules.part_crossed(lakes, rule) for name, rule in named.items()}
            for kind, named in kinds.items()
        },
    }


def read_run(run: RunDirectory, bar: Bar) -> dict[str, Any]:
    """What a finished run reached, and when."""
    steps = lines_of(run, "train")
    curve = [(line.step, line.metrics["reward/success_rate"]) for line in lines_of(run, "validation")]
    seconds = [step_seconds(line) for line in steps]
    episodes = [line.metrics["episodes/finished"] for line in steps]
    reached = next((step for step, success in curve if success >= bar.reach), None)
    until = 0 if reached is None else sum(line.step <= reached for line in steps)
    return {
        "before": curve[0][1],
        "best": max(success for _, success in curve),
        "last": curve[-1][1],
        "reached_step": reached,
        "reached_steps_of_64": round(sum(episodes[:until]) / EPISODES_A_STEP, 1),
        "reached_s": round(sum(seconds[:until]), 1),
        "steps": len(steps),
        "training_s": round(sum(seconds), 1),
        "seconds_a_step": round(sum(seconds) / max(1, len(seconds)), 2),
        "held_out_tasks": int(lines_of(run, "validation")[0].metrics["episodes/finished"]),
        "curve": curve,
        "reward": [(line.step, line.metrics.get("reward/mean", 0.0)) for line in steps],
    }


def missed_by(bar: Bar, seed: str, found: dict[str, Any]) -> list[str]:
    where = f"{bar.name}, seed {seed}"
    missed = []
    if found["before"] >= bar.below_before:
        missed.append(f"{where}: {found['before']:.3f} before training, it has to be below {bar.below_before}")
    if found["reached_step"] is None:
        missed.append(f"{where}: {found['best']:.3f} at best, {bar.reach} is the bar")
        return missed
    if bar.stable and found["last"] < bar.reach:
        missed.append(f"{where}: {found['last']:.3f} at the end, {bar.reach} is the bar")
    if bar.within_steps is not None and found["reached_steps_of_64"] > bar.within_steps:
        missed.append(f"{where}: {found['reached_steps_of_64']} steps of 64 episodes, {bar.within_steps} is the bar")
    if bar.within_s is not None and found["reached_s"] > bar.within_s:
        missed.append(f"{where}: {found['reached_s']:.0f} s of training, {bar.within_s:.0f} is the bar")
    return missed


def section_table(bar: Bar, seeds: dict[str, Any]) -> str:
    head = ("seed", "held-out before", "best", "last", f"steps to {bar.reach:.0%}", "seconds to it", "steps",
            "training, s", "s a step", "load at start")  # fmt: skip
    rows = [
        (
            seed,
            f"{found['before']:.3f}",
            f"{found['best']:.3f}",
            f"{found['last']:.3f}",
            "never" if found["reached_step"] is None else found["reached_step"],
            "" if found["reached_step"] is None else f"{found['reached_s']:.0f}",
            found["steps"],
            f"{found['training_s']:.0f}",
            f"{found['seconds_a_step']:.2f}",
            found["machine"]["load_average"],
        )
        for seed, found in sorted(seeds.items())
    ]
    return markdown_table(head, rows)


def plot(data: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SECTIONS), figsize=(3.5 * len(SECTIONS), 4), sharey=True)
    for panel, bar in zip(panels, SECTIONS, strict=True):
        for seed, found in sorted(data.get(bar.name, {}).items()):
            steps, success = zip(*found["curve"], strict=True)
            panel.plot(steps, success, marker="o", markersize=4, label=f"seed {seed}")
        panel.axhline(bar.reach, color="grey", linestyle="--", linewidth=1)
        panel.set(title=bar.title, xlabel="training step", ylim=(-0.02, 1.02))
        panel.grid(alpha=0.3)
        if panel.has_data() and data.get(bar.name):
            panel.legend()
    panels[0].set_ylabel("held-out success")
    figure.tight_layout()
    figure.savefig(RESULTS / "learning.png", dpi=120)
    pyplot.close(figure)


def report(data: dict[str, Any]) -> str:
    parts = ["# Learning on this machine"]
    for bar in SECTIONS:
        seeds = data.get(bar.name, {})
        if not seeds:
            parts += [f"## {bar.title}", "Not measured on these tasks yet.", *beside(bar, data)]
            continue
        any_seed = next(iter(seeds.values()))
        parts += [
            f"## {bar.title}",
            f"`{command_of(bar, any_seed['settings'])} --set astune.seed=N`, {any_seed['held_out_tasks']} held-out "
            "episodes a measurement; seconds are those of training steps, measurements not counted.",
            section_table(bar, seeds),
            describe({name: fact for name, fact in any_seed["machine"].items() if name != "load_average"}),
            *beside(bar, data),
        ]
    if "trl" in data:
        parts += [
            "## A step against TRL",
            f"Seconds a step, TRL to ours: **{data['trl']['ratio']:.1f}x**, with {data['trl']['token_ratio']:.2f}x the "
            "generated tokens; what was compared is in trl.md.",
        ]
    parts.append("![held-out success](learning.png)")
    return "\n\n".join(parts)


def command_of(bar: Bar, settings: list[str]) -> str:
    return " --set ".join([f"astune --conf {bar.conf.relative_to(ROOT)}", *settings])


def beside(bar: Bar, data: dict[str, Any]) -> list[str]:
    """Return what the figures of a section have to be read beside."""
    found = data["rules"][bar.name]
    if bar is LAKE:
        rows = [(kind, name, f"{part:.3f}") for kind, named in found.items() for name, part in named.items()]
        return ["Simple rules on the same lakes:", markdown_table(("reads", "rule", "crosses"), rows)]
    sets = list(next(iter(found.values())))
    rules_table = markdown_table(
        ("rule", *sets), [(rule, *(f"{part:.3f}" for part in parts.values())) for rule, parts in found.items()]
    )
    measured = {seed: run["transfer"] for seed, run in data.get(bar.name, {}).items() if "transfer" in run}
    tables = [transfer.tables(data["untrained"]["transfer"], measured)] if measured else []
    return ["Simple rules on such problems:", rules_table, *tables]


def _fingerprint(conf: Path) -> str:
    """Of the tutorial and of all of astune, taken before a run: what other code reached says nothing of this one."""
    files = sorted([*conf.parent.glob("*.yaml"), *conf.parent.glob("*.py"), *own_sources()])
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _load() -> dict[str, Any]:
    path = RESULTS / "learning.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _save(data: dict[str, Any]) -> None:
    write_results("learning", data, report(data))
    plot(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=(*(bar.name for bar in SECTIONS), "trl"), help="this section alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    arguments = parser.parse_args()
    data = _load()
    data["rules"] = rules()
    missed = [
        f"lake: {name!r} crosses {part:.3f}, {RULE_BAR} is the most that a rule of one look may"
        for name, part in data["rules"][LAKE.name]["one look"].items()
        if part > RULE_BAR
    ]
    if arguments.only not in (LAKE.name, "trl"):
        code = _fingerprint(CALCULATOR.conf)
        if arguments.fresh or data.get("untrained", {}).get("code") != code:
            found = transfer.measure(CALCULATOR.conf, str(bench_trl.base_model()))
            data["untrained"] = {"code": code, "transfer": found}
    for bar in SECTIONS:
        if arguments.only not in (None, bar.name):
            continue
        seeds = data.setdefault(bar.name, {})
        code = _fingerprint(bar.conf)
        for seed in arguments.seeds:
            if arguments.fresh or seeds.get(str(seed), {}).get("code") != code:
                seeds[str(seed)] = {"code": code, **run_seed(bar, seed)}
                _save(data)
            missed += missed_by(bar, str(seed), seeds[str(seed)])
        print(f"\n{bar.title}\n{section_table(bar, seeds)}", flush=True)
    if arguments.only in (None, "trl"):
        code = _fingerprint(bench_trl.CONF)
        if arguments.fresh or data.get("trl", {}).get("code") != code:
            data["trl"] = {"code": code, **bench_trl.compare("half", seed=0, steps=bench_trl.COUNTED_STEPS)}
        missed += data["trl"]["missed"]
        print(f"\nA step against TRL: {data['trl']['ratio']:.1f}x, {data['trl']['token_ratio']:.2f}x the tokens")
    _save(data)
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
