"""The engine contract: tokens in, tokens out. The implementation decides how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from astune.engine.adapters import AdapterSource
from astune.engine.fingerprint import Fingerprint
from astune.schema import Completion, EngineError, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


def require_context(prompt_tokens: int, params: SamplingParams, max_model_len: int) -> None:
    """Raises EngineError where a prompt and what may follow it exceed the context."""
    if prompt_tokens + params.max_tokens > max_model_len:
        raise EngineError(
            f"a prompt of {prompt_tokens} tokens and max_tokens {params.max_tokens} exceed "
            f"the context of {max_model_len} tokens",
            hint="raise rollout.max_model_len or end the episode earlier",
        )


OnToken = Callable[[int], bool]
"""Gets each token as soon as it is sampled, in order, and says whether the completion ends with it. Called on any
thread, returns at once and never raises."""


def ignore_token(token: int) -> bool:
    """Be the `OnToken` of a caller that waits for the end."""
    return False


class WeightsSource(Protocol):
    """A source of new weights for an engine. `version` counts up with every optimiser step."""

    @property
    def version(self) -> int: ...

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its Hugging Face name, adapters merged; valid until the next optimiser step."""
        ...

    def save(self, folder: Path) -> None:
        """Write them into a folder in Hugging Face format, in the dtype that they compute in."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Fingerprints of the weights on a fixed text."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine started, and what it holds now.

    `prompt_tokens` is what callers sent, `prefilled_tokens` what had to be computed of it; the rest came
    from the key-value cache. `sampled_tokens` counts every token drawn, also those of cancelled calls
    (`cancelled_tokens`), whose completions were not delivered.
    """

    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    sampled_tokens: int = 0
    cancelled_tokens: int = 0
    running: int = 0
    waiting: int = 0

    def plus(self, **more: int) -> EngineStats:
        """Return them with some raised, by name."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    def __sub__(self, earlier: EngineStats) -> EngineStats:
        """Return what was counted since an earlier reading."""
        return EngineStats(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    @classmethod
    def total(cls, each: Iterable[EngineStats]) -> EngineStats:
        """Return the counters of several engines together."""
        return cls(*map(sum, zip(*map(astuple, each), strict=True)))


class InferenceEngine(Protocol):
    """An episode opens a session, calls `generate` any number of times, and closes it.

    A session keeps an episode on one replica with a warm prefix cache.
    """

    def open_session(self, session: str) -> None: ...

    def close_session(self, session: str) -> None: ...

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        """Sample one completion. Cancelling the awaiting task cancels the request.

        Raises:
            EngineError: the prompt and `max_tokens` exceed the context, the engine cannot keep to `params.grammar`,
                or it failed.
        """
        ...

    async def load_weights(self, source: WeightsSource) -> int:
        """Take new weights and return their version; no completion mixes two versions."""
        ...

    def stats(self) -> EngineStats: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class AdapterEngine(InferenceEngine, Protocol):
    """An engine of several policies, which are adapters."""

    async def load_adapters(self, source: AdapterSource) -> int:
        """Take new adapters, as `load_weights` does weights, and return their version."""
        ...


@runtime_checkable
class PolicyEngine(AdapterEngine, Protocol):
    """An engine of several policies, which are adapters or whole models."""

    async def load_policy(self, policy: str, source: WeightsSource) -> int:
        """Take new weights of a policy that trains every weight of its model, and return their version."""
        ...

    async def drop_policy(self, policy: str) -> None:
        """Free such a policy's weights as soon as nothing of it runs; its requests then wait for `load_policy`."""
        ...


@runtime_checkable
class SharedMemoryEngine(InferenceEngine, Protocol):
    """An engine in the trainer's memory, which its weights need not take while they are replaced."""

    async def drop_weights(self) -> None:
        """Free the weights as soon as nothing runs; requests then wait for `load_weights`."""
        ...


@runtime_checkable
class StreamingEngine(InferenceEngine, Protocol):
    """An engine that shows tokens while it samples. One that cannot is an `InferenceEngine` all the same."""

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken
    ) -> Completion:
        """Like `generate`, but call `on_token` with each of the completion's tokens before returning, and stop when it
        asks to."""
        ...
