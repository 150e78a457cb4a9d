"""The reporting side of `run_server.py`: what processes of an engine send over HTTP, and the job that they ask for.

The address and its token come from the environment, and are taken out of it, as Ray's token is, so that what an agent
starts does not inherit them (law 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from functools import cache
from typing import Any

import httpx
import numpy as np
import orjson
import zstandard

from astune.backbone.cluster.messages import (
    Answer,
    AttemptStarted,
    CheckpointSaved,
    EpisodeOffered,
    EpisodePlayed,
    Message,
    TasksMeasured,
)
from astune.backbone.cluster.work_order import WorkOrder
from astune.processes.secret import take_variable
from astune.rollout.observer import RolloutObserver
from astune.runs import wire
from astune.schema import Episode, RunStoreError, Split, Task

ADDRESS, TOKEN = "ASTUNE_RUN_SERVER", "ASTUNE_RUN_SERVER_TOKEN"
_ANSWERS_WITHIN_S = 600.0
"""Recording a step of a million trained tokens takes some 10 s."""
_COPIES_WITHIN_S = 3600.0
_WAITS_FOR_A_COPY = (CheckpointSaved.KIND, TasksMeasured.KIND)
"""A checkpoint is copied before the answer comes, and rated when it is there."""
_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


class Reports:
    """A connection; calls wait for the answer, so that what was reported is on its way to the disk."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=address, headers=self._headers, timeout=_ANSWERS_WITHIN_S, trust_env=False)

    def work_order(self) -> WorkOrder:
        """Request what this process is to do."""
        return WorkOrder.model_validate(_content(self._client.get("/job")))

    def send(self, message: Message) -> Answer:
        """Report what happened.

        Raises:
            RunStoreError: the run cannot continue, or its server is gone.
        """
        return Answer.model_validate(self._post(message.KIND, message.model_dump_json().encode()))

    def episode(self, episode: Episode) -> None:
        """Report an episode that ended. Raises RunStoreError like `send`."""
        self._post("episode", wire.pack(wire.snapshot(episode), zstandard.ZstdCompressor()))

    async def play(self, offered: EpisodeOffered) -> EpisodePlayed:
        """Have an episode played, and wait for it; a cancellation withdraws it. Raises RunStoreError like `send`."""
        try:
            async with httpx.AsyncClient(headers=self._headers, timeout=None, trust_env=False) as client:
                response = await client.post(
                    f"{self.address}/{offered.KIND}", content=offered.model_dump_json().encode()
                )
        except httpx.HTTPError as cause:
            raise _silent(cause) from cause
        return EpisodePlayed.model_validate_json(_accepted(response))  # with integers of any size

    def _post(self, kind: str, body: bytes) -> dict[str, Any]:
        try:
            within = _COPIES_WITHIN_S if kind in _WAITS_FOR_A_COPY else _ANSWERS_WITHIN_S
            return _content(self._client.post(f"/{kind}", content=body, timeout=within))
        except httpx.HTTPError as cause:
            raise _silent(cause) from cause


def _silent(cause: httpx.HTTPError) -> RunStoreError:
    return RunStoreError(f"the run server does not answer: {cause!r}")


def _content(response: httpx.Response) -> dict[str, Any]:
    return orjson.loads(_accepted(response))


def _accepted(response: httpx.Response) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise RunStoreError(orjson.loads(response.content)["error"])
    return response.content


@cache
def reports() -> Reports:
    """Reporter of this process."""
    for name in _RAY:  # Ray has read them
        take_variable(name)
    address, token = take_variable(ADDRESS), take_variable(TOKEN)
    if address is None or token is None:
        missing = ADDRESS if address is None else TOKEN
        raise RunStoreError(f"{missing} is not set: this process was not started by astune")
    return Reports(address, token)


def numbers_of(metrics: Mapping[str, Any], *, without: tuple[str, ...]) -> dict[str, float]:
    """The metrics of an engine that are numbers; those whose names begin as in `without` are left out."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | np.number)}
    return {name: float(value) for name, value in numbers.items() if not name.startswith(without)}


class ReportingObserver(RolloutObserver):
    """Episodes are reported as they end, in their order, and none waits for it.

    Args:
        executor: of one thread, so that what begins is reported before it ends.
    """

    def __init__(self, to: Reports, split: Split, executor: Executor) -> None:
        self._to = to
        self._split: Split = split
        self._executor = executor
        self._pending: list[Future[Any]] = []

    def on_started(self, episode_id: str, task: Task) -> None:
        message = AttemptStarted(episode_id=episode_id, split=self._split, task_id=task.task_id)
        self._pending.append(self._executor.submit(self._to.send, message))

    def on_finished(self, episode: Episode) -> None:
        self._pending.append(self._executor.submit(self._to.episode, episode))

    def on_attempt_failed(self, episode: Episode) -> None:
        self._pending.append(self._executor.submit(self._to.episode, episode))

    async def delivered(self) -> None:
        """Wait until everything was reported.

        Raises:
            RunStoreError: the run cannot continue, or its server is gone.
        """
        pending, self._pending = self._pending, []
        await asyncio.gather(*map(asyncio.wrap_future, pending))
