"""Continuous batching: which requests run, what each forward pass computes for them, and when they are done.

One step packs the next token of every running request with pieces of the prompts that are new. It knows
nothing of threads or event loops; `in_process` drives it from one worker thread.

To a batch-invariant scheduler a completion is a function of the weights, the prompt and its seed, whatever runs beside
it or ran before. Where a model computes every row as if it were alone, nothing has to be done for that. Elsewhere
prompts but for their last token are computed apart from next tokens, both in packs of one size, and only what packs of
prompts computed is taken over, in whole pieces.
"""

from __future__ import annotations

import random
from array import array
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from astune.engine.base import EngineStats, OnToken, ignore_token
from astune.engine.local._batch import PackedBatch
from astune.engine.local._hf_model import TokenModel
from astune.engine.local._prefixes import PrefixIndex, SlotIndex
from astune.engine.local._sampling import Sampled, random_stream, sample
from astune.engine.local.grammar import Bits, Matcher, forbid_others
from astune.engine.local.slots import PIECE_TOKENS, Slot, SlotCache
from astune.schema import Completion, EngineError, SamplingParams

_PREFILL_TOKENS = 2048
"""New prompt tokens of one forward pass; more would keep running requests waiting and outgrow the caches."""
_INVARIANT_PREFILL_ROWS = 2 * PIECE_TOKENS
"""Rows of a padded pass over prompts: fewer cost as much a pass, more are computed in vain for short ones."""
_INVARIANT_NEXT_ROWS = 32
"""Rows of a padded pass over next tokens, at most. Measured on two cores: 27 ms for one row, 34 ms for 32."""
_INVARIANT_MULTIPLE = 8
"""These rows are a multiple of it: of 6 MKL sums the last in another order than the first, of 8 all in one."""
_WORTH_WAITING_FOR = 16
"""A request waits one step for another's prefill when it can then copy at least this many more tokens."""


T = TypeVar("T")


@dataclass(eq=False)
class Request:
    """A call of `generate` on its way through the engine; its caller awaits the future."""

    prompt: array[int]
    params: SamplingParams
    session: str
    future: Future[Completion]
    matcher: Matcher | None = None
    """Follows the completion through its grammar; None where the model is free."""
    on_token: OnToken = ignore_token
    cancelled: bool = False
    slot: Slot | None = None
    cached_tokens: int = 0
    """Tokens of the prompt that were in the cache."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    problem: EngineError | None = None
    """Why it cannot go on."""
    stream: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.stream = random_stream(self.params.seed)

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.params.max_tokens


@dataclass
class _Work:
    """A running request's share of one forward pass. `samples` asks for the token that follows."""

    request: Request
    slot: Slot
    tokens: array[int] | list[int]
    samples: bool


class Scheduler:
    """Requests in, completions to their callers; `step` is one forward pass."""

    def __init__(
        self,
        model: TokenModel,
        cache: SlotCache,
        *,
        max_batch_size: int,
        device: torch.device,
        batch_invariant: bool,
    ) -> None:
        self._model = model
        self._cache = cache
        self._max_batch_size = max_batch_size
        self._device = device
        self._batch_invariant = batch_invariant
        self._in_pieces = batch_invariant and not model.is_row_invariant
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.open_sessions: set[str] = set()
        self.version = 0
        self._stats = EngineStats()
        self._outcomes: list[tuple[Future[Completion], Completion | EngineError]] = []

    @property
    def stats(self) -> EngineStats:
        return replace(self._stats, running=len(self.running), waiting=len(self.waiting))

    def deliver(self) -> int:
        """Deliver finished requests, after the counters were published, so that these include them.

        Returns the number of tokens in completions whose callers had gone.
        """
        outcomes, self._outcomes = self._outcomes, []
        unread = [outcome for future, outcome in outcomes if not settle(future, outcome)]
        return sum(len(outcome.token_ids) for outcome in unread if isinstance(outcome, Completion))

    def forget(self) -> None:
        """Drop every cached key and value; only while nothing runs."""
        self._cache.reset()

    def fail_all(self, error: EngineError) -> None:
        """Forget the requests; their callers get the error with the next delivery."""
        self._count(cancelled_tokens=sum(len(request.token_ids) for request in self.running))
        self._outcomes.extend((request.future, error) for request in [*self.running, *self.waiting])
        self.running, self.waiting = [], []

    def drop_cancelled(self) -> None:
        for request in [request for request in self.running if request.cancelled]:
            self._count(cancelled_tokens=len(request.token_ids))
            self._leave(request)
        self.waiting = [request for request in self.waiting if not request.cancelled]

    def admit(self) -> None:
        """Move waiting requests to the running ones, in order, as far as batch size and memory go."""
        if not self.waiting or len(self.running) >= self._max_batch_size:
            return
        cached, under_way = SlotIndex(self._cache.slots), PrefixIndex[Request]()
        for request in filter(_is_under_way, self.running):
            under_way.add(request.params.policy, request.prompt, request)
        deferred: list[Request] = []
        for position, request in enumerate(self.waiting):
            if len(self.running) >= self._max_batch_size:
                deferred.extend(self.waiting[position:])
                break
            prompt, policy = request.prompt, request.params.policy
            source, shared = cached.longest(policy, prompt)
            shared = self._reusable(shared, prompt)
            if self._reusable(under_way.longest(policy, prompt)[1], prompt) >= shared + _WORTH_WAITING_FOR:
                deferred.append(request)
                continue
            slot = self._cache.take(
                source if shared else None,
                shared,
                total=request.total_tokens,
                session=request.session,
                open_sessions=self.open_sessions,
                policy=policy,
                reusable=self._reusable(len(prompt), prompt) if self._in_pieces else None,
            )
            if slot is None:
                deferred.extend(self.waiting[position:])
                break
            cached.update(slot)
            request.slot = slot
            request.cached_tokens = len(slot.tokens)
            self.running.append(request)
            if _is_under_way(request):
                under_way.add(policy, prompt, request)
            self._count(prompt_tokens=len(prompt), prefilled_tokens=len(prompt) - request.cached_tokens)
        self.waiting = deferred

    def _reusable(self, tokens: int, prompt: array[int]) -> int:
        """Count the leading `tokens` of a prompt that can be reused; the last one is recomputed, for its logits."""
        most = min(tokens, len(prompt) - 1)
        return most // PIECE_TOKENS * PIECE_TOKENS if self._in_pieces else most

    def step(self) -> None:
        """Compute something for each running request, and one token for each that has its prompt behind it."""
        if not self._in_pieces:
            self._forward(sorted(self._plan(), key=lambda item: (len(item.tokens), item.request.params.policy)))
            return
        if prompts := self._plan_prompts():
            self._forward(prompts, _INVARIANT_PREFILL_ROWS)
        next_tokens = self._plan_next_tokens()
        rows = _invariant_next_rows(self._max_batch_size)
        for first in range(0, len(next_tokens), rows):
            self._forward(next_tokens[first : first + rows], rows)

    def _forward(self, work: list[_Work], rows: int | None = None) -> None:
        """A forward pass; of exactly `rows` rows, if given."""
        sampling = [item for item in work if item.samples]
        ends = np.cumsum([len(item.tokens) for item in work]).tolist()
        logit_rows = [end - 1 for end, item in zip(ends, work, strict=True) if item.samples]
        self._cache.grow(max(len(item.slot.tokens) + len(item.tokens) for item in work))
        batch = PackedBatch(
            self._cache,
            [(item.slot, item.tokens) for item in work],
            logit_rows,
            self._device,
            rows=rows,
            invariant=self._batch_invariant,
        )
        logits_BV = self._model.forward(batch)[: len(sampling)]
        for item in work:
            item.slot.tokens.extend(item.tokens)
        if not sampling:
            return
        forbid_others(logits_BV, _allowed(sampling))
        drawn = sample(logits_BV, [i.request.params for i in sampling], [i.request.stream for i in sampling])
        self._count(sampled_tokens=len(drawn))
        for item, one in zip(sampling, drawn, strict=True):
            self._advance(item.request, one)

    def _plan(self) -> list[_Work]:
        work: list[_Work] = []
        budget = _PREFILL_TOKENS
        for request in self.running:
            slot = _slot_of(request)
            done = len(slot.tokens)
            if request.token_ids:
                work.append(_Work(request, slot, request.token_ids[-1:], samples=True))
            elif budget > 0:
                tokens = request.prompt[done : done + budget]
                budget -= len(tokens)
                work.append(_Work(request, slot, tokens, samples=done + len(tokens) == len(request.prompt)))
        return work

    def _plan_prompts(self) -> list[_Work]:
        """Prompts but for their last token, from the beginning of a piece to the end of one or of the prompt."""
        work: list[_Work] = []
        room = _INVARIANT_PREFILL_ROWS
        for request in self.running:
            slot = _slot_of(request)
            done, end = len(slot.tokens), len(request.prompt) - 1
            if end - done > room:
                end = done + room // PIECE_TOKENS * PIECE_TOKENS
            if done < end:
                work.append(_Work(request, slot, request.prompt[done:end], samples=False))
                room -= end - done
        return work

    def _plan_next_tokens(self) -> list[_Work]:
        """The last token of every request that has all before it in the cache."""
        work: list[_Work] = []
        for request in self.running:
            slot = _slot_of(request)
            if len(slot.tokens) >= len(request.prompt) - 1:
                last = request.token_ids[-1:] or request.prompt[-1:]
                work.append(_Work(request, slot, last, samples=True))
        return work

    def _advance(self, request: Request, drawn: Sampled) -> None:
        request.token_ids.append(drawn.token)
        request.logprobs.append(drawn.logprob)
        params = request.params
        if not drawn.finite:
            self._cache.clear(_slot_of(request))
            request.problem = EngineError(
                "the model's output is not finite, so nothing can be sampled from it",
                hint="the weights are damaged or training diverged: lower trainer.optim.lr",
            )
        if request.problem is not None:
            self._count(cancelled_tokens=len(request.token_ids))
            self._leave(request)
            self._outcomes.append((request.future, request.problem))
            return
        if request.matcher is not None:
            request.matcher.accept(drawn.token)
        stops_here = request.on_token(drawn.token)
        stopped = stops_here or drawn.token in params.stop_token_ids
        if stopped or len(request.token_ids) == params.max_tokens:
            self._leave(request)
            reason = "stop" if stopped else "length"
            completion = Completion(request.token_ids, request.logprobs, reason, self.version, request.cached_tokens)
            self._outcomes.append((request.future, completion))

    def _leave(self, request: Request) -> None:
        self._cache.release(_slot_of(request))
        self.running.remove(request)

    def _count(self, **more: int) -> None:
        self._stats = self._stats.plus(**more)


def _invariant_next_rows(max_batch_size: int) -> int:
    if max_batch_size == 1:
        return 1
    return min(_INVARIANT_NEXT_ROWS, -(-max_batch_size // _INVARIANT_MULTIPLE) * _INVARIANT_MULTIPLE)


def settle(future: Future[T], outcome: T | EngineError) -> bool:
    """Give a caller its result, or an error of its own; False where the caller was cancelled."""
    if not future.set_running_or_notify_cancel():
        return False
    if isinstance(outcome, EngineError):
        future.set_exception(EngineError(outcome.message, hint=outcome.hint))
    else:
        future.set_result(outcome)
    return True


def _allowed(sampling: list[_Work]) -> dict[int, Bits]:
    """The mask of each row that has a grammar; on an accelerator the forward pass is still under way meanwhile."""
    masks: dict[int, Bits] = {}
    for row, item in enumerate(sampling):
        if item.request.matcher is None:
            continue
        try:
            masks[row] = item.request.matcher.allowed()
        except EngineError as problem:
            item.request.problem = problem
    return masks


def _is_under_way(request: Request) -> bool:
    """Whether its prompt will be in the cache within a step or two, and is not yet."""
    return request.slot is not None and len(request.slot.tokens) < len(request.prompt) - 1


def _slot_of(request: Request) -> Slot:
    if request.slot is None:
        raise EngineError("a request runs without a place in the cache")
    return request.slot
