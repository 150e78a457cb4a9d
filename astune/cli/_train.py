"""The command line of a run: turns its flags into an experiment, and prints what surrounds it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from astune.app.beside import load_checked
from astune.app.console import Console
from astune.app.execution import prepared
from astune.app.experiment import Experiment
from astune.cli._errors import EXIT_INTERRUPTED
from astune.config import AstuneConfig, dump
from astune.launcher.companion import CompanionFlags, companions_of
from astune.launcher.health import why_not_answering
from astune.schema import ConfigError


@dataclass(frozen=True)
class Request:
    """Options of the command line. `run` is the one to resume; None with `resume` is the newest.

    With a `plan` nothing is started; a `full` one has the whole configuration of a cluster's engine.
    """

    conf: Path | None
    overrides: list[str]
    resume: bool = False
    run: Path | None = None
    plan: Literal["short", "full"] | None = None
    companions: CompanionFlags = field(default_factory=CompanionFlags)
    values: dict[str, Any] | None = None
    """The experiment itself, where flags describe it and not a file."""
    over: dict[str, Any] | None = None
    """Values that go before those of the file, for a command that says how its experiment is run."""

    @property
    def title(self) -> str:
        """Name of the experiment before its configuration is read."""
        named = self.conf or self.run
        return named.stem if named is not None else "astune"

    def experiment(self) -> Experiment:
        """The experiment, with its configuration read and checked."""
        if self.resume:
            return Experiment.resumed(self.run, self.conf, self.overrides)
        if self.values is not None:
            return Experiment.of(self.values, self.overrides)
        if self.conf is None:
            raise ConfigError("no experiment is named", hint="add --conf FILE.yaml, or try `astune demo`")
        return Experiment.of(self.conf, self.overrides, self.over, appworld=self.companions.appworld)


def train_or_plan(request: Request) -> int:
    """Train as the request says, or print what would be done; returns the exit status."""
    console = Console()
    if request.plan is not None:
        return _print_plan(request.experiment(), request.companions, console, in_full=request.plan == "full")
    try:
        with prepared(request.title, request.experiment, request.companions, console) as job:
            if job.experiment.backbone.trains:
                from astune.cli._report import report_run

                report_run(job.train(console), console)
            else:
                from astune.cli._debug import debug_episodes

                debug_episodes(job, console, with_viewer=request.companions.logview)
    except KeyboardInterrupt:  # the run has reported it
        return EXIT_INTERRUPTED
    return 0


def _print_plan(experiment: Experiment, flags: CompanionFlags, console: Console, *, in_full: bool) -> int:
    config, backbone, memory = experiment.config, experiment.backbone, []
    companions = companions_of(flags, config, experiment.folder.parent)
    costly = config.task_reader.type == "data_generation"
    with_tasks = not costly and not (companions and _service_of_tasks_is_away(config))
    parts = load_checked(config, partial(experiment.load_parts, console, with_tasks=with_tasks))
    engine_plan = backbone.full_plan(config, parts, base_dir=experiment.base_dir)
    if backbone.trains:
        from astune.backbone.memory import estimates_of

        memory = estimates_of(config)
    starts_ray = any(companion.name == "ray" for companion in companions)
    rows = backbone.plan(config, parts, run_path=experiment.run_path, memory=memory, starts_ray=starts_ray)
    rows += [("companion", f"{companion.name}: {shlex.join(companion.command)}") for companion in companions]
    if config.engine.type == "vllm" and not config.engine.base_url:
        rows.append(("companion", f"vllm: a server of {config.model.path} on port {config.engine.vllm.port}"))
    for line in ("plan", *(f"  {label:<10} {text}" for label, text in rows)):
        console.say(line)
    if engine_plan:
        heading, _, _ = engine_plan.partition("\n")  # says for which machines it was made
        console.say(
            f"  engine     {config.backbone} {heading.removeprefix('# ')}; its whole configuration: --dry-run=full"
        )
    console.say(f"\nresolved configuration\n{dump(config)}")
    if engine_plan and in_full:
        console.say(f"{config.backbone}'s configuration\n{engine_plan}")
    return 0


def _service_of_tasks_is_away(config: AstuneConfig) -> bool:
    reader = config.task_reader
    url = reader.env_service.env_url if reader.type == "env_service" else None
    return url is not None and why_not_answering(f"{url.rstrip('/')}/healthz") is not None
