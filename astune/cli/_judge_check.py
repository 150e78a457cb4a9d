"""`astune check judge CONF`: what the judge gives to answers that deserve nothing, as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.table import Table

from astune.app.console import Console
from astune.cli._reported import reported


def check_judge_of(conf: Path, overrides: Sequence[str], *, tasks: int, labelled: Path | None, dry_run: bool) -> int:
    """1 where the judge has a fault, else 0."""
    from astune.app.judge_check import TOLERANCE, check_judge, n_judged
    from astune.config import load_config
    from astune.config.output_file import require_output
    from astune.rubrics import read_examples
    from astune.task_judge import load_judge
    from astune.task_reader import open_task_reader

    config = load_config(conf, list(overrides))
    splits = open_task_reader(config.task_reader, base_dir=conf.parent, experiment=config).read()
    chosen = [*splits.validation, *splits.training][:tasks]
    examples = read_examples(labelled, config.rubrics) if labelled is not None else []
    console = Console()
    if dry_run:
        judge = load_judge(config, base_dir=conf.parent)
        each = 0 if judge is None else n_judged(judge)
        console.say(f"{len(chosen)} tasks with {each} episodes each would be judged")
        return 0
    page = conf.with_name(f"{conf.stem}.judge.html")
    require_output(page)
    with console.status("judging"):
        check = asyncio.run(check_judge(config, conf.parent, chosen, examples))
    table = Table("a wrong answer that", "earns more by", "at most", title=f"the judge of {conf.name}")
    for name, gains in check.gained.items():
        style = "red" if max(gains) > TOLERANCE else ""
        table.add_row(name, f"{fmean(gains):+.2f}", f"{max(gains):+.2f}", style=style)
    lines = [
        f"reference answers that earn more than another task's: {sum(check.distinguished)} "
        f"of {len(check.distinguished)}",
        f"the same episode judged twice: at most {max(check.wavered):.2f} apart",
        f"helper model: {check.usage.tokens / check.episodes:,.0f} tokens and "
        f"{check.usage.calls / check.episodes:.2g} calls an episode",
    ]
    if check.labels is not None:
        rate, (low, high) = check.labels.accuracy, check.labels.accuracy_interval
        lines.insert(2, f"pairs in the labels' order: {rate:.2f} [{low:.2f}, {high:.2f}] of {check.labels.pairs}")
    with reported(page, f"The judge of {conf.name}") as report:
        report.print(table)
        for line in [*lines, *(f"fault: {fault}" for fault in check.faults)]:
            report.say(line)
    return 1 if check.faults else 0


def calibrate_judge_of(conf: Path, overrides: Sequence[str], labelled: Path | None, out: Path, by: str) -> int:
    """Write the calibration of the experiment's first judge, and print what it changes on labels it has not seen."""
    from astune.app.judge_check import labels_of
    from astune.config import load_config
    from astune.config.output_file import require_output
    from astune.rubrics import read_examples
    from astune.schema import ConfigError
    from astune.task_judge.calibration import Calibration, errors

    if labelled is None:
        raise ConfigError("--calibrate needs labels", hint="name them with --labelled FILE.jsonl")
    require_output(out, [labelled])
    config, console = load_config(conf, list(overrides)), Console()
    examples = read_examples(labelled, config.rubrics, by)
    with console.status("judging"):
        labels = asyncio.run(labels_of(config, conf.parent, examples))
    calibration = Calibration.fitted(labels, by)
    calibration.save(out)
    before, after = (fmean(each) for each in zip(*errors(labels, by), strict=True))
    for group, curve in calibration.groups.items():
        console.say(f"{group or 'all'}: {curve.labels} labels")
    console.say(f"rewards are {before:.2f} from the labels, and {after:.2f} calibrated on other labels   {out}")
    return 0
