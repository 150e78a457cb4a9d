"""Keys: one opens one agent's model in one episode, for inference alone, until the episode ends.

A request that is repeated after a broken connection gets the answer of the first: it is sampled, recorded and trained
once. Requests with equal bodies that are not marked as repeated are different requests, and so are their repetitions:

    first, second       equal requests          the second's connection breaks
    second, repeated    gets the second's answer, although the first's is not sent yet either
    third               equal, refused: too many requests a minute
    third, repeated     is sampled: it never had an answer
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from astune.gateway.answer_store import AnswerStore
from astune.gateway.chat_completions import ChatRequest, Refused, Sampled
from astune.gateway.live_answers import LiveAnswer, LiveAnswers
from astune.schema import Message, WorkflowError

Sample = Callable[[ChatRequest, LiveAnswer | None], Awaitable[Sampled]]
"""Calls the episode's model once; streams the answer where the model's engine can."""


class Sender(NamedTuple):
    """The user and the session that a request names, where it names them."""

    user: str = ""
    session: str = ""


class Exchange(NamedTuple):
    """A request and its answer, as they are logged."""

    answer_id: str
    request: ChatRequest
    answers: Sequence[Sampled]
    sender: Sender


Count = Callable[[ChatRequest], Awaitable[int]]
"""Counts the tokens of a request's prompt."""


_MOST_KEPT = 10_000
"""Requests of one key whose answers are kept for repetitions."""


@dataclass(eq=False)
class Given:
    """A request that came, and its answers, which may still be on their way."""

    digest: bytes
    answers: asyncio.Future[list[Sampled]]
    live: LiveAnswers | None
    """None where the request wants no stream."""
    n_readers: int = 0
    store: AnswerStore | None = None
    number: int = 0
    """Index in the store, once its answers exist."""
    _delivered: bool = False
    _left: bool = False
    n_repetitions: int = 0

    @property
    def is_leaving(self) -> bool:
        """Whether its agent hung up, and its sampling is about to end."""
        return self._left and self.live is not None and not self.answers.done()

    @property
    def reported_failure(self) -> bool:
        """Whether it failed and its agent read so: that one is not asked for again."""
        return _failed(self.answers) and not self._left

    @property
    def delivered(self) -> bool:
        """Whether the answers were sent to their end."""
        return self._delivered

    @delivered.setter
    def delivered(self, value: bool) -> None:
        self._delivered = value
        if value and self.store is not None and self.number:
            self.store.delivered(self.number)

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Order of equal requests by how likely one is to be asked for again, the likeliest first."""
        return self.delivered, self.n_readers > 0, _failed(self.answers), self.n_repetitions

    def join(self) -> None:
        """Wait for the answers, or read the stream, until `leave`."""
        self.n_readers += 1
        self._left = False

    def leave(self) -> None:
        """Stop reading. When the last reader leaves a stream, the sampling ends: an agent hung up.

        The task itself is not cancelled. Where the answer was recorded in the same moment, it stays the one that a
        repeated request gets.
        """
        self.n_readers -= 1
        if not self.n_readers and not self.answers.done():
            self._left = True
            for answer in self.live.each if self.live is not None else ():
                answer.cancel()


@dataclass(eq=False)
class OpenKey:
    """Permissions of a key."""

    sample: Sample
    streams_tokens: bool
    """Whether a stream shows tokens as they are sampled; else it holds the finished answer."""
    count: Count
    conversations: dict[str, list[Message]] = field(default_factory=dict)
    """Stored answers that a request may continue by id."""
    on_answer: Callable[[Exchange], None] = lambda exchange: None
    """Callback for each answer that is about to be sent."""
    admit: Callable[[], None] = lambda: None
    """Raises where the key's owner asks too often."""
    access: bytes = b""
    """Names the key in the store."""
    store: AnswerStore | None = None
    n_running: int = 0
    """Requests that the model is answering."""
    weights_version: int | None = None
    """Version of the weights that sampled its last answer."""
    _restored: bool = False
    _given: list[Given] = field(default_factory=list)
    _by_idempotency_key: dict[str, Given] = field(default_factory=dict)

    def admit_request(self, body: bytes, *, repeated: bool) -> None:
        """`admit`, and remember a refused request: it has no answer that its repetition could get."""
        try:
            self.admit()
        except HTTPException:
            if not repeated:
                refused = asyncio.get_running_loop().create_future()
                refused.cancel()
                self._given.append(Given(_digest_of_body(body), refused, None, _left=True))
                self._forget_oldest()
            raise

    async def answers(self, request: ChatRequest, body: bytes, *, idempotency_key: str | None, repeated: bool) -> Given:
        """The answers to a request: those of the request that it repeats, or new ones.

        Raises:
            Refused: the idempotency key came with another body before.
        """
        digest = _digest_of_body(body)
        if self.store is not None and not self._restored:
            self._restored = True
            self._restore()
        while (given := self._earlier(digest, idempotency_key, repeated=repeated)) and given.is_leaving:
            await asyncio.wait({given.answers})  # its answer may be recorded in this moment
        if given is None:
            given = self._begin(request, digest, idempotency_key)
            self._given.append(given)
            self._forget_oldest()
        elif request.stream and given.live is None:  # it was answered before the gateway came back
            given.live = LiveAnswers(0)
        if idempotency_key:
            self._by_idempotency_key[idempotency_key] = given
        return given

    def _forget_oldest(self) -> None:
        """Keep the latest requests: only a key that is served for months has more."""
        if len(self._given) <= _MOST_KEPT:
            return
        del self._given[: _MOST_KEPT // 2]
        kept = set(map(id, self._given))
        self._by_idempotency_key = {key: each for key, each in self._by_idempotency_key.items() if id(each) in kept}
        for answer_id in list(self.conversations)[: -_MOST_KEPT // 2]:
            del self.conversations[answer_id]

    def _earlier(self, digest: bytes, idempotency_key: str | None, *, repeated: bool) -> Given | None:
        """The request that this one repeats, unless it failed."""
        given = self._by_idempotency_key.get(idempotency_key) if idempotency_key else None
        if given is not None and given.digest != digest:
            raise Refused("this Idempotency-Key came with another body before", key="Idempotency-Key")
        if given is None and repeated:
            alike = [each for each in reversed(self._given) if each.digest == digest and not each.reported_failure]
            given = min(alike, key=lambda each: each.rank, default=None)
            if given is not None and _failed(given.answers):
                self._given.remove(given)  # this one takes its place
        if given is None or _failed(given.answers):
            return None
        given.n_repetitions += 1
        return given

    def keep(self, answer_id: str, request: ChatRequest, answers: Sequence[Sampled], sender: Sender) -> None:
        """Keep a conversation with its answer, where its dialect names answers, and log it."""
        self.on_answer(Exchange(answer_id, request, answers, sender))
        if request.conversation is not None:
            self.conversations[answer_id] = [*request.conversation, answers[0].message]

    def _restore(self) -> None:
        """Take in what was answered before the gateway came back."""
        for kept in self.store.kept(self.access) if self.store is not None else ():
            answers = asyncio.get_running_loop().create_future()
            answers.set_result(kept.answers)
            given = Given(kept.digest, answers, None, 0, self.store, kept.number, kept.delivered)
            self._given.append(given)
            if kept.idempotency_key:
                self._by_idempotency_key[kept.idempotency_key] = given

    def _begin(self, request: ChatRequest, digest: bytes, idempotency_key: str | None) -> Given:
        n = request.n or 1
        live = LiveAnswers(n) if request.stream else None
        calls = [self._called(request, answer) for answer in (live.each if live else [None] * n)]
        answers = asyncio.ensure_future(self._stored(calls, digest, idempotency_key))
        answers.add_done_callback(lambda ended: _wake(ended, live))
        return Given(digest, answers, live, store=self.store)

    async def _stored(
        self, calls: Sequence[Coroutine[Any, Any, Sampled]], digest: bytes, idempotency_key: str | None
    ) -> list[Sampled]:
        """The answers, on disk before one is sent."""
        sampled = list(await asyncio.gather(*calls))
        if self.store is not None:
            number = self.store.put(self.access, digest, idempotency_key, sampled)
            next(given for given in self._given if given.answers is asyncio.current_task()).number = number
        return sampled

    async def _called(self, request: ChatRequest, live: LiveAnswer | None) -> Sampled:
        self.n_running += 1
        try:
            answer = await self.sample(request, live)
        except asyncio.CancelledError as cause:
            raise WorkflowError("the call was cancelled: its episode is over, or its agent hung up") from cause
        finally:
            self.n_running -= 1
        self.weights_version = answer.weights_version
        return answer


def _wake(answers: asyncio.Future[list[Sampled]], live: LiveAnswers | None) -> None:
    """Wake the readers. A failure counts as seen: those who asked may have hung up."""
    if not answers.cancelled():
        answers.exception()
    if live is not None:
        live.notify()


def _failed(answers: asyncio.Future[list[Sampled]]) -> bool:
    return answers.done() and (answers.cancelled() or answers.exception() is not None)


def _digest_of_body(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


class EpisodeKeys:
    """The keys that are open now. They are looked up by digest, so that timing reveals nothing about a key.

    Args:
        store: where answers are kept for a gateway that is killed and comes back.
    """

    def __init__(self, store: AnswerStore | None = None) -> None:
        self._open: dict[bytes, OpenKey] = {}
        self._store = store

    def open(self, sample: Sample, key: str | None = None, *, streams_tokens: bool, count: Count, **more: Any) -> str:
        """Open a new key, or the given `key`; `more` is `on_answer` and `admit` of its `OpenKey`."""
        key = key or f"astune-{secrets.token_urlsafe(24)}"
        digest = digest_of(key)
        self._open[digest] = OpenKey(sample, streams_tokens, count, access=digest, store=self._store, **more)
        return key

    def close(self, key: str) -> None:
        self._open.pop(digest_of(key), None)

    def find(self, key: str) -> OpenKey | None:
        return self._open.get(digest_of(key))

    def health(self) -> dict[str, Any]:
        """Count the open keys and their running requests, and name the newest weights that answered one of them."""
        keys = list(self._open.values())
        versions = [key.weights_version for key in keys if key.weights_version is not None]
        return {
            "capacity": {"keys": len(keys), "running": sum(key.n_running for key in keys)},
            "weights_version": max(versions, default=None),
        }


def digest_of(key: str) -> bytes:
    """Return the digest by which a key is looked up, so that timing reveals nothing about it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
