"""An engine of the user's own: one class in one file, named in the configuration as `engine.type: path/file.py->Class`.

class Mine(EngineBase):
    def __init__(self, folder, config):
        self.model = load(folder)

    async def generate(self, prompt_ids, params, *, session):
        token_ids, logprobs, stopped = self.model.sample(prompt_ids, params)
        return Completion(token_ids, logprobs, "stop" if stopped else "length")

    async def load_weights(self, source):  # only where it is trained with
        for name, tensor in source.named_tensors(): ...
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from astune.config.arguments import require_accepted
from astune.config.imports import import_class
from astune.config.schema import AstuneConfig
from astune.engine.base import WeightsSource, require_context
from astune.engine.remote.counted import CountedEngine
from astune.schema import Completion, ConfigError, EngineError, SamplingParams, boundary, boundary_now

_KEY = "engine.type"


class EngineBase(ABC):
    """Samples from the model of `model.path`: token ids in, token ids and log-probabilities out.

    An engine is made as `Class(folder, config, **engine.params)`, with the model's folder in Hugging Face format.
    """

    @abstractmethod
    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        """Sample one completion, which ends with one of `params.stop_token_ids` or after `params.max_tokens`.

        Several calls run at once. `logprobs` are natural logarithms under the distribution that was sampled from.

        Args:
            session: the same for all calls of an episode, whose prompts begin alike.

        Raises:
            EngineError: it cannot do what `params` asks for, such as sampling under `params.grammar`.
        """

    async def load_weights(self, source: WeightsSource) -> None:
        """Take the weights of `source`, by `named_tensors()` or `save(folder)`; called while no call runs.

        An engine that leaves this out is for debugging and evaluation.
        """
        raise EngineError(f"{type(self).__name__} takes no weights", hint="define load_weights to train with it")

    def open_session(self, session: str) -> None:  # noqa: B027 - a cache is not required
        """An episode begins."""

    def close_session(self, session: str) -> None:  # noqa: B027
        """An episode is over."""

    async def aclose(self) -> None:  # noqa: B027
        """Free what the engine holds."""


class OwnEngine(CountedEngine):
    """Implements `InferenceEngine` by an engine of the user's own, whose completions it checks and counts."""

    def __init__(self, own: EngineBase, *, max_model_len: int) -> None:
        super().__init__()
        self._own = own
        self._name = type(own).__name__
        self._max_model_len = max_model_len
        self._version = 0

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return why it cannot be trained with."""
        has = type(self._own).load_weights is not EngineBase.load_weights
        return () if has else (f"{self._name} defines no load_weights",)

    def open_session(self, session: str) -> None:
        self._own.open_session(session)

    def close_session(self, session: str) -> None:
        self._own.close_session(session)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        require_context(len(prompt_ids), params, self._max_model_len)
        version = self._version
        with self._running():
            async with boundary(EngineError, f"{self._name}.generate"):
                completion = await self._own.generate(list(prompt_ids), params, session=session)
        self._require_sound(completion, params)
        self._count(prompt=len(prompt_ids), cached=0, sampled=len(completion.token_ids))
        at_most_0 = [min(0.0, one) for one in completion.logprobs]  # rounding may leave them a little above
        return replace(completion, logprobs=at_most_0, weights_version=version)

    async def load_weights(self, source: WeightsSource) -> int:
        async with boundary(EngineError, f"{self._name}.load_weights"):
            await self._own.load_weights(source)
        self._version = source.version
        return self._version

    async def aclose(self) -> None:
        await self._own.aclose()

    def _require_sound(self, completion: Any, params: SamplingParams) -> None:
        """Raise EngineError where a completion is not what the contract says."""
        if not isinstance(completion, Completion):
            raise EngineError(f"{self._name}.generate returned {completion!r}", hint="return an astune.Completion")
        n_tokens, n_logprobs = len(completion.token_ids), len(completion.logprobs)
        if n_tokens != n_logprobs or not 0 < n_tokens <= params.max_tokens:
            raise EngineError(
                f"{self._name}.generate returned {n_tokens} tokens with {n_logprobs} log-probabilities, where at most "
                f"{params.max_tokens} were asked for"
            )
        if not all(math.isfinite(one) and one <= 1e-6 for one in completion.logprobs):
            raise EngineError(f"{self._name}.generate returned log-probabilities that are above 0 or not finite")


def load_engine_class(config: AstuneConfig, base_dir: Path | None = None) -> type[EngineBase] | None:
    """The user's class that `engine.type` names; None where it names an engine of astune's.

    Raises:
        ConfigError: it does not import, or does not take `engine.params`.
    """
    if not config.engine.is_own:
        if config.engine.params:
            raise ConfigError(
                f"engine.params are arguments of a class, and {_KEY} is {config.engine.type}", hint="leave them out"
            )
        return None
    found = import_class(config.engine.type, key=_KEY, base=EngineBase, base_dir=base_dir)
    require_accepted(found, config.engine.params, key="engine.params", positional=2)
    return found


def make_engine(found: type[EngineBase], folder: Path, config: AstuneConfig) -> OwnEngine:
    """The engine of that class for the model in `folder`.

    Raises:
        ConfigError: its __init__ failed.
    """
    hint = "its __init__ takes the model's folder, the configuration, and engine.params as keyword arguments"
    with boundary_now(ConfigError, f"{_KEY}: making {found.__name__}", hint=hint):
        own = cast(Callable[..., EngineBase], found)(folder, config, **config.engine.params)
    return OwnEngine(own, max_model_len=config.rollout.max_model_len)
