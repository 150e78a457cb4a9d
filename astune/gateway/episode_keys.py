"""Keys: one opens one agent's model in one episode, for inference alone, until the episode ends.

A request that is repeated after a broken connection gets the answer of the first: it is sampled, recorded and trained
once. Requests with equal bodies that are not marked as repeated are different requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from astune.gateway.chat_completions import ChatRequest, Refused, Sampled

Sample = Callable[[ChatRequest], Awaitable[Sampled]]
"""Asks the episode's model once."""


@dataclass(eq=False)
class _Given:
    """A request that came, and its answers, which may still be on their way."""

    digest: bytes
    answers: asyncio.Task[list[Sampled]]
    delivered: bool = False


@dataclass(eq=False)
class OpenKey:
    """What a key opens."""

    sample: Sample
    _given: list[_Given] = field(default_factory=list)
    _by_idempotency_key: dict[str, _Given] = field(default_factory=dict)

    def answers(self, request: ChatRequest, body: bytes, *, idempotency_key: str | None, repeated: bool) -> _Given:
        """The answers to a request: those of the request that it repeats, or new ones.

        Raises:
            Refused: the idempotency key came with another body before.
        """
        digest = hashlib.blake2b(body, digest_size=16).digest()
        given = self._by_idempotency_key.get(idempotency_key) if idempotency_key else None
        if given is not None and given.digest != digest:
            raise Refused("this Idempotency-Key came with another body before", key="Idempotency-Key")
        if given is None and repeated:
            alike = [earlier for earlier in self._given if earlier.digest == digest]
            given = next((earlier for earlier in alike if not earlier.delivered), alike[-1] if alike else None)
        if given is None or _failed(given.answers):
            given = _Given(digest, asyncio.ensure_future(self._sampled(request)))
            self._given.append(given)
        if idempotency_key:
            self._by_idempotency_key[idempotency_key] = given
        return given

    async def _sampled(self, request: ChatRequest) -> list[Sampled]:
        calls: list[Coroutine[Any, Any, Sampled]] = [_called(self.sample, request) for _ in range(request.n or 1)]
        return list(await asyncio.gather(*calls))


async def _called(sample: Sample, request: ChatRequest) -> Sampled:
    return await sample(request)


def _failed(answers: asyncio.Task[list[Sampled]]) -> bool:
    return answers.done() and (answers.cancelled() or answers.exception() is not None)


class EpisodeKeys:
    """The keys that are open now. Looked up by a digest, so that the time says nothing of a key."""

    def __init__(self) -> None:
        self._open: dict[bytes, OpenKey] = {}

    def open(self, sample: Sample, key: str | None = None) -> str:
        """Open a new key, or `key`, which somebody chose."""
        key = key or f"astune-{secrets.token_urlsafe(24)}"
        self._open[_digest(key)] = OpenKey(sample)
        return key

    def close(self, key: str) -> None:
        self._open.pop(_digest(key), None)

    def find(self, key: str) -> OpenKey | None:
        return self._open.get(_digest(key))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
