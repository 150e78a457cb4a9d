"""An OpenAI-compatible server as engines ask it: JSON over HTTP; a failure is an EngineError with the address."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import httpx

from astune.schema import ConfigError, EngineError, is_loopback, retry_after_s

_BUSY = frozenset({429, 502, 503, 504})
"""Answers that another try may change."""
_TRIES = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CONNECT_S = 10.0
_LIST_S = 30.0
_SHOWN = 400


class Refusal(EngineError):
    """An answer that is an error, with its HTTP status."""

    def __init__(self, message: str, status: int, section: str) -> None:
        super().__init__(message, hint=_HINTS.get(status, "").format(section=section))
        self.status = status


class Unreachable(EngineError):
    """Nobody answered at the address."""


class Endpoint:
    """Talks to `base_url`: a bare host, whose API lies below `/v1`, or the API's own root, as https://host/api/v3.

    A busy server is asked again a few times. The caller limits how long an answer may take. Hints name the keys
    of `section`, the part of the configuration that names the server.
    """

    def __init__(self, base_url: str, *, model: str = "", api_key: str | None = None, section: str = "engine") -> None:
        require_address(base_url, section)
        self._section = section
        parts = urlsplit(base_url)
        self.root = base_url.rstrip("/").removesuffix("/v1")
        own_root = urlsplit(self.root).path not in ("", "/")
        self._api = base_url.rstrip("/") if own_root else f"{self.root}/v1"
        self.model = model
        self._key = api_key
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            trust_env=not is_loopback(parts.hostname or ""),  # no proxy is needed for this machine
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=256),
        )

    async def choose_model(self) -> str:
        """The model's name at the server: the one that was given, or the first that it serves."""
        if not self.model:
            served = await self.models()
            if not served:
                raise EngineError(
                    f"{self.root} serves no model", hint=f"set {self._section}.model to the name that it knows"
                )
            self.model = served[0]
        return self.model

    async def models(self) -> list[str]:
        """The names of the models that it serves."""
        address = f"{self._api}/models"
        answer = await self._ask("GET", address, None, _LIST_S)
        try:
            return [str(model["id"]) for model in answer["data"] or []]
        except (KeyError, TypeError) as cause:
            raise EngineError(
                f"{address} did not answer with a list of models: {str(answer)[:_SHOWN]}",
                hint=f"check {self._section}.base_url, or set {self._section}.model",
            ) from cause

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> Any:
        """Return the API's response at `path`; None waits as long as the caller does."""
        return await self._ask("POST", self._api + path, body, timeout_s)

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """The events that the API answers at `path` with, as they come, where the body asks for a stream."""
        address, pause_s = self._api + path, _FIRST_PAUSE_S
        for number in range(1, _TRIES + 1):
            try:
                async with self._client.stream("POST", address, json=body) as answer:
                    if answer.is_success:
                        async for line in answer.aiter_lines():
                            if line.startswith("data:") and line[5:].strip() != "[DONE]":
                                yield json.loads(line[5:])
                        return
                    await answer.aread()
            except httpx.HTTPError as cause:
                raise self._unreachable(address, cause) from cause
            except ValueError as cause:
                raise EngineError(f"{address} sent an event that is no JSON: {cause}") from cause
            if answer.status_code not in _BUSY or number == _TRIES:
                self._content(answer, address)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, retry_after_s(answer.headers) or pause_s))
            pause_s *= 2

    async def control(self, path: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        """Return the server's response at a `path` outside its API, without retries: after a lost response it is
        unknown whether the request was applied.

        The connection is not used again: vLLM closes it, without saying so, when such a request fails.
        """
        answer = await self._request(
            "POST", self.root + path, body, timeout_s=timeout_s, headers={"Connection": "close"}
        )
        return self._content(answer, self.root + path)

    async def answers(self) -> bool:
        """Return whether the server is healthy, without retries."""
        try:
            answer = await self._client.get(f"{self.root}/health", timeout=_CONNECT_S)
        except httpx.HTTPError:
            return False
        return answer.status_code < 500  # one without such a page is well, too

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, address: str, body: dict[str, Any] | None, timeout_s: float | None) -> Any:
        pause_s = _FIRST_PAUSE_S
        for number in range(1, _TRIES + 1):
            answer = await self._request(method, address, body, timeout_s=timeout_s)
            if answer.status_code not in _BUSY or number == _TRIES:
                return self._content(answer, address)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, retry_after_s(answer.headers) or pause_s))
            pause_s *= 2
        raise AssertionError

    async def _request(
        self,
        method: str,
        address: str,
        body: dict[str, Any] | None,
        *,
        timeout_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        try:
            return await self._client.request(method, address, json=body, timeout=timeout, headers=headers)
        except httpx.HTTPError as cause:
            raise self._unreachable(address, cause) from cause

    def _unreachable(self, address: str, cause: httpx.HTTPError) -> EngineError:
        return Unreachable(
            f"{address}: {type(cause).__name__}: {str(cause) or 'no answer'}",
            hint=f"check that the server runs and that {self._section}.base_url is its address",
        )

    def _content(self, answer: httpx.Response, address: str) -> Any:
        if not answer.is_success:
            reason = _reason(answer).replace(self._key, "...") if self._key else _reason(answer)  # some repeat the key
            raise Refusal(f"{address} answered {answer.status_code}: {reason}", answer.status_code, self._section)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as cause:
            raise EngineError(
                f"{address} did not answer with JSON: {answer.text[:_SHOWN]!r}",
                hint=f"{self._section}.base_url has to be an OpenAI-compatible API",
            ) from cause


def choice_of(answer: Any, name: str) -> dict[str, Any]:
    """The first choice of a completion.

    Raises:
        EngineError: the server called `name` answered something else.
    """
    try:
        return dict(answer["choices"][0])
    except (KeyError, IndexError, TypeError, ValueError) as cause:
        raise EngineError(f"{name} did not answer with a completion: {str(answer)[:_SHOWN]}") from cause


_HINTS = {
    401: "{section}.api_key_env names the environment variable that holds the key; check its value",
    403: "{section}.api_key_env names the environment variable that holds the key; check its value",
    404: "check {section}.base_url and {section}.model",
    429: "lower rollout.max_env_worker, or wait",
    500: "see the log of the server",
}


def require_address(base_url: str, section: str = "engine") -> None:
    """Refuse what is no address with a ConfigError."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"{section}.base_url: {base_url!r} is no address",
            hint="write it as http://127.0.0.1:8000 or https://.../v1",
        )
    if parts.username or parts.password:
        raise ConfigError(
            f"{section}.base_url holds a name or a password", hint=f"put the key into {section}.api_key_env's variable"
        )


def key_from(variable: str, section: str = "engine") -> str | None:
    """The API key in an environment variable; None where no variable is named.

    Raises:
        ConfigError: the variable is not set.
    """
    if not variable:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(
            f"{section}.api_key_env names {variable}, which is not set",
            hint=f"export {variable}=..., or write it into .env",
        )
    return key


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        error = body.get("error", body)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:_SHOWN]
    except (ValueError, AttributeError):
        return answer.text[:_SHOWN]
