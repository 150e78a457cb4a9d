"""Which engine the configuration asks for, opened with the renderer that speaks its tokens, and closed at the end.

Nothing here imports torch unless the engine in this process is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.context_tracker import Renderer, load_renderer
from astune.engine.base import InferenceEngine
from astune.engine.endpoint import Endpoint, key_from
from astune.engine.probe import Probe, probe
from astune.engine.replicas import Replicas
from astune.engine.served import ServedEngine
from astune.schema import ConfigError, EngineError

_NO_BOUND = 1 << 40


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An engine and its renderer. `exact` is False where only text comes back, which cannot be trained.

    `config` is the run's, with the bounds of such an endpoint left to itself: its ids are characters.
    """

    engine: InferenceEngine
    renderer: Renderer
    config: AstuneConfig
    exact: bool = True


@asynccontextmanager
async def open_model(config: AstuneConfig) -> AsyncIterator[OpenModel]:
    """The model that episodes are run with.

    Raises:
        ConfigError: the configuration names no server, or no key.
        EngineError: the model does not load, or the server does not answer as it must.
    """
    if config.engine.type == "in_process":
        model = _in_process(config)
    else:
        model = await _served(config)
    try:
        yield model
    finally:
        await model.engine.aclose()


def model_folder(config: AstuneConfig) -> Path:
    """The folder of `model.path`, which is fetched or converted first where it must be."""
    from astune.engine.model_files import resolve_model

    return resolve_model(config.model.path)


def _in_process(config: AstuneConfig) -> OpenModel:
    from astune.engine.in_process import InProcessEngine

    folder = model_folder(config)
    engine = InProcessEngine.load(
        folder,
        model=config.model,
        engine=config.engine,
        max_model_len=config.rollout.max_model_len,
        deterministic=config.deterministic,
    )
    return OpenModel(engine, load_renderer(folder), config)


async def _served(config: AstuneConfig) -> OpenModel:
    if not config.engine.base_url:
        raise ConfigError(
            f"engine.type is {config.engine.type}, but engine.base_url names no server",
            hint="set it to the server's address, as http://127.0.0.1:8000",
        )
    key = key_from(config.engine.api_key_env)
    async with AsyncExitStack() as opened:
        endpoints: list[Endpoint] = []
        for base_url in config.engine.base_url:
            endpoint = Endpoint(base_url, model=config.engine.model, api_key=key)
            opened.push_async_callback(endpoint.aclose)
            await endpoint.choose_model()
            endpoints.append(endpoint)
        probes = [await probe(endpoint, lambda text: _encode(config, text)) for endpoint in endpoints]
        model = _exact(config, endpoints, probes) or _in_text(config, endpoints)
        opened.pop_all()  # from here on the engine closes them
    return model


def _exact(config: AstuneConfig, endpoints: Sequence[Endpoint], probes: Sequence[Probe]) -> OpenModel | None:
    """Token for token; None where an endpoint of any kind does not give tokens."""
    for endpoint, found in zip(endpoints, probes, strict=True):
        if not found.exact and config.engine.type == "vllm":
            raise EngineError(
                f"{endpoint.root}: {' and '.join(found.lacking(temperature=1.0))}",
                hint="serve the model of model.path with vLLM, or set engine.type to openai to debug in plain text",
            )
    if not all(found.exact for found in probes):
        return None
    max_model_len = config.rollout.max_model_len
    engines = [ServedEngine(endpoint, max_model_len=max_model_len) for endpoint in endpoints]
    engine = engines[0] if len(engines) == 1 else Replicas(engines)
    return OpenModel(engine, load_renderer(model_folder(config)), config)


def _in_text(config: AstuneConfig, endpoints: Sequence[Endpoint]) -> OpenModel:
    from astune.context_tracker.text_renderer import TextRenderer
    from astune.engine.text_endpoint import TextEndpointEngine

    if len(endpoints) > 1:
        raise ConfigError(
            "engine.base_url names several endpoints that give text only", hint="name one, or serve token ids with vLLM"
        )
    unbounded = config.rollout.model_copy(update={"max_model_len": _NO_BOUND})
    return OpenModel(
        TextEndpointEngine(endpoints[0]), TextRenderer(), config.model_copy(update={"rollout": unbounded}), exact=False
    )


def _encode(config: AstuneConfig, text: str) -> list[int]:
    from astune.context_tracker.template import ChatTemplate

    return ChatTemplate.load(model_folder(config)).tokenizer(text)["input_ids"]
