"""Serving models to users: client keys, traffic shares, a log of conversations, and feedback on them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astune.backbone.engines import OpenModel, open_model
from astune.config import AstuneConfig
from astune.config.strict import changed
from astune.feedback import FeedbackStore, Interaction, Masker
from astune.feedback.rating_files import rating_of
from astune.gateway.app import body_of, json_of, key_in
from astune.gateway.chat_completions import ChatRequest, Refused, Sampled
from astune.gateway.episode_keys import Exchange
from astune.gateway.live_answers import LiveAnswer
from astune.gateway.rate_limit import RateLimit
from astune.gateway.server import GatewayServer
from astune.schema import ConfigError, RunStoreError, TaskReaderError
from astune.workflow import AgentModel, EpisodeModel
from astune.workflow.agent_model import DEFAULT_AGENT, Answering

_RENEWED_AFTER = 1_000
"""Calls after which a model's cached conversations are discarded; ongoing ones are then re-read from their start."""
_LOOKS_EVERY_S = 5.0
_logger = logging.getLogger(__name__)


@dataclass
class Client:
    """A client and its usage."""

    name: str
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def usage(self) -> dict[str, Any]:
        """Return the client's usage since the server started."""
        tokens = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {"client": self.name, "requests": self.requests, **tokens}


class Version:
    """A served model. Its agent is renewed periodically to bound memory."""

    def __init__(self, name: str, share: float, opened: OpenModel) -> None:
        self.name = name
        self.share = share
        self._opened = opened
        self._number = 0
        self.agent = self._new()

    def _new(self) -> AgentModel:
        self._number += 1
        session = f"serve-{self.name}-{self._number}"
        self._opened.engine.open_session(session)
        return agent_of(self._opened, session)

    async def renew(self) -> None:
        """Replace the agent after many answers; calls in progress finish first."""
        old = self.agent
        if old.n_calls < _RENEWED_AFTER:
            return
        self.agent = self._new()
        await asyncio.sleep(self._opened.config.rollout.call_timeout_s)
        await old.aclose("it was renewed")
        self._opened.engine.close_session(old.session)


def normalised(shares: Sequence[float]) -> list[float]:
    """The shares of sessions as parts of 1. Raises ConfigError if one of them is not above 0."""
    if not shares or any(not 0 < share < math.inf for share in shares):
        raise ConfigError("shares of traffic are above 0", hint="as --share 0.9 --share 0.1")
    return [share / sum(shares) for share in shares]


class ModelServer:
    """Serves versions of a model until it is cancelled.

    Args:
        configs: one for each version, with its share of the sessions; a session stays with its version.
        clients: a key for each client's name; an empty one is made.
        per_minute: requests of each client in a minute; None sets no limit.
        store: where conversations and feedback are kept.
    """

    def __init__(
        self,
        configs: Sequence[tuple[AstuneConfig, float]],
        *,
        clients: dict[str, str],
        store: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        per_minute: int | None = None,
        masker: Masker | None = None,
    ) -> None:
        shares = normalised([share for _, share in configs])
        self._configs = [(config, share) for (config, _), share in zip(configs, shares, strict=True)]
        self._per_minute = per_minute
        self.store = FeedbackStore(store, masker)
        routes = [Route("/feedback", self._feedback, methods=["POST"]), Route("/usage", self._usage, methods=["GET"])]
        self._server = GatewayServer(port, host=host, more=routes, at_once=False)
        self._asked = clients
        self._clients: dict[str, Client] = {}
        self.versions: list[Version] = []

    @property
    def base_url(self) -> str:
        return self._server.base_url

    async def serve(self, ready: asyncio.Event) -> None:
        """Load the models, open the keys, and answer until the task is cancelled; `ready` is set when it answers."""
        async with AsyncExitStack() as closing:
            for number, (config, share) in enumerate(self._configs, 1):
                opened = await closing.enter_async_context(open_model(config))
                self.versions.append(Version(f"{number}:{config.model.path}", share, opened))
            self.keys = {name: self._open(name, key) for name, key in self._asked.items()}
            self._server.serve()
            ready.set()
            while True:
                await asyncio.sleep(_LOOKS_EVERY_S)
                await asyncio.gather(*(version.renew() for version in self.versions))

    def _open(self, name: str, key: str) -> str:
        client = Client(name)

        async def sample(request: ChatRequest, live: LiveAnswer | None) -> Sampled:
            _require_one_answer(request)
            return await self._version_of(client, request).agent.sample(request, live)

        async def count(request: ChatRequest) -> int:
            return await self._version_of(client, request).agent.count(request)

        opened = self._server.keys.open(
            sample,
            key or None,
            streams_tokens=all(version.agent.streams_tokens for version in self.versions),
            count=count,
            on_answer=lambda exchange: self._log(client, exchange),
            admit=RateLimit(name, self._per_minute).admit,
        )
        self._clients[opened] = client
        return opened

    def _version_of(self, client: Client, request: ChatRequest) -> Version:
        """The version of a session, always the same one: the session's name decides."""
        at = int.from_bytes(hashlib.sha256(_session_of(client, request).encode()).digest()[:8]) / 2**64
        for version in self.versions[:-1]:
            if at < version.share:
                return version
            at -= version.share
        return self.versions[-1]

    def _log(self, client: Client, exchange: Exchange) -> None:
        request, [answer] = exchange.request, exchange.answers
        client.requests += 1
        sampled = len(answer.logprobs)
        client.prompt_tokens += answer.read_tokens
        client.completion_tokens += sampled
        interaction = Interaction(
            exchange.answer_id,
            [*request.messages, answer.message],
            session=exchange.sender.session or _session_of(client, request),
            user=exchange.sender.user,
            client=client.name,
            model=self._version_of(client, request).name,
            tools=list(request.tools or ()),
            source="served",
            created_at=time.time(),
            prompt_tokens=answer.read_tokens,
            completion_tokens=sampled,
        )
        try:
            self.store.add(interaction)
        except RunStoreError as failure:  # the client gets it too, but cannot fix it
            _logger.error("an answer was not sent, since it could not be kept: %s", failure)
            raise

    async def _feedback(self, http: Request) -> Response:
        """`{conversation_id or trace_id, rating, comment?, corrected_answer?, user?}`; the id is the answer's."""
        self._client_of(http)
        try:
            body = json_of(await body_of(http))
            if not isinstance(body, dict):
                raise Refused("the body is expected to be a JSON object")
            rating = rating_of(body | {"created_at": time.time()}, "the feedback")
            new = self.store.rate(rating)
        except (TaskReaderError, Refused) as cause:
            raise HTTPException(400, str(cause)) from cause
        except KeyError as cause:
            raise HTTPException(404, f"there is no conversation {cause}") from cause
        return JSONResponse({"kept": new}, status_code=201 if new else 200)

    async def _usage(self, http: Request) -> Response:
        return JSONResponse(self._client_of(http).usage())

    def _client_of(self, http: Request) -> Client:
        client = self._clients.get(key_in(http))
        if client is None:
            raise HTTPException(401, "the key is not known here")
        return client


def agent_of(opened: OpenModel, session: str) -> AgentModel:
    """Return an agent's model on `opened`, in the engine's `session`, that lives while it is in use.

    Where there are several policies, the `model` of a request names one of them, or a target.
    """
    config = changed(opened.config, rollout={"malformed_tool_calls": "as_text"})
    temperature = config.rollout.temperature
    model = EpisodeModel(
        opened.engine, opened.renderer, config, session=session, seed=config.seed, temperature=temperature
    )
    model.rate = RateLimit("an episode", None)  # clients have limits of their own
    return AgentModel(
        model,
        agent=DEFAULT_AGENT,
        empty_on_overflow=False,
        answering=lambda name: Answering(_policy_named(config, name), trainable=True),
    )


def _policy_named(config: AstuneConfig, name: str) -> str:
    """The policy that a request's `model` means: its name, or one of its targets, or else the default."""
    policy = config.models.get(name)
    return config.policy_of(name) if policy is None else name if policy.has_weights else ""


def _require_one_answer(request: ChatRequest) -> None:
    """
    Raises:
        Refused: it asks for several answers, of which feedback could not name one.
    """
    if (request.n or 1) > 1:
        raise Refused(
            f"n is {request.n}, but a served model gives one answer a request, since feedback names it by its id",
            key="n",
            hint="send the request several times",
        )


def _session_of(client: Client, request: ChatRequest) -> str:
    """A name of the conversation that a request belongs to: its client and how it began."""
    first = next((i for i, message in enumerate(request.messages) if message.get("role") == "user"), 0)
    begun = [(message.get("role"), str(message.get("content"))) for message in request.messages[: first + 1]]
    return hashlib.sha256(f"{client.name} {begun}".encode()).hexdigest()[:24]
