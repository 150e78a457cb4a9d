"""Handling of an attempt that was cut, by a prompt that did not fit or by an answer that ends the episode.

A failure caused by the missing answer is not counted separately: the attempt ends as truncated, with the judge's reward
if there is one, else 0. A failure for another reason, such as an environment or a service that the agent or the judge
calls, remains an error.
"""

from __future__ import annotations

from astune.schema import (
    AstuneError,
    ContextOverflow,
    Episode,
    EpisodeCut,
    Reward,
    WorkflowError,
    causes_of,
    left_debugger,
)

_OF_A_MISSING_ANSWER = (LookupError, AttributeError, TypeError, ValueError, AssertionError)
"""Exceptions raised by code that reads a missing answer."""

UNJUDGED = Reward(raw_reward=0.0, is_success=False)
"""Reward of an episode whose judge lacks the answer that did not fit."""


def is_overflow(episode: Episode) -> bool:
    """Return whether the episode ended since a prompt did not fit; another attempt would meet the same limit."""
    return (episode.error or "").startswith(ContextOverflow.__name__)


def require_consequence(failure: AstuneError, cut: EpisodeCut | None) -> None:
    """Return if `failure` of an agent or judge is a consequence of the cut.

    Raises:
        AstuneError: `failure`, where nothing cut the episode or a debugger was quit.
        EpisodeCut: the judge says that it cannot judge, or failed for another reason than a missing answer; or the
            agent failed at a file or a connection.
    """
    if cut is None or left_debugger(failure):
        raise failure
    if isinstance(failure, WorkflowError):
        follows = not any(isinstance(cause, OSError) for cause in causes_of(failure))
    else:
        follows = isinstance(failure.__cause__, _OF_A_MISSING_ANSWER)
    if not follows:
        raise type(cut)(f"{cut.message}; then {failure.message}", hint=failure.hint) from failure
