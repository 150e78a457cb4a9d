"""The gateway's HTTP application. Every answer, an error too, has the shape of its dialect."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.gateway import anthropic_messages, chat_completions, responses
from astune.gateway.chat_completions import ChatRequest, Conversations, Refused, Sampled
from astune.gateway.episode_keys import EpisodeKeys, Given, OpenKey, Sender
from astune.gateway.lease_board import LeaseBoard
from astune.gateway.live_answers import LiveAnswer, LiveAnswers
from astune.gateway.worker_routes import STALE, worker_routes
from astune.schema import AstuneError, EpisodeCut, WorkflowError
from astune.schema.plain_json import strict_json, whole
from astune.serving import Guard
from astune.serving.waiting_client import while_client_waits

MAX_BODY_BYTES = 32 * 2**20
OVERRIDDEN_HEADER = "x-astune-overridden"
_NO_RETRY = {"x-should-retry": "false"}
"""Tells OpenAI's SDKs not to retry: the episode has failed with the request."""
_STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_log = logging.getLogger(__name__)

_MAX_DEPTH = 200
"""Levels of a request: a call's arguments, which have fewer, may come back within it."""
COUNT_TOKENS = "/v1/messages/count_tokens"
WRONG_KEY = "the API key is wrong, or no longer valid: that of an episode ends with the episode"


class Workers(NamedTuple):
    """Episodes for workers on other machines, and the token that all workers have."""

    board: LeaseBoard
    token: str


class EventStream(Protocol):
    """The server-sent events of one request, in the dialect's order."""

    def more(self, live: Sequence[LiveAnswer]) -> Iterator[str]:
        """Return the settled text that was not sent yet."""
        ...

    def end(self, answers: Sequence[Sampled]) -> Iterator[str]:
        """The rest: what is not sent yet, and how the answers ended."""
        ...

    def broken(self, failure: Exception) -> str:
        """The event that ends a stream in an error."""
        ...


class Dialect(Protocol):
    """The module of a dialect, which reads requests into those of Chat Completions and writes answers."""

    def read_request(self, body: Any, kept: Conversations, /) -> tuple[ChatRequest, list[str]]: ...

    def answer_of(self, request: ChatRequest, answers: Sequence[Sampled], *, answer_id: str) -> dict[str, Any]: ...

    def new_stream(self, request: ChatRequest, answer_id: str) -> EventStream: ...

    def error_of(self, failure: Exception, status: int) -> dict[str, Any]: ...


DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/messages": anthropic_messages,
}


def new_app(
    keys: EpisodeKeys, workers: Workers | None = None, *, loopback: bool = True, more: Sequence[Route] = ()
) -> Starlette:
    """The application over the keys that are open.

    Args:
        workers: the episodes for workers on other machines, where there may be any.
        loopback: whether only this machine reaches it, and only by a loopback name.
        more: routes before these.
    """

    async def answer(http: Request) -> Response:
        key = _key_of(http, keys)
        body = await body_of(http)
        dialect = _dialect_of(http)
        repeated = http.headers.get("x-stainless-retry-count", "0") != "0"
        key.admit_request(body, repeated=repeated)
        read = json_of(body)
        request, overridden = dialect.read_request(read, key.conversations)
        sender = _sender_of(http, read)
        given = await key.answers(
            request,
            body,
            idempotency_key=http.headers.get("idempotency-key"),
            repeated=repeated,
        )
        headers = {OVERRIDDEN_HEADER: ",".join(overridden)} if overridden else {}
        answer_id = f"answer-{uuid.uuid4().hex}"
        if given.live is not None:
            given.join()  # before anything is awaited: an earlier reader may be leaving
            try:
                await _begun(given.answers, given.live)
            except BaseException:
                given.leave()
                raise
            events = _events(
                given,
                given.live,
                dialect.new_stream(request, answer_id),
                on_end=lambda answers: key.keep(answer_id, request, answers, sender),
            )
            return StreamingResponse(events, media_type="text/event-stream", headers=headers | _STREAM_HEADERS)
        given.join()
        try:
            answers = await while_client_waits(http, asyncio.shield(given.answers))  # who hangs up may come back for it
        finally:
            given.leave()
        key.keep(answer_id, request, answers, sender)
        given.delivered = not await http.is_disconnected()
        return JSONResponse(dialect.answer_of(request, answers, answer_id=answer_id), headers=headers)

    async def count_tokens(http: Request) -> Response:
        key = _key_of(http, keys)
        key.admit()
        request = anthropic_messages.read_count_request(json_of(await body_of(http)))
        return JSONResponse({"input_tokens": await key.count(request)})

    async def models(http: Request) -> Response:
        key = _key_of(http, keys)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "astune"}
        model["streams_tokens"] = key.streams_tokens
        return JSONResponse({"object": "list", "data": [model]})

    async def healthz(_: Request) -> Response:
        lanes = {} if workers is None else workers.board.lanes()
        return JSONResponse({"status": "OK", **keys.health(), "lanes": lanes})

    return Starlette(
        routes=[
            *more,
            *(Route(path, answer, methods=["POST"]) for path in DIALECTS),
            Route(COUNT_TOKENS, count_tokens, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/healthz", healthz, methods=["GET"]),
            *(worker_routes(workers.board, workers.token) if workers is not None else ()),
        ],
        middleware=[Middleware(Guard, loopback=loopback, token=None, max_body_bytes=MAX_BODY_BYTES, refuse=_refusal)],
        exception_handlers={HTTPException: _refused, AstuneError: _failed, Exception: _broken, **STALE},
    )


async def _begun(answers: asyncio.Future[list[Sampled]], live: LiveAnswers) -> None:
    """Wait for the first token: earlier failures are answered with their own status."""
    seen = live.version
    while not answers.done() and not any(answer.begun for answer in live.each):
        await live.change(seen)
        seen = live.version
    if answers.done():
        answers.result()


async def _events(
    given: Given, live: LiveAnswers, stream: EventStream, *, on_end: Callable[[list[Sampled]], None]
) -> AsyncIterator[str]:
    """The events of one reader, which `given` has been joined by."""
    try:
        seen = live.version
        while not given.answers.done():
            for event in stream.more(live.each):
                yield event
            await live.change(seen)
            seen = live.version
        on_end(given.answers.result())
        for event in stream.end(given.answers.result()):
            yield event
        given.delivered = True
    except AstuneError as failure:
        yield stream.broken(failure)
    except Exception as failure:  # a defect of ours, which ends this stream alone
        _log.error("a stream of the gateway failed", exc_info=failure)
        yield stream.broken(RuntimeError(f"{type(failure).__name__} in the gateway"))
    finally:
        given.leave()


def _dialect_of(http: Request) -> Dialect:
    return DIALECTS.get(http.url.path.removesuffix("/count_tokens"), chat_completions)


def key_in(http: Request) -> str:
    """The key that a request sends, as OpenAI's or Anthropic's SDKs do."""
    kind, _, given = http.headers.get("authorization", "").partition(" ")
    return (given if kind.lower() == "bearer" else http.headers.get("x-api-key", "")).strip()


def _sender_of(http: Request, body: Any) -> Sender:
    """The user and the session of a request, by its dialect's own keys and by headers."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    named = [
        http.headers.get("x-user-id"),
        *((body.get("user"), body.get("safety_identifier")) if isinstance(body, dict) else ()),
        metadata.get("user_id") if isinstance(metadata, dict) else None,
    ]
    user = next((each for each in named if isinstance(each, str) and each), "")
    return Sender(user, http.headers.get("x-session-id", ""))


def _key_of(http: Request, keys: EpisodeKeys) -> OpenKey:
    key = keys.find(key_in(http))
    if key is None:
        raise HTTPException(401, WRONG_KEY)
    return key


async def body_of(http: Request) -> bytes:
    if http.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the content type is expected to be application/json")
    return await http.body()


def json_of(body: bytes) -> Any:
    """Strict JSON: no NaN and limited depth. Half a character, such as of a cut emoji, becomes �."""
    try:
        value = strict_json(body.decode(), most=_MAX_DEPTH)
    except ValueError as cause:
        raise Refused(f"the body is no JSON: {cause}") from cause
    return whole(value) if b"\\ud" in body.lower() else value


async def _refused(http: Request, failure: Exception) -> Response:
    """A status of HTTP in the dialect's shape."""
    if not isinstance(failure, HTTPException):
        raise failure
    body = _dialect_of(http).error_of(ValueError(failure.detail), failure.status_code)
    return JSONResponse(body, status_code=failure.status_code, headers=failure.headers)


def _refusal(status: int, detail: str) -> ASGIApp:
    """The answer to what the guard refuses."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await _refused(Request(scope), HTTPException(status, detail))
        await response(scope, receive, send)

    return answer


async def _failed(http: Request, failure: Exception) -> Response:
    """An error of astune's: 400 if the request caused it; otherwise a status that is not retried."""
    blamed = isinstance(failure, EpisodeCut | WorkflowError)
    status = 400 if blamed else 503
    body = _dialect_of(http).error_of(failure, status)
    return JSONResponse(body, status_code=status, headers=None if blamed else _NO_RETRY)


async def _broken(http: Request, failure: Exception) -> Response:
    """A defect of astune's: its traceback goes into the log, and only its kind to the agent."""
    _log.error("the gateway failed", exc_info=failure)
    body = _dialect_of(http).error_of(RuntimeError(f"{type(failure).__name__} in the gateway"), 500)
    return JSONResponse(body, status_code=500, headers=_NO_RETRY)
