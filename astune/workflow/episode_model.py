"""The model within one episode: every call is tracked, seeded, timed and bound by a deadline.

Calls may come from any task, event loop or thread; they run on the loop that runs the episode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from astune.config.schema import AstuneConfig
from astune.context_tracker import ContextTracker, PendingCall
from astune.context_tracker.agentscope import Usage
from astune.context_tracker.pending import CallSeeds
from astune.engine.base import InferenceEngine, OnToken
from astune.gateway.live_answers import LiveAnswer
from astune.gateway.rate_limit import RateLimit
from astune.renderers import Comparison, Renderer, Tool
from astune.renderers.stop_sequences import StopWatch
from astune.renderers.text_renderer import TextRenderer
from astune.schema import (
    AstuneError,
    Completion,
    ContextOverflow,
    EngineError,
    EpisodeCut,
    Grammar,
    GrammarError,
    MalformedCall,
    Message,
    SamplingParams,
    WorkflowError,
    boundary,
    cancel_until_ended,
)
from astune.workflow.outside import OutsideModel, Route, route_to

T = TypeVar("T")
_HINT = "the engine or one of its requests is stuck or too slow; raise rollout.call_timeout_s if that is expected"

_SHOWN_CHARACTERS = 400
_LOOP_FREE_S = 30.0
"""Seconds without a response after which the event loop counts as blocked."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Request of an agent to the model.

    The answer matches `grammar`, or calls one of `must_call`, unless it reaches its length limit.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool]
    agent: str
    trainable: bool
    grammar: Grammar | None = None
    must_call: Sequence[Tool] = ()
    max_tokens: int | None = None
    """Maximum tokens of the answer, if the agent wants fewer than the run allows."""
    policy: str = ""
    """Policy that answers: one of the run's `models`, or the base model."""
    live: LiveAnswer | None = None
    """Gets the answer while it is sampled, where the engine can show it."""
    stop: Sequence[str] = ()
    """Texts at which the answer ends, and which are not part of its message."""
    outside: OutsideModel | None = None
    """The model behind an endpoint that answers in place of a policy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer to a call, and the cost of the call. `completion` is None if nothing was sampled."""

    message: Message
    usage: Usage
    completion: Completion | None = None
    stopped_by: str | None = None
    """The stop sequence that ended it."""


class EpisodeModel:
    """Access to the engine for one episode's agents.

    Args:
        session: the episode's name; the engine keeps its prefix cache under it.
        seed: the episode's, from which each call gets its own.
        on_call: called when a call begins (True) and when it ends (False).
    """

    def __init__(
        self,
        engine: InferenceEngine,
        renderer: Renderer,
        config: AstuneConfig,
        *,
        session: str,
        seed: int,
        temperature: float,
        on_call: Callable[[bool], None] = lambda _: None,
    ) -> None:
        rollout, policy = config.rollout, config.rollout.timelines
        self.config = config
        self.tracker = ContextTracker(
            renderer, rollout.max_model_len, Comparison(policy.compare_level, policy.ignore_tools)
        )
        self._own = Route(engine, self.tracker, rollout.max_model_len)
        self._outside: dict[OutsideModel, Route] = {}
        self._callers: set[str] = set()
        self.knows_logprobs = not isinstance(renderer, TextRenderer)
        """Whether the engine's answers have log-probabilities; an endpoint that gives text only has none."""
        self.session = session
        self._params = SamplingParams(
            max_tokens=rollout.max_response_length_in_one_turn,
            temperature=temperature,
            top_p=rollout.top_p,
            stop_token_ids=renderer.stop_token_ids,
            seed=seed,
        )
        self._timeout_s = rollout.call_timeout_s
        self._malformed = rollout.malformed_tool_calls
        self._on_call = on_call
        self.rate = RateLimit("an episode", rollout.calls_per_minute)
        """Limit of all agents together that ask by HTTP."""
        self._home = asyncio.get_running_loop()
        self._closed: str | None = None
        self._at_close: list[Callable[[], object]] = []
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._seeds = CallSeeds()
        self.n_calls = 0
        self.n_answers = 0
        self.seconds = 0.0
        self.cut: EpisodeCut | None = None
        """The first prompt that did not fit, or answer that ends the episode."""
        self.n_overflows = 0
        self.failure: AstuneError | None = None

    def close(self, why: str) -> None:
        """Refuse further calls, so that code that outlives its episode has no effect."""
        self._closed = self._closed or why
        while self._at_close:
            self._at_close.pop()()

    def at_close(self, callback: Callable[[], object]) -> None:
        """Call `callback` as soon as calls are refused."""
        self._at_close.append(callback)

    async def aclose(self, why: str) -> None:
        """Close, and cancel calls of threads and forgotten tasks that are still in progress."""
        self.close(why)
        await cancel_until_ended(lambda: self._in_flight)

    def require_open(self) -> None:
        if self._closed is not None:
            raise WorkflowError(f"the episode {self.session} is over: {self._closed}")

    def has_called(self, agent: str) -> bool:
        """Return whether the agent has called the model."""
        return agent in self._callers

    async def call(self, asked: ModelCall) -> Answer:
        """Run a tracked model call.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            EngineError, DeadlineExceeded: no answer came; the episode ends in an error even if this is swallowed.
            MalformedCall: the answer has an unparsable tool call and must not be read as text.
            WorkflowError: the messages, the tools or the answer's form cannot be expressed.
        """
        return await self._at_home(self._call(asked))

    async def count(self, asked: ModelCall) -> int:
        """Tokens of the call's prompt.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            WorkflowError: the messages or the tools cannot be expressed.
        """

        async def prepared() -> int:
            self.require_open()
            if asked.outside is not None:
                raise WorkflowError(f"the tokens of a prompt for {asked.outside.base_url} are not known here")
            return len(_prepared(self._own, asked).prompt_ids)

        return await self._at_home(prepared())

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the loop that runs the episode, from whatever loop it is asked for."""
        if asyncio.get_running_loop() is self._home:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))

    async def require_free_loop(self) -> None:
        """Wait, on another loop, until the episode's own event loop responds.

        Raises:
            WorkflowError: it is blocked, most likely by the workflow, which waits for this call.
        """
        here, free = asyncio.get_running_loop(), asyncio.Event()
        self._home.call_soon_threadsafe(here.call_soon_threadsafe, free.set)
        try:
            await asyncio.wait_for(free.wait(), _LOOP_FREE_S)
        except TimeoutError as cause:
            raise WorkflowError(
                f"the event loop of episode {self.session} was blocked for {_LOOP_FREE_S:g} s",
                hint="use an asynchronous client in `async def execute`, or write execute as an ordinary function",
            ) from cause

    @property
    def streams_tokens(self) -> bool:
        """Return whether an answer can be streamed while it is sampled."""
        return self._own.streaming is not None

    def decoded(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        return [self._own.tracker.decode([token]) for token in token_ids]

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work for synchronous code, which does not run on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._home).result()

    async def _call(self, asked: ModelCall) -> Answer:
        self._callers.add(asked.agent)
        self.require_open()
        if isinstance(self.cut, MalformedCall):
            raise self.cut
        index, self.n_calls = self.n_calls, self.n_calls + 1
        what = f"model call {index + 1} of episode {self.session}"
        try:
            route = await self._route(asked.outside, what)
            pending = _prepared(route, asked)
        except ContextOverflow as overflow:
            await self._note(overflow)
            raise
        room = route.max_model_len - len(pending.prompt_ids)
        params = replace(
            self._params,
            max_tokens=min(self._params.max_tokens, room if asked.max_tokens is None else asked.max_tokens, room),
            seed=self._seeds.next(self._params.seed, pending.agent, pending.form, pending.prompt_ids),
            grammar=pending.form,
            policy=asked.policy,
        )
        start = time.perf_counter()
        try:
            with self._flight():
                async with boundary(EngineError, what, timeout_s=self._timeout_s, hint=_HINT):
                    completion = await self._sampled(route, pending, params, asked.live)
        except ContextOverflow as overflow:
            await self._note(overflow)
            raise
        except GrammarError as failure:
            raise _form_error(asked, failure) from failure
        except AstuneError as failure:
            self.failure = self.failure or failure
            raise
        usage = Usage(len(pending.prompt_ids), len(completion.token_ids), time.perf_counter() - start)
        message = route.tracker.commit(pending, completion, params.constraint)
        if route is not self._own:
            self._own.tracker.read([*asked.messages, message], asked.tools, agent=asked.agent)
        self.n_answers += 1
        newest = route.tracker.forest.nodes[-1]
        self._check_calls(newest.malformed_calls)
        return Answer(message, usage, completion, newest.stopped_by)

    async def _route(self, outside: OutsideModel | None, what: str) -> Route:
        """The engine that answers, with the record of what it answered in this episode."""
        if outside is None:
            return self._own
        if outside not in self._outside:
            try:
                async with boundary(EngineError, what, timeout_s=self._timeout_s, hint=_HINT):
                    opened = await route_to(outside)
            except AstuneError as failure:
                self.failure = self.failure or failure
                raise
            self._outside.setdefault(outside, opened)
        return self._outside[outside]

    def _check_calls(self, malformed: Sequence[str]) -> None:
        """Raise MalformedCall where the newest answer has such calls and the agent is not to read them as text."""
        if not malformed or self._malformed == "as_text":
            return
        failure = MalformedCall(
            f"the model's tool call cannot be read: {malformed[0][:_SHOWN_CHARACTERS]!r}",
            hint="rollout.malformed_tool_calls sets how such answers are handled",
        )
        if self._malformed == "end_episode":
            self.cut = self.cut or failure
        raise failure

    async def _sampled(
        self, route: Route, pending: PendingCall, params: SamplingParams, live: LiveAnswer | None
    ) -> Completion:
        """The engine's completion, shown to `live` while it is made, and ended at a stop sequence.

        Raises:
            WorkflowError: there is one, and the engine does not show its tokens.
        """
        task = asyncio.current_task()
        tracker, streaming = route.tracker, route.streaming
        if streaming is None and pending.stop:
            raise WorkflowError(
                "stop sequences are not offered with this engine, which shows an answer at its end only",
                hint="use engine.type in_process or vllm, or cut the answer's text in the agent",
            )
        if (live is None and not pending.stop) or streaming is None or task is None:
            return await route.engine.generate(pending.prompt_ids, params, session=self.session)
        watch = StopWatch(pending.stop, tracker.decode, lambda ids: tracker.shows_stop(pending, ids))
        if live is None:
            shown: OnToken = watch.ends_with
        else:
            live.begin(
                len(pending.prompt_ids),
                lambda token_ids: tracker.settled(pending, token_ids, calls=self._malformed != "as_text"),
                cancel=lambda: self._home.call_soon_threadsafe(task.cancel),
            )
            feed = live.feed
            shown = lambda token: feed(token) or watch.ends_with(token)  # noqa: E731
        return await streaming.stream(pending.prompt_ids, params, session=self.session, on_token=shown)

    async def _note(self, overflow: ContextOverflow) -> None:
        """Count a prompt that did not fit, and let the event loop run: an agent may repeat it for ever without
        waiting."""
        self.cut = self.cut or overflow
        self.n_overflows += 1
        await asyncio.sleep(0)

    @contextmanager
    def _flight(self) -> Iterator[None]:
        """The time that a call is with the engine, and the task that waits for it."""
        start = time.perf_counter()
        caller = asyncio.current_task()
        if caller is not None:
            self._in_flight.add(caller)
        self._on_call(True)
        try:
            yield
        finally:
            if caller is not None:
                self._in_flight.discard(caller)
            self.seconds += time.perf_counter() - start
            self._on_call(False)


def _prepared(route: Route, asked: ModelCall) -> PendingCall:
    return route.tracker.prepare(
        asked.messages,
        asked.tools,
        agent=asked.agent,
        trainable=asked.trainable,
        grammar=asked.grammar,
        must_call=asked.must_call,
        stop=asked.stop,
    )


def _form_error(asked: ModelCall, failure: GrammarError) -> WorkflowError:
    """Rephrase the error in the agent's terms: for a forced call it knows the tools, not the derived grammar."""
    if not asked.must_call:
        return failure
    names = ", ".join(tool["function"]["name"] for tool in asked.must_call)
    return WorkflowError(
        f"a call of {names} cannot be forced: its parameters make no grammar: {failure.reason}",
        hint="correct the JSON schema of the tool's parameters, or leave tool_choice free",
    )
