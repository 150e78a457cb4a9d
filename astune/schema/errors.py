"""Failure has a type: one class a boundary, each message saying what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from astune.schema.user_place import described, place_of


class AstuneError(Exception):
    """A failure with a name. `hint` is the fix, printed below the message."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def kind(self) -> str:
        """The name that users know it by: that of the nearest class which is listed here."""
        return next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(AstuneError):
    """The configuration, or something it names, is wrong: nothing was started."""


class TaskReaderError(AstuneError):
    """Tasks could not be read; names the file and the line."""


class WorkflowError(AstuneError):
    """The user's agent program failed; the cause is chained."""


class LeaseLost(WorkflowError):
    """A worker on another machine is gone, or gave its episode back; the episode is run again elsewhere."""


class GrammarError(WorkflowError):
    """An agent asked for a form of answers that nothing can be held to. `reason` is why, without the form itself."""

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class EngineError(AstuneError):
    """The inference engine failed or was asked for what it cannot do."""


class EnvError(AstuneError):
    """An environment failed; an invented state is never returned in its place."""


class JudgeError(AstuneError):
    """A judge failed or gave no usable reward; never turned into a reward of 0."""


class HelperModelError(AstuneError):
    """A helper model did not answer, or not in the form that was asked for; never taken for an opinion."""


class UnusableAnswer(HelperModelError):
    """A helper model answered, again and again not in the form that was asked for."""


class BudgetSpent(HelperModelError):
    """A helper model has used the tokens that it may use: the run stops, since no other attempt would help."""


class SandboxError(AstuneError):
    """Code could not be run safely; what the code itself does wrong is a result, not an error."""


class RunStoreError(AstuneError):
    """A run's directory cannot be read or written."""


class TrainerError(AstuneError):
    """The training step cannot go on: numbers that are not finite, or nothing to train on."""


class CompanionError(AstuneError):
    """A service beside the run could not be started, or died; its last lines are in the message."""


class EpisodeCut(AstuneError):
    """What the model wrote leaves no way to go on; the episode ends as truncated."""


class ContextOverflow(EpisodeCut):
    """The next prompt does not fit into the model's context."""


class MalformedCall(EpisodeCut):
    """The model wrote what is meant as a tool call and cannot be read as one."""


class DeadlineExceeded(AstuneError):
    """A named wait took longer than its deadline."""


class DebuggerLeft(AstuneError):
    """Whoever debugs has quit pdb: the run ends as it does at Ctrl-C."""


@asynccontextmanager
async def boundary(
    error: type[AstuneError], what: str, *, timeout_s: float | None = None, hint: str = ""
) -> AsyncIterator[None]:
    """Run what is not ours: whatever it raises becomes `error`, named `what`, within `timeout_s` seconds.

    `hint` is what to do where it took longer.

    An AstuneError raised inside keeps its type, for it already says what happened; a cancellation passes through.
    """
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            yield
    except AstuneError:
        raise
    except TimeoutError as cause:
        if deadline.expired():
            raise DeadlineExceeded(f"{what} took longer than {timeout_s:g} s", hint=hint) from cause
        raise error(f"{what}: {cause!r}") from cause
    except Exception as cause:
        raise error(f"{what}{place_of(cause)}: {described(cause)}") from cause


@contextmanager
def boundary_now(error: type[AstuneError], what: str, *, hint: str = "") -> Iterator[None]:
    """`boundary` for code that is not awaited, without a deadline; `hint` is what to do about whatever it raises."""
    try:
        yield
    except AstuneError:
        raise
    except Exception as cause:
        raise error(f"{what}{place_of(cause)}: {described(cause)}", hint=hint) from cause
