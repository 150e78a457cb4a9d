"""What processes on the cluster tell the one that keeps the run's folder, over HTTP; and what they ask of it.

The address and its token come from the environment, and are taken out of it, as Ray's token is, so that what an agent
starts does not inherit them (law 8).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import cache
from typing import Any

import httpx
import numpy as np
import orjson
import zstandard

from astune.runs import wire
from astune.schema import Episode, RunStoreError, Split, Task

ADDRESS, TOKEN = "ASTUNE_KEEPER", "ASTUNE_KEEPER_TOKEN"
_ANSWERS_WITHIN_S = 60.0
_KEEPS_WITHIN_S = 3600.0
_WAIT_FOR_A_COPY = ("saved", "validation")
"""A checkpoint is copied before the answer comes, and rated when it is there."""
_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


class Reports:
    """One connection; calls wait for the answer, so that what was told is on its way to the disk."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._client = httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=_ANSWERS_WITHIN_S, trust_env=False
        )

    def job(self) -> dict[str, Any]:
        """The whole of what is to be done; `keeper.py` says what is in it."""
        return self._answer(self._client.get("/job"))

    def tell(self, what: str, **said: Any) -> dict[str, Any]:
        """Say that something happened.

        Raises:
            RunStoreError: the run cannot go on, or nobody is there any more.
        """
        return self._post(what, orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY))

    def episode(self, episode: Episode) -> None:
        self._post("episode", wire.pack(wire.snapshot(episode), zstandard.ZstdCompressor()))

    def _post(self, what: str, body: bytes) -> dict[str, Any]:
        try:
            within = _KEEPS_WITHIN_S if what in _WAIT_FOR_A_COPY else _ANSWERS_WITHIN_S
            return self._answer(self._client.post(f"/{what}", content=body, timeout=within))
        except httpx.HTTPError as cause:
            raise RunStoreError(f"the process that keeps the run does not answer: {cause!r}") from cause

    def _answer(self, answer: httpx.Response) -> dict[str, Any]:
        said = orjson.loads(answer.content)
        if answer.status_code != httpx.codes.OK:
            raise RunStoreError(said["error"])
        return said


@cache
def reports() -> Reports:
    """This process's own."""
    for name in _RAY:  # Ray has read them
        os.environ.pop(name, None)
    try:
        return Reports(os.environ.pop(ADDRESS), os.environ.pop(TOKEN))
    except KeyError as missing:
        raise RunStoreError(f"{missing.args[0]} is not set: this process was not started by astune") from None


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of an engine's measures that are numbers."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float | np.number)}


class ReportingObserver:
    """Implements `RolloutObserver`: episodes are told as they end, in their order, and none waits for it."""

    def __init__(self, to: Reports, split: Split, by: Executor) -> None:
        """`by` is one thread, so that what begins is told before it ends."""
        self._to = to
        self._split = split
        self._by = by
        self._on_the_way: list[Future[Any]] = []

    def on_started(self, episode_id: str, task: Task) -> None:
        self._tell(self._to.tell, "started", episode_id=episode_id, split=self._split, task_id=task.task_id)

    def on_waits_for(self, episode_id: str, what: str) -> None: ...

    def on_finished(self, episode: Episode) -> None:
        self._tell(self._to.episode, episode)

    def on_attempt_failed(self, episode: Episode) -> None:
        self._tell(self._to.episode, episode)

    async def arrived(self) -> None:
        """Wait until all has been told.

        Raises:
            RunStoreError: the run cannot go on, or nobody is there any more.
        """
        on_the_way, self._on_the_way = self._on_the_way, []
        await asyncio.gather(*map(asyncio.wrap_future, on_the_way))

    def _tell(self, tell: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._on_the_way.append(self._by.submit(tell, *arguments, **named))
