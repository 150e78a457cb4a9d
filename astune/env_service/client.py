"""Client of an environment service, and the handle to an instance in it.

A call is retried while that can help: no response, no free slot, a server error. Otherwise an EnvError is raised; a
state is never made up. A step whose response was lost is repeated only if the server declares (by its `Step-Index`
header) that it applies a repeated one once. Otherwise the episode is retried. Such a server is also asked again while
a response is late, on a new connection.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import uuid
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import httpx

from astune.env_service._effort import GONE, SERVER_ERRORS, Effort
from astune.env_service._wire import (
    MAX_BODY_BYTES,
    STEP_INDEX,
    TOKEN_VARIABLE,
    Request,
    read_ids,
    read_number,
    read_state,
    read_step,
    read_text,
)
from astune.env_service.base import EnvState, EnvStep
from astune.env_service.handle import RELEASE_S, EnvironmentHandle
from astune.schema import EnvError, Message, Task, is_loopback, run_alone
from astune.schema.plain_json import shortened

_OF_TIMEOUT = 0.95
"""Fraction of the timeout after which a call gives up, before its caller does without knowing the cause."""

_THREAD = "astune-env-service"
_indexed_urls: set[str] = set()
"""Services whose last `create` declared that they apply a repeated step once; so the next `create` may be repeated."""


@dataclass(frozen=True, slots=True)
class Answer:
    data: Any
    step_index: str | None
    """The header of a server that applies a repeated step once."""


class EnvServiceClient:
    """Calls to one service over one connection, made by one coroutine at a time."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise EnvError(f"env_url {url!r} is not an address", hint="write it with http://, as http://127.0.0.1:8080")
        self._url = url.rstrip("/")
        host = httpx.URL(self._url).host
        self._http = httpx.AsyncClient(
            verify=_certificates() if url.startswith("https://") else False,
            trust_env=not is_loopback(host),  # a proxy does not reach this machine
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"} | _authorization(),
        )

    async def call(
        self,
        endpoint: str,
        request: Request,
        *,
        what: str,
        timeout_s: float,
        repeatable: bool = True,
        joined: bool = False,
        may_be_gone: bool = False,
    ) -> Answer:
        """Return the response of `endpoint`. Raises EnvError if it was refused, or could not be made within `timeout_s`
        seconds.

        Args:
            what: name of the call in errors.
            repeatable: False if a call whose response was lost must not be repeated.
            joined: whether the service lets a repetition wait for the call that it repeats.
            may_be_gone: whether a missing instance is not an error; the response is then empty.
        """
        what = f"{what} at {self._url}/{endpoint}"
        body = request.to_json()
        errors = (
            1 if may_be_gone and not joined else SERVER_ERRORS
        )  # unknown servers may report the next release as done
        effort = Effort(what, timeout_s=timeout_s, repeatable=repeatable, joined=joined, server_errors=errors)
        while True:
            try:
                response = await self._post(endpoint, body, what, timeout_s=effort.left_s, silence_s=effort.silence_s)
            except httpx.TransportError as cause:
                wait_s = effort.after_silence(cause)
            else:
                if may_be_gone and _is_gone(response, what):
                    effort.require_no_server_error()
                    return Answer(None, None)
                if response.status_code < 400:
                    return Answer(_data_of(response, what), response.headers.get(STEP_INDEX))
                wait_s = effort.after_error(response)
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _post(
        self, endpoint: str, body: bytes, what: str, *, timeout_s: float, silence_s: float
    ) -> httpx.Response:
        """Return the whole answer, within `timeout_s` also where a server drips bytes.

        Raises:
            EnvError: the answer is larger than `MAX_BODY_BYTES`.
            httpx.TransportError: there is none, it is not complete in time, or no byte came for `silence_s`.
        """

        async def whole() -> httpx.Response:
            url, limits = f"{self._url}/{endpoint}", httpx.Timeout(timeout_s, read=silence_s)
            async with self._http.stream("POST", url, content=body, timeout=limits) as response:
                content = bytearray()
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > MAX_BODY_BYTES:
                        raise EnvError(
                            f"{what}: the answer is larger than {MAX_BODY_BYTES >> 20} MiB",
                            hint="let the environment return less, or correct env_url",
                        )
            headers = [(name, value) for name, value in response.headers.items() if name != "content-encoding"]
            return httpx.Response(response.status_code, headers=headers, content=bytes(content))

        try:
            return await asyncio.wait_for(whole(), timeout_s)
        except asyncio.TimeoutError as cause:  # noqa: UP041 - another class before Python 3.11
            raise httpx.ReadTimeout("the answer was not complete in time") from cause


class ServiceHandle(EnvironmentHandle):
    """An instance in a service. Its id is chosen here, so that a repeated `create` makes no second one."""

    def __init__(self, url: str, env_type: str, task: Task, seed: int, *, timeout_s: float) -> None:
        self._url = url
        self._env_type = env_type
        self._task = task
        self._seed = seed
        self._timeout_s = timeout_s * _OF_TIMEOUT
        self._instance_id = uuid.uuid4().hex
        self._client: EnvServiceClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps = 0
        self._finished = False
        self._steps_are_indexed = url in _indexed_urls

    async def create(self) -> EnvState:
        self._client, self._loop = EnvServiceClient(self._url), asyncio.get_running_loop()
        answer = await self._ask("create", params={"seed": self._seed, "task": asdict(self._task)})
        self._steps_are_indexed = answer.step_index is not None
        (_indexed_urls.add if self._steps_are_indexed else _indexed_urls.discard)(self._url)
        return read_state(answer.data, self._name("create"))

    async def step(self, action: Message) -> EnvStep:
        if self._finished:
            raise EnvError(
                f"{self._name('step')}: the episode is over", hint="leave the loop when a step is terminated"
            )
        answer = await self._ask(
            "step", messages=action, params={"step_index": self._steps}, repeatable=self._steps_are_indexed
        )
        step = read_step(answer.data, self._name("step"))
        self._steps += 1
        self._finished = step.is_terminated
        return step

    def step_now(self, action: Message) -> EnvStep:
        return run_alone(self.step(action), name=_THREAD)

    async def evaluate(self, sparse: bool = True) -> float:
        answer = await self._ask("evaluate", params={"sparse": sparse})
        return read_number(answer.data, self._name("evaluate"))

    def evaluate_now(self, sparse: bool = True) -> float:
        return run_alone(self.evaluate(sparse), name=_THREAD)

    async def get_info(self) -> str:
        return read_text((await self._ask("get_info")).data, self._name("get_info"))

    def get_info_now(self) -> str:
        return run_alone(self.get_info(), name=_THREAD)

    async def release(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            await self._call(client, "release", timeout_s=RELEASE_S * _OF_TIMEOUT, may_be_gone=True)
        finally:
            await client.aclose()

    async def _ask(self, endpoint: str, **call: Any) -> Answer:
        """Call over the handle's connection; on another event loop than that one's, over one for this call alone."""
        own = self._live()
        if asyncio.get_running_loop() is self._loop:
            return await self._call(own, endpoint, **call)
        client = EnvServiceClient(self._url)
        try:
            return await self._call(client, endpoint, **call)
        finally:
            await client.aclose()

    async def _call(
        self,
        client: EnvServiceClient,
        endpoint: str,
        *,
        messages: Message | None = None,
        params: dict[str, Any] | None = None,
        timeout_s: float = math.inf,
        **settings: bool,
    ) -> Answer:
        request = Request(self._env_type, self._task.task_id, self._instance_id, messages or {}, params or {})
        settings["joined"] = self._steps_are_indexed
        timeout_s = min(timeout_s, self._timeout_s)
        return await client.call(endpoint, request, what=self._name(endpoint), timeout_s=timeout_s, **settings)

    def _live(self) -> EnvServiceClient:
        if self._client is None:
            raise EnvError(f"{self._name('instance')} was used before create or after release")
        return self._client

    def _name(self, call: str) -> str:
        return f"environment {self._env_type}, {call} of task {self._task.task_id}"


def read_task_ids(url: str, env_type: str, split: str, *, timeout_s: float) -> list[str]:
    """The ids of a split's tasks, as the service at `url` lists them. Raises EnvError if it cannot be reached, refuses,
    or answers something else."""

    async def ask() -> list[str]:
        client = EnvServiceClient(url)
        what = f"environment {env_type}, tasks of split {split}"
        try:
            request = Request(env_type, params={"split": split})
            return read_ids((await client.call("get_env_profile", request, what=what, timeout_s=timeout_s)).data, what)
        finally:
            await client.aclose()

    return run_alone(ask(), name=_THREAD)


def _data_of(response: httpx.Response, what: str) -> Any:
    data, success = _read(response, what)
    if not success:
        raise EnvError(f"{what}: no success, {shortened(response.text)}", hint="the server's log may say why")
    return data


def _is_gone(response: httpx.Response, what: str) -> bool:
    """Return whether there is no such instance."""
    return response.status_code in GONE or (response.status_code < 400 and not _read(response, what)[1])


def _read(response: httpx.Response, what: str) -> tuple[Any, bool]:
    """Return the data, and whether the call succeeded."""
    try:
        answer = response.json()
        return answer["data"], answer["success"] is True
    except (ValueError, TypeError, KeyError) as cause:
        raise EnvError(
            f'{what}: expected {{"success", "data"}}, found {shortened(response.text)}',
            hint="something else listens there; correct env_url",
        ) from cause


def _authorization() -> dict[str, str]:
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token}"} if token else {}


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Read once: a handle lives as long as an episode."""
    return httpx.create_ssl_context()
