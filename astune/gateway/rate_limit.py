"""A limit of requests a minute, for a client or for an episode's agents."""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from starlette.exceptions import HTTPException

_MINUTE_S = 60.0


class RateLimit:
    """Limit of `per_minute` requests in any minute; None sets none. `admit` may be called on any thread.

    Args:
        name: subject of the refusal.
    """

    def __init__(self, name: str, per_minute: int | None) -> None:
        self._name = name
        self._per_minute = per_minute
        self._admitted: deque[float] = deque()
        self._lock = threading.Lock()

    def admit(self) -> None:
        """Count a request.

        Raises:
            HTTPException: 429, with the seconds after which to come back.
        """
        if self._per_minute is None:
            return
        now = time.monotonic()
        with self._lock:
            while self._admitted and now - self._admitted[0] > _MINUTE_S:
                self._admitted.popleft()
            if len(self._admitted) < self._per_minute:
                self._admitted.append(now)
                return
            wait_s = _MINUTE_S - (now - self._admitted[0])
        detail = f"{self._name} may ask {self._per_minute} times a minute"
        raise HTTPException(429, detail, headers={"retry-after": str(math.ceil(wait_s) or 1)})
