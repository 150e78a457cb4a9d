"""Execution of one episode: it ends in an `Episode` with a reward, or in error with a cause and no reward.

Retries are up to the pool.
"""

from __future__ import annotations

import asyncio
import logging
import time

from astune.rollout.attempt import Attempt
from astune.rollout.request import EpisodeRequest
from astune.rollout.setting import RolloutSetting
from astune.schema import (
    AstuneError,
    DeadlineExceeded,
    Episode,
    WorkflowError,
    cancel_until_ended,
    left_debugger,
    to_the_end,
)

INTERRUPTED = "interrupted"
_log = logging.getLogger(__name__)


class EpisodeInterrupted(asyncio.CancelledError):
    """Cancellation of an episode, with its record so far.

    `by_debugger` is True if its debugger was quit, and it was not cancelled from outside.
    """

    def __init__(self, episode: Episode, *, by_debugger: bool) -> None:
        super().__init__()
        self.episode = episode
        self.by_debugger = by_debugger


async def run_episode(setting: RolloutSetting, request: EpisodeRequest, *, waited_s: float) -> Episode:
    """Run one attempt. The caller opens and closes its engine session, which has the episode's name.

    Args:
        waited_s: seconds that the request waited in the queue, for the record.

    Raises:
        EpisodeInterrupted: the running task was cancelled, or a debugger in it was quit; nothing of
            the episode runs any more.
    """
    setting.observer.on_started(request.episode_id, request.task)
    start = time.perf_counter()
    attempt = Attempt(setting, request)
    interrupted = by_debugger = False
    error: str | None = None
    try:
        await _play(attempt, request.episode_id, setting.config.rollout.episode_timeout_s)
    except asyncio.CancelledError:
        interrupted, error = True, INTERRUPTED
    except AstuneError as failure:
        if left_debugger(failure):
            interrupted, by_debugger, error = True, True, INTERRUPTED
        elif not attempt.ends_as_overflow(failure):
            error = f"{failure.kind}: {failure}"
            _log.debug("episode %s ended in an error", request.episode_id, exc_info=failure)
    finally:
        release_error, cancelled = await to_the_end(_end(attempt))
    if cancelled:
        interrupted, error = True, error or INTERRUPTED
    episode = attempt.record(error or release_error)
    episode.timings |= {"wait": waited_s, "total": time.perf_counter() - start}
    if interrupted:
        raise EpisodeInterrupted(episode, by_debugger=by_debugger)
    return episode


async def _end(attempt: Attempt) -> str | None:
    await attempt.model.aclose("it has ended")
    return await attempt.release()


async def _play(attempt: Attempt, episode_id: str, timeout_s: float) -> None:
    """Play an attempt as a separate task, until it ends or reaches its deadline.

    Agent frameworks swallow cancellations (AgentScope treats one as an interruption by its user and continues), so it
    is stopped by closing its model and by cancelling it until it ends.

    Raises:
        DeadlineExceeded: `timeout_s` seconds were not enough.
        WorkflowError: it was cancelled from within.
    """
    playing = asyncio.ensure_future(attempt.play())
    try:
        done, _ = await asyncio.wait({playing}, timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(
                f"episode {episode_id}, which waited for its {attempt.phase}, took longer than {timeout_s:g} s",
                hint="raise rollout.episode_timeout_s if episodes may take that long",
            )
        if playing.cancelled():
            raise WorkflowError("the workflow cancelled itself", hint="let CancelledError pass in your agent's code")
        playing.result()
    finally:
        if not playing.done():
            attempt.model.close("it was stopped")
            await cancel_until_ended(lambda: [] if playing.done() else [playing])
        if playing.done() and not playing.cancelled():
            playing.exception()  # seen, so that asyncio does not report it
