"""A model behind an endpoint that answers for an agent which is not trained: an opponent, a user, a stronger helper.

Its answers are recorded as text that was read, not as samples of the trained model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from astune.config.strict import StrictModel
from astune.context_tracker import ContextTracker
from astune.engine.base import InferenceEngine, StreamingEngine
from astune.engine.remote.endpoint import Endpoint, key_from, require_address
from astune.engine.remote.text_endpoint import UNBOUNDED, TextEndpointEngine
from astune.renderers.text_renderer import TextRenderer
from astune.schema import WorkflowError

_SECTION = "fallback_model"


class OutsideModel(StrictModel):
    """A model behind an OpenAI-compatible endpoint."""

    shorthand: ClassVar[str] = "base_url"

    base_url: str
    """Address of the endpoint, such as https://host/v1."""
    model: str = ""
    """Model name at the endpoint; empty uses the first model that it serves."""
    api_key_env: str = ""
    """Environment variable that holds the endpoint's API key."""

    @classmethod
    def of(cls, given: str | Mapping[str, Any]) -> OutsideModel:
        """The model of an address, or of a mapping with these keys.

        Raises:
            WorkflowError: a key is missing, unknown or no text.
            ConfigError: `base_url` is no address.
        """
        try:
            outside = cls.model_validate(given)
        except ValidationError as cause:
            [error, *_] = cause.errors()
            raise WorkflowError(
                f"{_SECTION}.{'.'.join(map(str, error['loc']))}: {error['msg'].lower()}",
                hint=f"write an address, or a mapping with {', '.join(cls.model_fields)}",
            ) from cause
        require_address(outside.base_url, _SECTION)
        return outside


@dataclass(slots=True)
class Route:
    """An engine, and the record of the conversations that it answers, in the engine's own tokens."""

    engine: InferenceEngine
    tracker: ContextTracker
    max_model_len: int
    streaming: StreamingEngine | None = field(init=False)
    """The engine, if it shows an answer's tokens while it samples them; every call asks for it."""

    def __post_init__(self) -> None:
        self.streaming = self.engine if isinstance(self.engine, StreamingEngine) else None


async def route_to(outside: OutsideModel) -> Route:
    """A route for one episode; the engine behind it is shared by all episodes of the event loop.

    Raises:
        EngineError: the endpoint does not answer, or has no such model.
        ConfigError: the key's variable is not set.
    """
    engines = _ENGINES.setdefault(asyncio.get_running_loop(), {})
    opening = engines.get(outside)
    if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
        opening = engines[outside] = asyncio.ensure_future(_opened(outside))
    return Route(await asyncio.shield(opening), ContextTracker(TextRenderer(), UNBOUNDED), UNBOUNDED)


_ENGINES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[OutsideModel, asyncio.Future[TextEndpointEngine]]] = (
    WeakKeyDictionary()
)


async def _opened(outside: OutsideModel) -> TextEndpointEngine:
    key = key_from(outside.api_key_env, _SECTION)
    endpoint = Endpoint(outside.base_url, model=outside.model, api_key=key, section=_SECTION)
    await endpoint.choose_model()
    engine = TextEndpointEngine(endpoint)
    await engine.prove()
    return engine
