"""Retry policy of calls to an environment service: one decision after each failed attempt."""

from __future__ import annotations

import time

import httpx

from astune.env_service._wire import HOSTS
from astune.schema import EnvError, retry_after_s
from astune.schema.plain_json import shortened

UNHEARD_S = 10.0
"""Seconds without any response after which a server is given up: a restarted one has lost its instances."""
SERVER_ERRORS = 3
"""Number of responses of 500 and above after which most calls are given up."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Waits between attempts double from the first to the longest, unless the server specifies them."""

LATE = 1 / 8
"""Fraction of the timeout without a byte after which a service that answers a repetition once is asked again. A
connection that fell silent then costs an eighth of the deadline, and a slow call is repeated seven times at most."""

GONE = (404, 410)
"""Response of a service for an instance that does not exist, or no longer."""

_INSTANT_S = 0.001
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_BUSY = (429, 503)

_NO_SERVER = (
    "start it, as with `python -m astune.env_service --env NAME`, or correct env_url; see its log for why it ended"
)
_TOO_SLOW = "the environment is stuck or too slow; raise rollout.call_timeout_s if that is expected"
_NO_PLACE = "start the server with a larger --max-instances, or lower rollout.max_env_worker"
_NO_INSTANCE = "the server was restarted, released the instance, or hosts another environment; see its log"
_OTHER_ENV = "correct env_type, or start the server with another --env"
_FAILS_THERE = "the environment failed there; the server's log has the traceback"
_LOST_STEP = "the server does not report whether the step was applied, so it is not repeated; the episode is retried"


class Effort:
    """Attempts of one call so far.

    Args:
        what: name of the call in errors.
        timeout_s: seconds for all attempts together.
        repeatable: False if a call whose response was lost must not be repeated.
        joined: whether the service lets a repetition wait for the call that it repeats.
        server_errors: number of responses of 500 and above after which it is given up.
    """

    def __init__(self, what: str, *, timeout_s: float, repeatable: bool, joined: bool, server_errors: int) -> None:
        self._what = what
        self._began = time.monotonic()
        self._timeout_s = timeout_s
        self._repeatable = repeatable
        self._joined = joined and repeatable
        self._unheard_since: float | None = None
        self._server_errors_left = server_errors
        self._server_error = ""
        self._wait_s = FIRST_WAIT_S

    @property
    def left_s(self) -> float:
        return max(_INSTANT_S, self._began + self._timeout_s - time.monotonic())

    @property
    def silence_s(self) -> float:
        """Seconds without a byte of the answer after which an attempt is given up."""
        return min(self.left_s, self._timeout_s * LATE) if self._joined else self.left_s

    def after_silence(self, cause: httpx.TransportError) -> float:
        """Return the seconds until the next attempt after no response. Raises EnvError if it is given up."""
        reason = f"no answer ({type(cause).__name__}{f': {cause}' if str(cause) else ''})"
        if not self._repeatable and not isinstance(cause, _NOT_SENT):
            raise EnvError(f"{self._what}: {reason}", hint=_LOST_STEP) from cause
        if isinstance(cause, httpx.ReadTimeout):
            if not self._joined or self.left_s <= _INSTANT_S:
                raise EnvError(f"{self._what}: no answer for {self._timeout_s:g} s", hint=_TOO_SLOW) from cause
            self._unheard_since = None  # it accepted the connection
            return 0.0
        now = time.monotonic()
        self._unheard_since = self._unheard_since or now
        if now - self._unheard_since > UNHEARD_S:
            raise EnvError(f"{self._what}: {reason} for {UNHEARD_S:g} s", hint=_NO_SERVER) from cause
        return self._wait(reason, _NO_SERVER, self._next_wait_s())

    def after_error(self, response: httpx.Response) -> float:
        """Return the seconds until the next attempt after an error response. Raises EnvError if it is given up."""
        self._unheard_since = None
        status = response.status_code
        reason = f"{status} {_detail_of(response)}"
        if status in _BUSY:
            asked_s = retry_after_s(response.headers)
            return self._wait(reason, _NO_PLACE, self._next_wait_s() if asked_s is None else asked_s)
        if status in GONE:
            raise EnvError(f"{self._what}: {reason}", hint=_OTHER_ENV if HOSTS in reason else _NO_INSTANCE)
        if status < 500:
            raise EnvError(f"{self._what}: {reason}")
        self._server_errors_left -= 1
        self._server_error = reason
        if not self._repeatable or self._server_errors_left <= 0:
            raise EnvError(f"{self._what}: {reason}", hint=_FAILS_THERE)
        return self._wait(reason, _FAILS_THERE, self._next_wait_s())

    def require_no_server_error(self) -> None:
        """Check that a missing instance did not end in an earlier attempt of this call. Raises EnvError if an earlier
        attempt failed in the server."""
        if self._server_error:
            raise EnvError(f"{self._what}: {self._server_error}", hint=_FAILS_THERE)

    def _wait(self, reason: str, hint: str, wait_s: float) -> float:
        if wait_s >= self.left_s:
            raise EnvError(f"{self._what}: {reason} for {self._timeout_s:g} s", hint=hint)
        return wait_s

    def _next_wait_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(LONGEST_WAIT_S, 2 * self._wait_s)
        return wait_s


def _detail_of(response: httpx.Response) -> str:
    try:
        return shortened(str(response.json()["detail"]))
    except (ValueError, TypeError, KeyError):
        return shortened(response.text) or response.reason_phrase
