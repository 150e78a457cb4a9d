"""`astune doctor`: what this machine and environment have, what is wrong, and the line that fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.backbone.base import find_backbone, shipped_backbones
from astune.backbone.findings import Finding
from astune.cli._doctor_machine import (
    cpu,
    disks,
    gpu,
    memory,
    ports,
    sandbox,
)
from astune.cli._doctor_software import engines, managed_vllm, python, services, versions
from astune.cli._errors import EXIT_FAILED
from astune.config import AstuneConfig, load_config

_STYLES = {"ok": "green", "note": "default", "problem": "bold red"}


def examine(conf: Path | None, backbone: str | None, overrides: list[str]) -> int:
    """Print the table; the exit status is 0 where nothing is wrong. Raises ConfigError if the configuration is wrong,
    or there is no such backbone."""
    named = [f"backbone={backbone}"] if backbone is not None else []
    config = load_config(conf, [*overrides, *named])
    found = list(_findings(config, conf))
    console = Console()
    console.print(_table(found))
    problems = [finding for finding in found if finding.state == "problem"]
    if not problems:
        console.print("nothing is wrong", style="green")
        return 0
    console.print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}; what fixes each:", style="bold")
    for problem in problems:
        console.say(f"  {problem.what}: {problem.fix}")
    return EXIT_FAILED


def _findings(config: AstuneConfig, conf: Path | None) -> Iterable[Finding]:
    yield python()
    yield from versions(extras={"local"})
    yield from find_backbone(config.backbone, conf.parent if conf is not None else None).doctor(config)
    yield from services()
    yield cpu()
    yield gpu()
    yield memory()
    yield from disks(config)
    yield from ports()
    yield sandbox(config.sandbox)
    if conf is not None:
        yield from engines(config)
        yield from managed_vllm(config)
        yield from memory_needed(config)


def memory_needed(config: AstuneConfig) -> Iterable[Finding]:
    """Requirements of each backbone for this experiment."""
    from astune.backbone.memory import estimates_of

    for backbone in shipped_backbones():
        if not find_backbone(backbone).trains:
            continue
        for each in estimates_of(config.model_copy(update={"backbone": backbone})):
            yield Finding(f"memory, {backbone}", "note", f"estimated, not measured: {each.summary()}")


def _table(found: list[Finding]) -> Table:
    table = Table("what", "", "found", box=None, pad_edge=False)
    for finding in found:
        table.add_row(finding.what, Text(finding.state, style=_STYLES[finding.state]), Text(finding.detail))
    return table
