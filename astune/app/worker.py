"""A worker that claims episodes of a run on another machine, runs each with its own command, and returns the results.

Workers may join and leave at any time. Episodes that are unfinished, or without a heartbeat in time, are retried by
another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from astune.processes.program import ProgramEnd
from astune.schema import ConfigError, WorkflowError, described, is_loopback
from astune.workflow.agent_result import RESULT_FIELDS, AgentResult
from astune.workflow.program import run_once, variables_of

_WAIT_S = 20.0
_PAUSE_S = 2.0
_CALL_S = 30.0
_GOODBYE_S = 2.0
_TOO_MUCH_MEMORY = 1
_REFUSED = (httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE)
_HEARTBEATS = 3
"""Heartbeats in the time of a lease."""


@dataclass(frozen=True)
class Worker:
    """Worker that runs `parallel` episodes concurrently.

    Args:
        root: the URL of the run's gateway, without `/v1`.
        command: the agent's command with resolved file paths.
        memory: bytes that one program may hold; 0 is no limit.
        tell: receives progress messages.
    """

    root: str
    token: str
    command: Sequence[str]
    parallel: int
    memory: int
    tell: Callable[[str], object]

    async def run(self) -> None:
        """Work until cancelled. Raises ConfigError where the token is refused."""
        headers = {"authorization": f"Bearer {self.token}"}
        here = is_loopback(urlsplit(self.root).hostname or "")
        async with httpx.AsyncClient(
            base_url=self.root, headers=headers, timeout=_CALL_S, trust_env=not here
        ) as client:
            places = [asyncio.ensure_future(self._play_on(client)) for _ in range(self.parallel)]
            try:
                await asyncio.gather(*places)
            finally:
                for place in places:
                    place.cancel()
                await asyncio.gather(*places, return_exceptions=True)

    async def _play_on(self, client: httpx.AsyncClient) -> None:
        lonely = False
        while True:
            try:
                answer = await client.post("/v1/episodes", json={"wait_s": _WAIT_S}, timeout=_WAIT_S + _CALL_S)
            except httpx.HTTPError as cause:
                if not lonely:
                    self.tell(f"no answer from {self.root} ({type(cause).__name__}); retrying")
                lonely = True
                await asyncio.sleep(_PAUSE_S)
                continue
            lonely = False
            if answer.status_code == httpx.codes.OK:
                await _Lease(self, client, _claim_of(answer, self.root)).play()
            elif answer.status_code != httpx.codes.NO_CONTENT:
                require_worker_gateway(answer, self.root)
                await asyncio.sleep(_PAUSE_S)


def require_worker_gateway(answer: httpx.Response, root: str) -> None:
    """Raise ConfigError where trying again cannot help."""
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ConfigError(f"{root} refuses the token", hint="pass the run's ASTUNE_WORKER_TOKEN")
    if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        raise ConfigError(
            f"{root} accepts no workers: it answered with status {answer.status_code}",
            hint="pass the address of rollout.workflow.workers, as http://trainer:8183",
        )


def _claim_of(answer: httpx.Response, root: str) -> dict[str, Any]:
    """Parse the claimed episode. Raises ConfigError if the server at that address is not a run's gateway."""
    try:
        claim = answer.json()
        return {name: claim[name] for name in ("episode_id", "task", "api_key", "model", "lease", "lease_s")}
    except (ValueError, TypeError, KeyError) as cause:
        raise ConfigError(
            f"{root} is not the gateway of a run", hint=("check for another server or a proxy at this address")
        ) from cause


class _Lease:
    """An episode, from its claim to its result."""

    def __init__(self, worker: Worker, client: httpx.AsyncClient, claim: dict[str, Any]) -> None:
        self._worker = worker
        self._client = client
        self._claim = claim
        self._at = f"/v1/episodes/{quote(claim['episode_id'], safe='')}"
        self._ends = time.monotonic() + claim["lease_s"]

    async def play(self) -> None:
        """Run the command and return how it ended; losing the lease ends the command."""
        name = self._claim["episode_id"]
        running = asyncio.ensure_future(self._run())
        beating = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({running, beating}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self._worker.tell(f"{name}: the lease is lost; the episode is left")
                return
            path, body = _outcome(running, self._worker.command, self._claim["task"]["task_id"])
            status = await self._say(path, body)
            if status in _REFUSED and path == "/end":
                path, body = (
                    "/abort",
                    {
                        "error": "the agent's result is refused: reward and metrics are numbers, "
                        "and all of it is a few MiB at most"
                    },
                )
                status = await self._say(path, body)
            late = "" if status == httpx.codes.OK else ", too late"
            self._worker.tell(f"{name}: {'ended' if path == '/end' else body['error']}{late}")
        except asyncio.CancelledError:
            await _cancelled(running)
            goodbye = {"error": "its worker ended", "given_back": True}
            with contextlib.suppress(httpx.HTTPError, TimeoutError):
                await asyncio.wait_for(self._post("/abort", goodbye), _GOODBYE_S)
            raise
        finally:
            await _cancelled(running)
            await _cancelled(beating)

    async def _run(self) -> ProgramEnd:
        claim, worker = self._claim, self._worker
        # Not the claim's own address: this worker may have come by a tunnel, or by a proxy with TLS.
        variables = variables_of(f"{worker.root}/v1", claim["api_key"], claim["model"])
        return await run_once(worker.command, claim["task"], variables, memory=worker.memory)

    async def _keep(self) -> None:
        """Renew the lease; returns when it is lost."""
        while time.monotonic() < self._ends:
            await asyncio.sleep(self._claim["lease_s"] / _HEARTBEATS)
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._post("/heartbeat", {})
                if answer.status_code == httpx.codes.CONFLICT:
                    return
                if answer.status_code == httpx.codes.OK:
                    self._ends = time.monotonic() + self._claim["lease_s"]

    async def _say(self, path: str, body: dict[str, Any]) -> int:
        """The status of the answer, 0 without one; retried over broken connections while the lease holds."""
        while time.monotonic() < self._ends:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._post(path, body)
                if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return answer.status_code
            await asyncio.sleep(min(_PAUSE_S, self._claim["lease_s"] / _HEARTBEATS))
        return 0

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        content = json.dumps({"lease": self._claim["lease"], **body})  # a NaN is refused by who gets it
        return await self._client.post(
            f"{self._at}{path}", content=content, headers={"content-type": "application/json"}
        )


def _outcome(running: asyncio.Future[ProgramEnd], command: Sequence[str], task_id: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of the report on a finished episode."""
    try:
        ended = running.result()
        if ended.memory:  # whether the model had been asked is known where the episode is
            held = f"it held {ended.memory >> 20} MiB of memory and was ended"
            ended = replace(ended, status=_TOO_MUCH_MEMORY, stderr=f"{ended.stderr}\n{held}")
        if ended.status is None:
            raise WorkflowError(f"the program {command[0]} ended on task {task_id} with unknown status")
    except WorkflowError as failure:
        return "/abort", {"error": f"{failure.message}: {failure.hint}" if failure.hint else failure.message}
    except Exception as failure:  # such as a full disk: this episode fails, and the worker continues
        return "/abort", {"error": f"the worker failed: {described(failure)}"}
    values = AgentResult.printed(ended.stdout).values
    kept = {name: values[name] for name in RESULT_FIELDS if name in values}
    return "/end", {**kept, "stdout": ended.stdout, "stderr": ended.stderr, "exit_status": ended.status}


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
