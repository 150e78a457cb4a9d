"""A stand-in engine for tests: it answers from a script. No model is behind it; its log-probabilities are made up."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from astune.engine.base import EngineStats, OnToken, WeightsSource, ignore_token, require_context
from astune.schema import Completion, EngineError, SamplingParams

Script = Callable[[list[int], SamplingParams, str], Sequence[int] | Awaitable[Sequence[int]]]
"""(prompt ids, sampling parameters, session) to the reply's token ids; it may be async, and it may raise."""


class ScriptedEngine:
    """Answers with given token ids, as an engine would return them.

    Args:
        replies: either the replies of one session, the first for its first call and so on, repeated for every session,
            or a function of (prompt ids, sampling parameters, session).
        max_model_len: longer prompts are refused as a real engine refuses them.

    A reply is cut after its first stop token and after `max_tokens`. A reply that has neither gets the request's first
    stop token appended, where there is one. Log-probabilities depend on token, position and weights version only.
    """

    def __init__(self, replies: Sequence[Sequence[int]] | Script, *, max_model_len: int = 1 << 20) -> None:
        self._replies = replies
        self._max_model_len = max_model_len
        self._calls: Counter[str] = Counter()
        self._stats = EngineStats()
        self._version = 0
        self._closed = False
        self.open_sessions: set[str] = set()

    def open_session(self, session: str) -> None:
        self.open_sessions.add(session)

    def close_session(self, session: str) -> None:
        self.open_sessions.discard(session)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.stream(prompt_ids, params, session=session)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        """Show the tokens one by one, with a turn of the event loop between them."""
        if self._closed:
            raise EngineError("the engine is closed")
        prompt = list(prompt_ids)
        require_context(len(prompt), params, self._max_model_len)
        version = self._version
        reply = self._next_reply(prompt, params, session)
        token_ids, finished = _cut(list(await reply if inspect.isawaitable(reply) else reply), params)
        self._stats = self._stats.plus(prompt_tokens=len(prompt), prefilled_tokens=len(prompt))
        shown = len(token_ids)
        try:
            if on_token is not ignore_token:
                for shown, token in enumerate(token_ids, 1):
                    if on_token(token):
                        token_ids, finished = token_ids[:shown], True
                        break
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._stats = self._stats.plus(cancelled_tokens=shown)
            raise
        finally:
            self._stats = self._stats.plus(sampled_tokens=shown)
        logprobs = [made_up_logprob(token, position, version) for position, token in enumerate(token_ids)]
        return Completion(token_ids, logprobs, "stop" if finished else "length", version)

    def _next_reply(
        self, prompt: list[int], params: SamplingParams, session: str
    ) -> Sequence[int] | Awaitable[Sequence[int]]:
        call = self._calls[session]
        self._calls[session] += 1
        if callable(self._replies):
            return self._replies(prompt, params, session)
        if call >= len(self._replies):
            raise EngineError(f"the script has {len(self._replies)} replies, session {session} asked for one more")
        return self._replies[call]

    async def load_weights(self, source: WeightsSource) -> int:
        self._version = source.version
        return self._version

    def stats(self) -> EngineStats:
        return self._stats

    async def aclose(self) -> None:
        self._closed = True


def made_up_logprob(token: int, position: int, version: int) -> float:
    """A log-probability in [-2, 0) that is the same whenever it is asked for."""
    return -(1 + (token * 7919 + position * 104729 + version * 31) % 1000) / 500


def _cut(token_ids: list[int], params: SamplingParams) -> tuple[list[int], bool]:
    """The reply up to its first stop token or `max_tokens`, and whether it stopped."""
    for position, token in enumerate(token_ids[: params.max_tokens]):
        if token in params.stop_token_ids:
            return token_ids[: position + 1], True
    if len(token_ids) < params.max_tokens and params.stop_token_ids:
        return [*token_ids, params.stop_token_ids[0]], True
    return token_ids[: params.max_tokens], False
