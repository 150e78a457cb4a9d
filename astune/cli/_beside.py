"""What goes on beside a run, as the user sees it: companions, the run's own record, the message at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from astune.config import AstuneConfig
from astune.launcher.companion import Companion
from astune.launcher.companions import Companions
from astune.launcher.end_message import missing_gateway, send_end_message
from astune.launcher.guarded_process import GRACE_S
from astune.launcher.process_registry import forget, record
from astune.runs import RunDirectory


@contextmanager
def beside_run(companions: Sequence[Companion], experiment: Path, console: Console) -> Iterator[Companions]:
    """Start the companions, and end them when the block ends; this process is recorded so that `--kill` finds it.

    Args:
        experiment: the folder of the experiment's runs.
    """
    missing = missing_gateway()
    if missing is not None:
        console.print(missing, markup=False, highlight=False, soft_wrap=True)
    own = record(os.getpid(), name="run", run=str(experiment))
    try:
        with started(companions, experiment, console) as beside:
            yield beside
    finally:
        if own is not None:
            forget(own)


@contextmanager
def started(companions: Sequence[Companion], experiment: Path, console: Console) -> Iterator[Companions]:
    """The companions, started, and ended when the block ends."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with Companions(companions, experiment) as beside:
        if companions:
            with console.status("starting the companions") as status:
                beside.start(say, status.update)
        try:
            yield beside
        finally:
            if companions:
                with console.status(f"ending the companions, which may take {GRACE_S:g} s"):
                    beside.close()


def experiment_of(config: AstuneConfig) -> Path:
    """The folder that holds the experiment's runs."""
    return config.record_dir.resolve() / config.experiment_name


def engine_server(config: AstuneConfig, console: Console, *, takes_weights: bool) -> list[Companion]:
    """The server that answers, where we start it; in any case the model's files are looked for, and fetched."""
    if config.engine.type == "openai":
        return []
    from astune.backbone.engines import model_folder
    from astune.backbone.vllm import vllm_server

    with console.status(f"looking for the model {config.model.path}"):
        folder = model_folder(config)
    server = vllm_server(config, folder, takes_weights=takes_weights)
    return [] if server is None else [server]


@contextmanager
def telling_the_end(run: RunDirectory, console: Console) -> Iterator[None]:
    """Send the message at the end of a run; a gateway that fails is one line on the console."""
    failure = "it ended with an error"
    try:
        yield
    except BaseException as cause:
        failure = str(cause) or type(cause).__name__
        raise
    finally:
        for warning in send_end_message(run, failure):
            console.print(warning, style="yellow", markup=False, highlight=False, soft_wrap=True)
