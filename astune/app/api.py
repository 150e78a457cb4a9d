"""`astune.train`, `astune.evaluate`, `astune.debug` and `astune.resume`: what the command line does, as functions.

They work in scripts and in notebooks, whose event loop is already running. During a run, Ctrl-C ends it cleanly, with a
checkpoint, and raises KeyboardInterrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from astune.app.console import Console
from astune.app.debugging import Episodes, require_one_without_error, shown_tracebacks
from astune.app.evaluation import Evaluation, measure, with_model
from astune.app.execution import prepared
from astune.app.experiment import Experiment, Source
from astune.app.openmp import let_openmp_spin_briefly
from astune.app.run import Run
from astune.launcher.companion import CompanionFlags
from astune.launcher.env_file import read_env_file


def train(
    config: Source,
    *,
    with_: Sequence[str] = (),
    with_ray: bool = False,
    with_appworld: bool = False,
    with_logview: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train the experiment in `config`: a YAML file, a mapping as in one, or an `AstuneConfig`.

        run = astune.train("my_agent.yaml", trainer={"total_steps": 20})
        run = astune.train({"rollout": {"workflow": MyAgent}, "task_reader": {"type": MyTasks}})

    Args:
        with_: companion services to start first, each `NAME=COMMAND`, or the NAME of one in `companions`.
        with_ray: start a Ray head first.
        with_appworld: start AppWorld's environment service first.
        with_logview: also start the log viewer.
        quiet: print nothing.
        overrides: values by key; a section's is a mapping, `**{"trainer.total_steps": 20}` names one key. Where a key
            names a class, its value may be the class.

    Raises:
        AstuneError: the run could not start, or failed; what was recorded of it is on disk.
    """
    flags = CompanionFlags(tuple(with_), with_ray, with_appworld, with_logview)
    _begin()
    return execute(Experiment.of(config, values=overrides, appworld=with_appworld), flags, _console(quiet))


def resume(
    run: str | PathLike[str] | Run | None = None,
    *,
    with_: Sequence[str] = (),
    with_ray: bool = False,
    with_appworld: bool = False,
    with_logview: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Resume a run from its newest checkpoint; None is the newest run of all.

    Args:
        run: a run, its folder, or an experiment's folder or name for its newest run.
        overrides: settings that it resumes with, as in `train`.

    Raises:
        AstuneError: it cannot be resumed, or failed.
    """
    flags = CompanionFlags(tuple(with_), with_ray, with_appworld, with_logview)
    _begin()
    named = run.path if isinstance(run, Run) else run
    return execute(Experiment.resumed(named, values=overrides), flags, _console(quiet))


def debug(
    config: Source,
    *,
    with_: Sequence[str] = (),
    with_ray: bool = False,
    with_appworld: bool = False,
    with_logview: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Run a few episodes of the experiment and train nothing; a line for each, and tracebacks of those that fail.

    Arguments are those of `train`. In a script user code runs in the calling thread, where a debugger stops in it.

    Raises:
        AstuneError: every episode ended in an error, or the run could not start.
    """
    flags = CompanionFlags(tuple(with_), with_ray, with_appworld, with_logview)
    _begin()
    values = {**overrides, "backbone": "debug"}
    return execute(Experiment.of(config, values=values, appworld=with_appworld), flags, _console(quiet))


def evaluate(
    config: Source,
    *,
    model: str | PathLike[str] | Run | Mapping[str, Any] | None = None,
    with_: Sequence[str] = (),
    with_ray: bool = False,
    with_appworld: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Measure a model on the validation tasks of the experiment in `config`; nothing is trained or recorded.

    Args:
        model: a model as in `model.path`, or a run for its best model; a mapping overrides the section `model`.

    Raises:
        AstuneError: there are no validation tasks, or something that the experiment needs is missing.
    """
    flags = CompanionFlags(tuple(with_), with_ray, with_appworld)
    _begin()
    if isinstance(model, Mapping):
        overrides["model"], model = model, None
    experiment = Experiment.of(config, values=overrides, appworld=with_appworld)
    if model is not None:
        experiment = Experiment(with_model(experiment.config, model), experiment.conf)
    return measure(experiment, flags, _console(quiet))


def _begin() -> None:
    """Prepare the process as the command line does."""
    let_openmp_spin_briefly()
    read_env_file(Path.cwd())


def _console(quiet: bool) -> Console:
    """Return the console; plain lines if there is no terminal, as in a notebook, where rich would require widgets."""
    return Console(quiet=quiet, force_jupyter=False)


def execute(experiment: Experiment, flags: CompanionFlags, console: Console) -> Run:
    """Run an experiment to its end, a debug run as well; the run that it wrote. Raises AstuneError if it could not
    start, or failed."""
    with prepared(experiment.config.experiment_name, lambda: experiment, flags, console) as job:
        if experiment.backbone.trains:
            return Run(job.train(console).path)
        observer = Episodes(console)
        with job.recorded as directory, shown_tracebacks(console):
            observer.on_note(f"debug run {directory.path}")
            job.work(directory, observer)
            require_one_without_error(observer.episodes, console)
        return Run(directory.path)
