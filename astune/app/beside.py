"""Services around a run: companions, the record for `--kill`, the message at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from astune.app.console import Console
from astune.app.interrupts import Interrupts
from astune.config import AstuneConfig
from astune.launcher.companion import Companion, CompanionFlags, companions_of
from astune.launcher.companions import Companions
from astune.launcher.end_message import missing_gateway, send_end_message, send_start_message
from astune.processes.guarded import GRACE_S
from astune.processes.records import forget, record
from astune.runs import RunDirectory
from astune.schema import Faults, WorkflowError

if TYPE_CHECKING:
    from astune.backbone.parts import UserParts

_STOPPED = "Event loop stopped"
"""Beginning of asyncio's error for a loop that was stopped before its work was done."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything that a run needs: the user's parts, and the running companions."""

    parts: UserParts
    companions: Companions
    interrupts: Interrupts

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, until it ends, a signal comes, or a companion dies.

        Raises:
            KeyboardInterrupt: a signal came.
            CompanionError: a companion died that the work needs.
            WorkflowError: the user's code stopped the event loop, in which everything runs.
        """
        try:
            self.interrupts.run(self.companions.guard(work))
        except RuntimeError as cause:
            if not str(cause).startswith(_STOPPED):
                raise
            judge = f" or {type(self.parts.judge).__name__}" if self.parts.judge is not None else ""
            raise WorkflowError(
                f"{self.parts.workflow.__name__}{judge} stopped the event loop, which all episodes share",
                hint="call no loop.stop(): return from the workflow, or raise an error",
            ) from None


@contextmanager
def made_ready(
    config: AstuneConfig,
    flags: CompanionFlags,
    console: Console,
    load: Callable[[], UserParts],
    *,
    takes_weights: bool,
    few_episodes: bool = False,
    experiment: Path | None = None,
) -> Iterator[Ready]:
    """Load the user's parts and start the companions, in the order that shows mistakes soonest; end them afterwards.
    Raises ConfigError if the engine's URLs, its key or its model are missing; nothing was started.

    Args:
        load: builds the user's parts; called before anything slow starts, unless tasks may come from a companion.
        takes_weights: whether a server started here receives weight updates.
        few_episodes: whether it serves only a few episodes.
        experiment: the folder of the experiment's runs, if it is not the configuration's.
    """
    experiment = experiment or config.record_dir.resolve() / config.experiment_name
    with Interrupts() as interrupts:
        companions = companions_of(flags, config, experiment.parent)
        tasks_may_wait = any(companion.needed for companion in companions)
        early = None if tasks_may_wait else load_checked(config, load)
        if early is None:
            require_engine(config)
        # The model is fetched before a new run's folder hides the experiment's last good one.
        companions += engine_server(config, console, takes_weights=takes_weights, few_episodes=few_episodes)
        with started(companions, experiment, console) as beside:
            yield Ready(early or load(), beside, interrupts)


def load_checked(config: AstuneConfig, load: Callable[[], UserParts]) -> UserParts:
    """Load the user's parts; their errors and those of the engine and the model are reported together."""
    faults = Faults()
    faults.collect(lambda: require_engine(config))
    parts = faults.collect(load)
    if faults or parts is None:
        raise faults.error()
    return parts


def require_engine(config: AstuneConfig) -> None:
    """Raise if the engine's URLs, its key or its model are missing; nothing is downloaded."""
    from astune.backbone.engines import require_addresses, require_model

    faults = Faults()
    faults.collect(lambda: require_addresses(config))
    faults.collect(lambda: require_model(config))
    if faults:
        raise faults.error()


@contextmanager
def known_as_run(experiment: Path, console: Console) -> Iterator[None]:
    """Context in which this process is recorded as a run of the folder `experiment`, so that `--kill` finds it."""
    missing = missing_gateway()
    if missing is not None:
        console.say(missing)
    own = record(os.getpid(), name="run", run=str(experiment))
    try:
        yield
    finally:
        if own is not None:
            forget(own)


@contextmanager
def started(companions: Sequence[Companion], experiment: Path, console: Console) -> Iterator[Companions]:
    """The companions, started, and ended when the block ends."""

    printed: set[str] = set()

    def wait(line: str, passed_s: float) -> None:
        if console.is_terminal:
            status.update(Text(f"{line}, {passed_s:.0f} s"))
        elif line not in printed:
            printed.add(line)
            console.say(line)

    with Companions(companions, experiment) as beside:
        if companions:
            with console.status("starting the companions") as status:
                beside.start(console.say, wait)
        try:
            yield beside
        finally:
            if companions:
                with console.status(f"ending the companions, which may take {GRACE_S:g} s"):
                    beside.close()


def engine_server(
    config: AstuneConfig, console: Console, *, takes_weights: bool, few_episodes: bool
) -> list[Companion]:
    """The server that answers, where we start it; in any case the model's files are looked for, and fetched."""
    if config.engine.type == "openai":
        return []
    from astune.backbone.bases import folders
    from astune.backbone.engines import model_folder
    from astune.backbone.vllm import vllm_server

    with console.status(f"looking for the model {config.model.path}"):
        folder = model_folder(config)
    if config.models:
        with console.status("looking for the models of the policies"):
            folders(config)
    server = vllm_server(config, folder, takes_weights=takes_weights, few_episodes=few_episodes)
    return [] if server is None else [server]


@contextmanager
def telling_the_end(experiment: str, console: Console) -> Iterator[Callable[[RunDirectory], None]]:
    """Send the message at the end of a run, or of a start that failed; a gateway that fails is one line on the console.

    Yields what is called with the run once it has a folder.
    """
    runs: list[RunDirectory] = []
    cause: BaseException | None = None
    try:
        yield runs.append
    except BaseException as failure:
        cause = failure
        raise
    finally:
        why = (str(cause) or type(cause).__name__) if cause is not None else "it ended with an error"
        if runs:
            warnings = send_end_message(runs[0], why)
        else:
            warnings = send_start_message(experiment, why, interrupted=isinstance(cause, KeyboardInterrupt))
        for warning in warnings:
            console.say(warning, style="yellow")
