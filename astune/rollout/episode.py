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
from astune.rollout.supervise import supervise
from astune.schema import AstuneError, Episode, left_debugger, to_the_end

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
        await supervise(
            attempt.play(),
            timeout_s=setting.config.rollout.episode_timeout_s,
            deadline=lambda: f"episode {request.episode_id}, which waited for its {attempt.phase},",
            stop=lambda: attempt.model.close("it was stopped"),
            hint="raise rollout.episode_timeout_s if episodes may take that long",
        )
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
