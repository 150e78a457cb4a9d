"""What goes on beside a run, as the user sees it: companions, the run's own record, the message at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from astune.cli._interrupt import Interrupts
from astune.config import AstuneConfig
from astune.launcher.companion import Companion, CompanionFlags, companions_of
from astune.launcher.companions import Companions
from astune.launcher.end_message import missing_gateway, send_end_message
from astune.launcher.guarded_process import GRACE_S
from astune.launcher.process_registry import forget, record
from astune.runs import RunDirectory

if TYPE_CHECKING:
    from astune.backbone.parts import UserParts


@dataclass(frozen=True, slots=True)
class Ready:
    """All that work needs: what the user brings, and the companions that run."""

    parts: UserParts
    companions: Companions
    interrupts: Interrupts

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, until it ends, a signal comes, or a companion dies.

        Raises:
            KeyboardInterrupt: a signal came.
            CompanionError: a companion died that the work needs.
        """
        self.interrupts.run(self.companions.guard(work))


@contextmanager
def made_ready(
    config: AstuneConfig,
    flags: CompanionFlags,
    console: Console,
    load: Callable[[], UserParts],
    *,
    takes_weights: bool,
    experiment: Path | None = None,
) -> Iterator[Ready]:
    """Load what the user brings and start the companions, in the order in which mistakes show soonest; end them after.

    Args:
        load: makes the user's parts; called before anything slow starts, unless tasks may come from a companion.
        takes_weights: whether a server that we start is trained with.
        experiment: the folder of the experiment's runs, where it is not the configuration's.

    Raises:
        ConfigError: the engine's addresses or its key are not there, before anything else.
    """
    from astune.backbone.engines import require_addresses

    experiment = experiment or experiment_of(config)
    require_addresses(config)
    with Interrupts() as interrupts:
        companions = companions_of(flags, config, experiment.parent)
        early = None if companions else load()
        # The model is looked for before a new run's folder hides the experiment's last good one.
        companions += engine_server(config, console, takes_weights=takes_weights)
        with started(companions, experiment, console) as beside:
            yield Ready(early or load(), beside, interrupts)


@contextmanager
def known_as_run(experiment: Path, console: Console) -> Iterator[None]:
    """This process is recorded as a run while the block lasts, so that `--kill` finds it.

    Args:
        experiment: the folder of the experiment's runs.
    """
    missing = missing_gateway()
    if missing is not None:
        console.print(missing, markup=False, highlight=False, soft_wrap=True)
    own = record(os.getpid(), name="run", run=str(experiment))
    try:
        yield
    finally:
        if own is not None:
            forget(own)


@contextmanager
def started(companions: Sequence[Companion], experiment: Path, console: Console) -> Iterator[Companions]:
    """The companions, started, and ended when the block ends."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    said: set[str] = set()

    def wait(line: str, passed_s: float) -> None:
        if console.is_terminal:
            status.update(Text(f"{line}, {passed_s:.0f} s"))
        elif line not in said:
            said.add(line)
            say(line)

    with Companions(companions, experiment) as beside:
        if companions:
            with console.status("starting the companions") as status:
                beside.start(say, wait)
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
