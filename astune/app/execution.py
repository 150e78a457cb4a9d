"""Execution of a run from its companions to its end, shared by the command line and the Python API."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from astune.app.beside import Ready, known_as_run, made_ready, telling_the_end
from astune.app.console import Console
from astune.app.display import open_display
from astune.app.experiment import Experiment, changes
from astune.config.saved import dump_saved, load_saved
from astune.launcher import back_up
from astune.launcher.companion import CompanionFlags, give_ray_head_a_token, running_ray_head
from astune.schema import AstuneError, ConfigError, RunStoreError

if TYPE_CHECKING:
    from astune.backbone.base import RunObserver
    from astune.runs import RunDirectory
    from astune.trackers import EndStatus, Trackers


@dataclass(frozen=True)
class Job:
    """An experiment whose parts are loaded and whose companions run; `recorded` is its folder during the run."""

    experiment: Experiment
    ready: Ready
    recorded: AbstractContextManager[RunDirectory]

    def work(self, run: RunDirectory, observer: RunObserver) -> None:
        """Let the backbone execute the run, until it ends, a signal arrives, or a companion dies."""
        experiment = self.experiment
        self.ready.run(
            experiment.backbone.train(experiment.config, self.ready.parts, run, observer, base_dir=experiment.base_dir)
        )

    def train(self, console: Console) -> RunDirectory:
        """The whole run, with the live display; returns its folder, read-only."""
        n_held_out = len(self.ready.parts.validation_tasks)
        with self.recorded as run:
            config = self.experiment.config
            with open_display(config, run, validation_tasks=n_held_out, console=console) as observer:
                self.work(run, observer)
        return run


@contextmanager
def prepared(title: str, read: Callable[[], Experiment], flags: CompanionFlags, console: Console) -> Iterator[Job]:
    """Read the experiment, load the user's parts and start the companions; end them when the block ends.

    However it ends, the message about the end is sent.

    Args:
        title: name of the experiment, for the message about a start that failed.
    """
    with telling_the_end(title, console) as tell_of, _with_companions(read(), flags, console, tell_of) as job:
        yield job


@contextmanager
def _with_companions(
    experiment: Experiment, flags: CompanionFlags, console: Console, tell_of: Callable[[RunDirectory], None]
) -> Iterator[Job]:
    config, backbone = experiment.config, experiment.backbone
    if flags.ray:
        give_ray_head_a_token()
    with (
        known_as_run(experiment.folder, console),
        made_ready(
            config,
            flags,
            console,
            partial(experiment.load_parts, console),
            takes_weights=backbone.hands_over_weights,
            few_episodes=not backbone.trains,
            experiment=experiment.folder,
        ) as ready,
    ):
        if flags.ray and (head := running_ray_head()) is not None:
            os.environ["RAY_ADDRESS"] = head.removeprefix("tcp://")
        if backbone.trains or config.engine.type == "in_process":
            silence_progress_bars()
        yield Job(experiment, ready, _recorded(experiment, ready, console, tell_of))


def silence_progress_bars() -> None:
    """Switch off those of transformers, which would run through our own display."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


@contextmanager
def _recorded(
    experiment: Experiment, ready: Ready, console: Console, tell_of: Callable[[RunDirectory], None]
) -> Iterator[RunDirectory]:
    """The run's folder, with a copy of everything that made it, and in the end with how it ended."""
    with (
        _run_directory(experiment) as run,
        _recording_the_end(run, _trackers(experiment, ready, run, console), console),
    ):
        tell_of(run)
        ready.companions.belong_to(run.path)
        _show_changes(experiment, run, console)
        resolved = dump_saved(experiment.config)
        classes = _classes_of(experiment, ready)
        with _saved_settings(run, resolved):
            back_up(run.backup, config_path=experiment.conf, resolved=resolved, classes=classes, command=sys.argv)
            yield run


@contextmanager
def _saved_settings(run: RunDirectory, settings: str) -> Iterator[None]:
    """Save the run's settings, and put earlier ones back where the run fails before it recorded anything with these.

    Else one resume with a setting that cannot be changed would keep every later one from starting.
    """
    earlier = run.config_path.read_text(encoding="utf-8") if run.config_path.is_file() else None
    measured = {(line.time, line.step) for line in run.metrics()}
    run.save_config(settings)
    try:
        yield
    except Exception:
        if earlier is not None and {(line.time, line.step) for line in run.metrics()} <= measured:
            run.save_config(earlier)
        raise


@contextmanager
def _recording_the_end(run: RunDirectory, trackers: Trackers, console: Console) -> Iterator[None]:
    """Record the run's end according to how the block ends; Ctrl-C is not a failure."""

    def end(status: EndStatus, message: str = "") -> None:
        try:
            run.finish(status, message)
        except RunStoreError as failure:
            if status == "finished":
                raise
            console.say(
                f"how the run ended could not be recorded: {failure.message}"
            )  # the error that ended it is raised
        if status == "interrupted":
            _show_interrupted(run, console)
        with console.status("trackers send what is left"):
            trackers.finish(status)

    try:
        yield
    except KeyboardInterrupt:
        end("interrupted")
        raise
    except BaseException as error:
        end("failed", error.message if isinstance(error, AstuneError) else repr(error))
        raise
    end("finished")


def _trackers(experiment: Experiment, ready: Ready, run: RunDirectory, console: Console) -> Trackers:
    """The trackers of the run, which follow its metrics from when its log of them is opened."""
    from astune.trackers import TrackedRun, Trackers

    config, info = experiment.config, run.info()
    tracked = TrackedRun(info.run_id, run.path, config.project_name, info.experiment)
    run.follower = trackers = Trackers(ready.parts.trackers, tracked, config, console.say)
    return trackers


def _classes_of(experiment: Experiment, ready: Ready) -> list[type]:
    """Return the user's classes, whose sources are copied into the backup."""
    from astune.config.imports import import_class, is_reference
    from astune.task_reader import TaskReaderBase

    parts, reader = ready.parts, experiment.config.task_reader.type
    classes: list[type] = [parts.workflow, type(parts.algorithm), type(experiment.backbone)]
    classes += [type(named.tracker) for named in parts.trackers]
    if parts.engine is not None:
        classes.append(parts.engine)
    if parts.judge is not None:
        classes.append(type(parts.judge))
    if is_reference(reader):
        classes.append(import_class(reader, key="task_reader.type", base=TaskReaderBase, base_dir=experiment.base_dir))
    return classes


def _run_directory(experiment: Experiment) -> RunDirectory:
    from astune.runs import RunDirectory

    if experiment.run_path is not None:
        return RunDirectory.open(experiment.run_path, write=True)
    config = experiment.config
    kind = "training" if experiment.backbone.trains else "debug"
    return RunDirectory.create(config.record_dir, config.experiment_name, kind)


def _show_changes(experiment: Experiment, run: RunDirectory, console: Console) -> None:
    """Print the settings that a resumed run has changed, so that none is changed unnoticed."""
    if experiment.run_path is None or not run.config_path.is_file():
        return
    try:
        earlier = load_saved(run.config_path)
    except ConfigError as damage:  # resumed with --conf, which replaces it
        console.say(f"which settings changed is not known: {damage.message}")
        return
    for key, before, after in changes(earlier, experiment.config):
        console.say(f"{key}: {before} -> {after}")


def _show_interrupted(run: RunDirectory, console: Console) -> None:
    checkpoint = run.checkpoints.latest()
    done = f"the checkpoint of step {checkpoint.step} is saved" if checkpoint else f"what was recorded is in {run.path}"
    console.say(f"interrupted: {done}")
    if checkpoint is not None:
        console.say(f"continue with: astune --resume {run.path}")
