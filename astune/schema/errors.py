"""Exception types: one class per boundary; each message says what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from astune.schema.user_place import described, place_of


class AstuneError(Exception):
    """Base class of expected failures. `hint` is the fix, printed below the message."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def kind(self) -> str:
        """Public name of the error: that of the nearest class listed here."""
        return next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(AstuneError):
    """Invalid configuration, or something that it refers to; nothing was started."""


class TaskReaderError(AstuneError):
    """Tasks could not be read; the message names the file and the line."""


class WorkflowError(AstuneError):
    """The user's workflow failed; the cause is chained."""


class LeaseLost(WorkflowError):
    """A worker on another machine is gone or returned its episode; the episode is retried elsewhere."""


class GrammarError(WorkflowError):
    """An agent requested an answer format that cannot be enforced. `reason` is the cause, without the format itself."""

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class EngineError(AstuneError):
    """The inference engine failed or cannot do what was requested."""


class EnvError(AstuneError):
    """An environment failed; no state is made up in its place."""


class JudgeError(AstuneError):
    """A judge failed or returned no usable reward; never treated as a reward of 0."""


class HelperModelError(AstuneError):
    """A helper model did not answer, or not in the requested format; never treated as a verdict."""


class UnusableAnswer(HelperModelError):
    """A helper model repeatedly answered in another format than requested."""


class BudgetSpent(HelperModelError):
    """The helper model's token budget is used up: the run stops, since a retry would not help."""


class SandboxError(AstuneError):
    """Code could not be run safely; errors of the code itself are results."""


class RunStoreError(AstuneError):
    """A run directory cannot be read or written."""


class TrainerError(AstuneError):
    """The training step cannot continue: non-finite numbers, or nothing to train on."""


class CompanionError(AstuneError):
    """A companion service could not be started, or died; the message has its last lines."""


class EpisodeCut(AstuneError):
    """The episode cannot continue after what the model wrote; it ends as truncated."""


class ContextOverflow(EpisodeCut):
    """The next prompt does not fit into the model's context."""


class MalformedCall(EpisodeCut):
    """The model wrote a tool call that cannot be parsed."""


class DeadlineExceeded(AstuneError):
    """A named wait exceeded its deadline."""


class DebuggerLeft(AstuneError):
    """The user quit pdb: the run ends as with Ctrl-C."""


@asynccontextmanager
async def boundary(
    error: type[AstuneError], what: str, *, timeout_s: float | None = None, hint: str = ""
) -> AsyncIterator[None]:
    """Run code that is not ours: whatever it raises becomes `error`, named `what`, within `timeout_s` seconds.

    `hint` is what to do if it took longer.

    An AstuneError raised inside keeps its type; a cancellation passes through.
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
    """Same as `boundary` for synchronous code, without a deadline; `hint` is what to do about any failure."""
    try:
        yield
    except AstuneError:
        raise
    except Exception as cause:
        raise error(f"{what}{place_of(cause)}: {described(cause)}", hint=hint) from cause
