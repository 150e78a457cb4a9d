"""Starting a run: the configuration, the user's parts, the run's directory and its backup, then the backbone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from astune.backbone.base import Backbone, find_backbone
from astune.cli._beside import Ready, experiment_of, known_as_run, load_checked, made_ready, telling_the_end
from astune.cli._errors import EXIT_INTERRUPTED
from astune.cli._plan import plan
from astune.config import AstuneConfig, dump, load_config
from astune.config.loader import APPWORLD_TASKS
from astune.launcher import back_up, config_path_of
from astune.launcher.companion import CompanionFlags, companions_of, give_ray_head_a_token, running_ray_head
from astune.launcher.health import why_not_answering
from astune.schema import AstuneError, ConfigError, Faults, collector_at_rest

if TYPE_CHECKING:
    from astune.backbone.base import RunObserver
    from astune.backbone.parts import UserParts
    from astune.runs import RunDirectory


@dataclass(frozen=True)
class Request:
    """What the command line asked for. `run` is the one to resume; None with `resume` is the newest.

    With a `plan` nothing is started; a `full` one has the whole configuration of a cluster's engine.
    """

    conf: Path | None
    overrides: list[str]
    resume: bool = False
    run: Path | None = None
    plan: Literal["short", "full"] | None = None
    companions: CompanionFlags = field(default_factory=CompanionFlags)

    @property
    def title(self) -> str:
        """What it is called before its configuration is read."""
        named = self.conf or self.run
        return named.stem if named is not None else "astune"


@dataclass(frozen=True)
class _Start:
    """What is going to run: `run_path` is an earlier run that goes on, None for a new one."""

    config: AstuneConfig
    conf: Path | None
    run_path: Path | None

    @property
    def base_dir(self) -> Path | None:
        return self.conf.parent if self.conf is not None else None

    @cached_property
    def backbone(self) -> Backbone:
        return find_backbone(self.config.backbone, self.base_dir)

    @property
    def experiment(self) -> Path:
        """The folder that holds the experiment's runs."""
        if self.run_path is not None:
            return self.run_path.parent
        return experiment_of(self.config)


def train_or_plan(request: Request) -> int:
    """Train as the request says, or print what would be done; returns the exit status."""
    console = Console()
    if request.plan is not None:
        return _print_plan(_resolve(request), request.companions, console, in_full=request.plan == "full")
    try:
        with telling_the_end(request.title, console) as tell_of:
            return _run(_resolve(request), request.companions, console, tell_of)
    except KeyboardInterrupt:  # what there is to say of it was said
        return EXIT_INTERRUPTED


def _print_plan(start: _Start, flags: CompanionFlags, console: Console, *, in_full: bool) -> int:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    companions = companions_of(flags, start.config, start.experiment.parent)
    with_tasks = not (companions and _service_of_tasks_is_away(start.config))
    parts = load_checked(start.config, partial(_parts, start, console, with_tasks=with_tasks))
    theirs, engine = start.backbone.full_plan(start.config, parts, base_dir=start.base_dir), start.config.backbone
    memory = []
    if start.backbone.trains:
        from astune.backbone.memory import estimates_of

        memory = estimates_of(start.config)
    for line in plan(start.config, parts, start.run_path, companions, memory, start.base_dir):
        say(line)
    if theirs:
        heading, _, _ = theirs.partition("\n")  # says for which machines it was made
        say(f"  engine     {engine} {heading.removeprefix('# ')}; its whole configuration: --dry-run=full")
    say(f"\nresolved configuration\n{dump(start.config)}")
    if theirs and in_full:
        say(f"{engine}'s configuration\n{theirs}")
    return 0


def _run(start: _Start, flags: CompanionFlags, console: Console, tell_of: Callable[[RunDirectory], None]) -> int:
    config, experiment, backbone = start.config, start.experiment, start.backbone
    if flags.ray:
        give_ray_head_a_token()
    load = partial(_parts, start, console)
    with (
        known_as_run(experiment, console),
        made_ready(
            config,
            flags,
            console,
            load,
            takes_weights=backbone.hands_over_weights,
            few_episodes=not backbone.trains,
            experiment=experiment,
        ) as ready,
    ):
        if flags.ray and (head := running_ray_head()) is not None:
            os.environ["RAY_ADDRESS"] = head.removeprefix("tcp://")
        if backbone.trains or config.engine.type == "in_process":
            silence_progress_bars()
        recorded = _recorded(start, ready, console, tell_of)
        if not backbone.trains:
            from astune.cli._debug import debug_episodes

            work = partial(_work, start, ready.parts)
            if flags.logview:
                from astune.cli._viewer_after import keep_viewer

                debug_episodes(work, ready, recorded, console, partial(keep_viewer, ready, console))
            else:
                debug_episodes(work, ready, recorded, console)
        else:
            _train(start, ready, recorded, console)
    return 0


def _service_of_tasks_is_away(config: AstuneConfig) -> bool:
    reader = config.task_reader
    url = reader.env_service.env_url if reader.type == "env_service" else None
    return url is not None and why_not_answering(f"{url.rstrip('/')}/healthz") is not None


def _parts(start: _Start, console: Console, *, with_tasks: bool = True) -> UserParts:
    """What the user brings; tasks may come from a companion."""
    with console.status("importing the workflow, reading the tasks") as status, collector_at_rest():
        from astune.backbone.parts import load_parts

        config, faults = start.config, Faults()
        parts = faults.collect(lambda: load_parts(config, start.base_dir, status.update, with_tasks=with_tasks))
        faults.collect(lambda: start.backbone.check(config))
        if faults or parts is None:
            raise faults.error()
        start.backbone.check_algorithm(config, parts.algorithm)
        if with_tasks:
            start.backbone.check_tasks(config, parts)
    return parts


def _resolve(request: Request) -> _Start:
    start = _resolved(request)
    if request.resume and not start.backbone.trains:
        raise ConfigError("a debug run is over when its episodes are: it is not resumed", hint="start it again")
    if start.run_path is not None:
        from astune.runs import RunDirectory

        RunDirectory.open(start.run_path).require_resumable()
    return start


def _resolved(request: Request) -> _Start:
    if not request.resume:
        if request.conf is None:
            raise ConfigError("no experiment is named", hint="add --conf FILE.yaml, or try `astune demo`")
        tasks = APPWORLD_TASKS if request.companions.appworld else None
        return _Start(load_config(request.conf, request.overrides, tasks=tasks), request.conf, None)
    from astune.runs import RunDirectory, resolve_run

    if request.conf is not None:
        config = load_config(request.conf, request.overrides)
        named = request.run or config.record_dir / config.experiment_name
        return _Start(config, request.conf, resolve_run(named, record_dir=config.record_dir, prefer="training"))
    run = RunDirectory.open(resolve_run(request.run, prefer="training"))
    conf = config_path_of(run.backup)
    return _Start(load_config(run.config_path, request.overrides), conf, run.path)


def _train(start: _Start, ready: Ready, recorded: AbstractContextManager[RunDirectory], console: Console) -> None:
    from astune.cli._display import open_display
    from astune.cli._report import report_run

    with recorded as run:
        held_out = len(ready.parts.validation_tasks)
        with open_display(start.config, run, validation_tasks=held_out, console=console) as observer:
            ready.run(_work(start, ready.parts, run, observer))
    report_run(run, console)


def _work(start: _Start, parts: UserParts, run: RunDirectory, observer: RunObserver) -> Coroutine[Any, Any, None]:
    return start.backbone.train(start.config, parts, run, observer, base_dir=start.base_dir)


@contextmanager
def _recorded(
    start: _Start, ready: Ready, console: Console, tell_of: Callable[[RunDirectory], None]
) -> Iterator[RunDirectory]:
    """The run's folder, with a copy of everything that made it, and in the end with how it ended."""
    with _run_directory(start) as run, _recording_the_end(run, console):
        tell_of(run)
        ready.companions.belong_to(run.path)
        _say_what_changed(start, run, console)
        resolved = dump(start.config)
        run.save_config(resolved)
        parts = ready.parts
        classes = [parts.workflow, *([] if parts.judge is None else [type(parts.judge)]), *_own_reader(start)]
        back_up(run.backup, config_path=start.conf, resolved=resolved, classes=classes, command=sys.argv)
        yield run


@contextmanager
def _recording_the_end(run: RunDirectory, console: Console) -> Iterator[None]:
    """How the block ends is how the run ended; Ctrl-C is no failure, wherever it comes."""
    try:
        yield
    except KeyboardInterrupt:
        run.finish("interrupted")
        _say_interrupted(run, console)
        raise
    except BaseException as error:
        run.finish("failed", error.message if isinstance(error, AstuneError) else repr(error))
        raise
    run.finish("finished")


def _own_reader(start: _Start) -> list[type]:
    """The class of a task reader of the user's own."""
    from astune.config.imports import import_class, is_reference
    from astune.task_reader import TaskReaderBase

    named = start.config.task_reader.type
    if not is_reference(named):
        return []
    return [import_class(named, key="task_reader.type", base=TaskReaderBase, base_dir=start.base_dir)]


def silence_progress_bars() -> None:
    """Those of transformers, which would run through our own display."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def _run_directory(start: _Start) -> RunDirectory:
    from astune.runs import RunDirectory

    if start.run_path is not None:
        return RunDirectory.open(start.run_path, write=True)
    kind = "training" if start.backbone.trains else "debug"
    return RunDirectory.create(start.config.record_dir, start.config.experiment_name, kind)


def _say_what_changed(start: _Start, run: RunDirectory, console: Console) -> None:
    """A resumed run may go on with other settings; they are named, so that nobody is surprised by a forgotten one."""
    if start.run_path is None or not run.config_path.is_file():
        return
    before = _flat(load_config(run.config_path).model_dump(mode="json"))
    after = _flat(start.config.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            console.print(f"{key}: {before.get(key)} -> {after.get(key)}", markup=False, soft_wrap=True)


def _flat(data: dict[str, object], prefix: str = "astune.") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _say_interrupted(run: RunDirectory, console: Console) -> None:
    checkpoint = run.checkpoints.latest()
    done = f"the checkpoint of step {checkpoint.step} is saved" if checkpoint else f"what was recorded is in {run.path}"
    console.print(f"interrupted: {done}", markup=False, soft_wrap=True)
    if checkpoint is not None:
        console.print(f"go on with: astune --resume {run.path}", markup=False, highlight=False, soft_wrap=True)
