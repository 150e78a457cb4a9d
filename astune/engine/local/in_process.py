"""The in-process engine: one worker thread steps the model, callers on any event loop await their completions.

It batches continuously, keeps the keys and values of a session from turn to turn, and shares the common
beginning of a group's prompts. It decides nothing about what is sampled or trained.
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from astune.config.schema import EngineConfig, ModelConfig
from astune.engine.adapters import AdapterSource, initial_adapter
from astune.engine.base import EngineStats, OnToken, WeightsSource, ignore_token, require_context
from astune.engine.cpu_threads import end_idle_helpers
from astune.engine.local._hf_model import HfModel, TokenModel, load_transformers
from astune.engine.local._scheduler import Request, Scheduler, settle
from astune.engine.local.allocator import give_back_freed_memory, set_up_cpu_memory
from astune.engine.local.context_bounds import require_within_bounds
from astune.engine.local.cpu_llama import CpuLlama, is_supported
from astune.engine.local.device import pick_device, pick_dtype, takes_int8
from astune.engine.local.grammar import Grammars, Matcher
from astune.engine.local.kernels import can_attend_to
from astune.engine.local.slots import SlotCache
from astune.schema import Completion, ConfigError, Constraint, EngineError, SamplingParams

_SLOTS_A_REQUEST = 2
"""Sequences kept in the cache for each one that can run: episodes between two turns keep theirs."""


class InProcessEngine:
    """Implements `InferenceEngine` in this process.

    With `deterministic` it is batch-invariant: a completion is a function of the weights, the prompt and the sampling
    parameters, to the last bit, whatever is computed beside it.
    """

    def __init__(
        self,
        model: TokenModel,
        *,
        grammars: Grammars,
        dtype: torch.dtype,
        device: torch.device,
        engine: EngineConfig,
        max_model_len: int,
        deterministic: bool,
        policies: Iterable[str],
        turn: threading.Lock | None = None,
    ) -> None:
        self._model = model
        self._turn = turn or threading.Lock()
        self._policies = {"", *policies}
        self._grammars = grammars
        self._max_model_len = max_model_len
        cache = SlotCache(
            model.layer_shapes,
            dtype=dtype,
            device=device,
            budget_bytes=int(engine.kv_cache_gb * 2**30),
            max_slots=_SLOTS_A_REQUEST * engine.max_batch_size,
            shares=device.type == "cpu" and can_attend_to(model.layer_shapes, dtype),
        )
        self._cache_tokens = cache.max_tokens
        self._kv_cache_gb = engine.kv_cache_gb
        self._scheduler = Scheduler(
            model, cache, max_batch_size=engine.max_batch_size, device=device, batch_invariant=deterministic
        )
        self._changed = threading.Condition()
        """Guards everything below; notified whenever the worker may have something to do."""
        self._arrived: list[Request] = []
        self._loads: list[_Load] = []
        self._open: set[str] = set()
        self._to_empty = False
        """The last session was closed, and the cache goes when nothing runs."""
        self._has_weights = True
        """Whether requests can run; the worker's own."""
        self._unread_tokens = 0
        """Tokens of completions whose callers had gone when they were done."""
        self._stats = EngineStats()
        self._end: EngineError | None = None
        self._thread = threading.Thread(target=self._work, name="astune-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        model: ModelConfig,
        engine: EngineConfig,
        max_model_len: int,
        deterministic: bool = False,
        adapters: Mapping[str, str | None] = MappingProxyType({}),
        turn: threading.Lock | None = None,
    ) -> InProcessEngine:
        """Load a Hugging Face folder onto the device that is there.

        Args:
            adapters: the folder of each policy's adapter; None is a new one, which adds nothing yet.
            turn: held while it computes; engines on the same processors share one.

        Raises:
            EngineError: the folder cannot be loaded, or its architecture cannot be served.
            ConfigError: the model's context is shorter than `max_model_len`, or what it computes would change within.
        """
        device = pick_device(model.device)
        if device.type == "cpu":
            set_up_cpu_memory()
        dtype = pick_dtype(model.dtype, device)
        transformers_model = load_transformers(folder, dtype, device)
        context = getattr(transformers_model.config.get_text_config(), "max_position_embeddings", max_model_len)
        if max_model_len > context:
            raise ConfigError(
                f"rollout.max_model_len is {max_model_len}, but the model's context is {context} tokens",
                hint=f"set rollout.max_model_len to {context} or less",
            )
        token_model = _token_model(transformers_model, int8=engine.quantization == "int8")
        windowed = isinstance(token_model, HfModel) and token_model.windowed
        require_within_bounds(transformers_model.config.get_text_config(), max_model_len, windows=not windowed)
        token_model.load_adapters(
            {name: initial_adapter(name, path) if path else {} for name, path in adapters.items()}
        )
        end_idle_helpers()
        return cls(
            token_model,
            grammars=Grammars(folder, token_model.vocab_size),
            dtype=dtype,
            device=device,
            engine=engine,
            max_model_len=max_model_len,
            deterministic=deterministic,
            policies=adapters,
            turn=turn,
        )

    def open_session(self, session: str) -> None:
        with self._changed:
            self._open.add(session)
            self._to_empty = False

    def close_session(self, session: str) -> None:
        """End a session; its cached tokens stay for others that begin alike, until their place is needed.

        With the last one goes the cache: between rollouts its memory is the trainer's.
        """
        with self._changed:
            was_last = self._open == {session}
            self._open.discard(session)
            self._to_empty = self._to_empty or was_last
            self._changed.notify()

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.stream(prompt_ids, params, session=session)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        prompt = array("q", prompt_ids)
        self._check(prompt, params)
        matcher = await self._matcher(params.constraint) if params.constraint else None
        future: Future[Completion] = Future()
        request = Request(prompt, params, session, future, matcher, on_token)
        with self._changed:
            self._raise_if_ended()
            self._arrived.append(request)
            self._changed.notify()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            done = not future.cancel()
            with self._changed:
                request.cancelled = True
                if done and future.exception() is None:
                    self._unread_tokens += len(future.result().token_ids)
                self._changed.notify()
            raise

    async def load_weights(self, source: WeightsSource) -> int:
        """Wait until nothing runs; requests that come meanwhile wait for the new weights."""

        def take() -> None:
            self._model.load(source.named_tensors())
            self._has_weights = True

        return await self._load(take, source.version)

    async def drop_weights(self) -> None:
        def drop() -> None:
            self._has_weights = False
            self._model.drop()

        await self._load(drop, self._scheduler.version)

    async def load_adapters(self, source: AdapterSource) -> int:
        def take() -> None:
            adapters = source.adapters()
            self._model.load_adapters(adapters)
            self._policies |= adapters.keys()

        return await self._load(take, source.version)

    async def _load(self, take: Callable[[], None], version: int) -> int:
        future: Future[None] = Future()
        with self._changed:
            self._raise_if_ended()
            self._loads.append(_Load(take, version, future))
            self._changed.notify()
        await asyncio.wrap_future(future)
        return version

    def stats(self) -> EngineStats:
        with self._changed:
            return self._stats.plus(waiting=len(self._arrived), cancelled_tokens=self._unread_tokens)

    async def aclose(self) -> None:
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Close the engine from a thread that may block: requests end in an error, and the worker's thread ends."""
        with self._changed:
            if self._end is None:
                self._end = EngineError("the engine is closed")
            self._changed.notify()
        self._thread.join()

    async def _matcher(self, constraint: Constraint) -> Matcher:
        """A grammar is compiled neither on the event loop nor on the worker that steps the other requests."""
        ready = self._grammars.ready_matcher(constraint)
        return ready or await asyncio.to_thread(self._grammars.matcher, constraint)

    def _check(self, prompt: array[int], params: SamplingParams) -> None:
        total = len(prompt) + params.max_tokens
        if not prompt or params.max_tokens < 1:
            raise EngineError("a request needs at least one prompt token and max_tokens of at least 1")
        if min(prompt) < 0 or max(prompt) >= self._model.vocab_size:
            raise EngineError(
                f"the prompt holds a token outside the model's vocabulary of {self._model.vocab_size}",
                hint="the tokenizer in the model's folder is another model's: save its own there",
            )
        require_context(len(prompt), params, self._max_model_len)
        if params.policy not in self._policies:
            raise EngineError(f"the engine has no policy {params.policy!r}", hint="name those of `models`")
        if total > self._cache_tokens:
            raise EngineError(
                f"a request of {total} tokens can never fit: {self._kv_cache_gb:g} GiB hold the keys and values "
                f"of {self._cache_tokens} tokens",
                hint="raise engine.kv_cache_gb or lower rollout.max_model_len",
            )

    def _raise_if_ended(self) -> None:
        if self._end is not None:
            raise EngineError(self._end.message, hint=self._end.hint) from self._end.__cause__

    def _work(self) -> None:
        """Run the worker thread; however it ends, every waiting request gets a result."""
        scheduler = self._scheduler
        end = EngineError("the engine is closed")
        try:
            with torch.inference_mode():
                while self._collect():
                    scheduler.drop_cancelled()
                    if self._loads and not scheduler.running:
                        self._take_weights()
                    if self._has_weights and not self._loads:
                        scheduler.admit()
                    if scheduler.running:
                        with self._turn:
                            scheduler.step()
                    self._deliver()
        except EngineError as cause:
            end = cause
        except BaseException as cause:
            end = EngineError(f"the engine's worker failed: {type(cause).__name__}: {cause}")
            end.__cause__ = cause
        with self._changed:
            self._end = end
            scheduler.waiting.extend(self._arrived)
            loads = [load.future for load in self._loads]
            self._arrived, self._loads = [], []
        scheduler.fail_all(end)
        self._deliver()
        for future in loads:
            settle(future, end)

    def _deliver(self) -> None:
        """Publish the counters, then give callers their results."""
        with self._changed:
            self._stats = self._scheduler.stats
        unread = self._scheduler.deliver()
        with self._changed:
            self._unread_tokens += unread

    def _collect(self) -> bool:
        """Wait for something to do and hand over what arrived; False when the engine is to end."""
        scheduler = self._scheduler
        with self._changed:
            while self._end is None:
                self._arrived = [request for request in self._arrived if not request.cancelled]
                scheduler.waiting.extend(self._arrived)
                scheduler.open_sessions = set(self._open)
                self._arrived = []
                self._stats = scheduler.stats
                if scheduler.running or self._loads or (scheduler.waiting and self._has_weights):
                    return True
                if self._to_empty:
                    self._to_empty = False
                    scheduler.forget()
                    give_back_freed_memory()
                end_idle_helpers()
                self._changed.wait()
        return False

    def _take_weights(self) -> None:
        """Load new weights and drop the cache of the old ones. A load that fails half-way ends the engine: it would mix
        them."""
        while self._loads:
            load = self._loads[0]
            try:
                load.take()
            except Exception as cause:
                reason = cause.message if isinstance(cause, EngineError) else f"{type(cause).__name__}: {cause}"
                raise EngineError(f"the engine could not take weights version {load.version}: {reason}") from cause
            self._scheduler.version = load.version
            self._scheduler.forget()
            with self._changed:
                self._loads.pop(0)
            settle(load.future, None)


def _token_model(model: Any, *, int8: bool) -> TokenModel:
    """The fastest implementation of a transformers model.

    Raises:
        ConfigError: `int8`, and no implementation has products in 8 bits.
    """
    is_llama = is_supported(model)
    if int8 and not (is_llama and takes_int8(model.dtype)):
        raise ConfigError(
            f"engine.quantization: int8 does not compute a {model.config.model_type} in {model.dtype} here",
            hint="set it to none, or model.dtype to float32; docs/en/engines.md has the models and CPUs that it is for",
        )
    return CpuLlama(model, int8=int8) if is_llama else HfModel(model)


class _Load(NamedTuple):
    """New weights that wait to be taken, on the worker's thread."""

    take: Callable[[], None]
    version: int
    future: Future[None]
