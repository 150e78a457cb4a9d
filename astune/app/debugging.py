"""Output of a debug run: where the user's code failed, and a line per episode."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from astune.app.console import Console
from astune.backbone.base import RunObserver
from astune.schema import AstuneError, Episode, Task, causes_of, is_users


class Episodes(RunObserver):
    """Collects the episodes of a debug run and prints a line for each."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._ended: dict[str, Episode | None] = {}

    @property
    def episodes(self) -> list[Episode]:
        """The episodes that have ended, in the order in which they began."""
        return [episode for episode in self._ended.values() if episode is not None]

    def show(self, episode: Episode) -> None:
        """Print an episode that has ended."""
        reward = "no reward" if episode.reward is None else f"reward {episode.reward.raw_reward:g}"
        error = f": {episode.error}" if episode.error else ""
        self.on_note(f"episode {episode.episode_id}: {episode.status}, {reward}{error}")

    def on_started(self, episode_id: str, task: Task) -> None:
        self._ended[episode_id] = None

    def on_finished(self, episode: Episode) -> None:
        self._ended[episode.episode_id] = episode
        self.show(episode)

    def on_attempt_failed(self, episode: Episode) -> None:
        self.on_finished(episode)

    def on_note(self, line: str) -> None:
        self.console.say(line)


def require_one_without_error(episodes: Sequence[Episode], console: Console) -> None:
    """Raise AstuneError where every episode ended in an error; with the first of them where nothing was printed."""
    if any(episode.status != "error" for episode in episodes):
        return
    if console.quiet and episodes:
        raise AstuneError(f"every episode ended in an error; the first: {episodes[0].error}")
    raise AstuneError("every episode ended in an error", hint="the error of each is shown above")


class _Tracebacks(logging.Handler):
    """Printer of failures without line wrapping, which would misplace the marks below a line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        text = users_traceback(failure) if failure is not None else record.getMessage()
        if text:
            self._console.say(text)


@contextmanager
def shown_tracebacks(console: Console) -> Iterator[None]:
    """Print where in the reader's code an episode failed."""
    log = logging.getLogger("astune.rollout")
    level, handler = log.level, _Tracebacks(console)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def users_traceback(failure: BaseException) -> str:
    """Format the traceback of an exception of the user's code, without outer frames; empty if it was raised
    elsewhere."""
    for cause in causes_of(failure):
        trace = cause.__traceback__
        while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        if trace is not None and (cause.__cause__ is None or not isinstance(cause, AstuneError)):
            formatted = traceback.TracebackException(type(cause), cause.with_traceback(trace), trace)
            return "".join(formatted.format()).rstrip()
    return ""
