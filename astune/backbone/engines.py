"""Opening the configured engine with its renderer, and closing it at the end.

Nothing here imports torch unless the engine in this process is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from astune.backbone.bases import folders, require_bases
from astune.backbone.vllm import url_of
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.engine.base import InferenceEngine
from astune.engine.own import EngineBase, make_engine
from astune.engine.remote.endpoint import Endpoint, key_from, require_address
from astune.engine.remote.probe import Probe, probe
from astune.engine.remote.publication import PublishedWeights
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.renderers import Renderer, load_renderer
from astune.schema import ConfigError, EngineError, collector_at_rest

if TYPE_CHECKING:
    from astune.renderers.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An engine and its renderer.

    `config` is the run's; of an endpoint of text, whose ids are characters, without our bounds. `lacks` is what keeps
    the engine from being trained with, in words; nothing where it can be. An engine that is `apart` has weights of its
    own, which are unknown until it receives others.
    """

    engine: InferenceEngine
    renderer: Renderer
    config: AstuneConfig
    lacks: tuple[str, ...] = ()
    apart: bool = False


@asynccontextmanager
async def open_model(
    config: AstuneConfig, weights: PublishedWeights | None = None, *, own: type[EngineBase] | None = None
) -> AsyncIterator[OpenModel]:
    """The model that episodes are run with.

    Args:
        weights: where an engine apart is given weights from; None where it is given none.
        own: the class of an engine of the user's own.

    Raises:
        ConfigError: the configuration names no server, or no key, or several policies and an engine that has none.
        EngineError: the model does not load, or the server does not answer as it must.
    """
    require_policies_answered(config)
    async with AsyncExitStack() as closing:
        if weights is not None:
            closing.callback(weights.close)
        if own is not None:
            model = _own(own, config)
        elif config.engine.type == "in_process":
            model = _in_process(config)
        else:
            model = await _served(config, weights, closing)
        closing.push_async_callback(model.engine.aclose)
        yield model


def require_policies_answered(config: AstuneConfig) -> None:
    """Raise ConfigError where there are several policies, and the engine would answer for all of them alike."""
    if config.models and config.engine.type != "in_process":
        raise ConfigError(
            f"astune.models is set, and engine.type is {config.engine.type}: several policies are answered by the "
            "engine in this process",
            hint="set engine.type to in_process, or leave models out",
        )


def model_folder(config: AstuneConfig) -> Path:
    """The folder of `model.path`, which is fetched or converted first where it must be."""
    from astune.engine.model_files import resolve_model

    return resolve_model(config.model.path)


def require_model(config: AstuneConfig) -> None:
    """Raise where a model of the run is not there, unless an endpoint answers whose tokenizer is not needed.

    Nothing is fetched or converted; the hub is asked for a model that is neither here nor in its cache.
    """
    if config.engine.type != "openai":
        from astune.engine import model_files

        model_files.require_model(config.model.path)
        require_bases(config)


def require_addresses(config: AstuneConfig) -> list[str]:
    """The addresses at which servers are asked; none for the engine in this process. Asks nobody.

    Raises:
        ConfigError: the configuration names no server, or what is no address, or a key that is not set.
    """
    if config.engine.type == "in_process" or config.engine.is_own:
        return []
    addresses = config.engine.base_url or ([url_of(config)] if config.engine.type == "vllm" else [])
    if not addresses:
        raise ConfigError(
            "engine.type is openai, but engine.base_url names no endpoint",
            hint="set it to the endpoint's address, as https://api.example.com/v1",
        )
    for address in addresses:
        require_address(address)
    key_from(config.engine.api_key_env)
    return addresses


def _in_process(config: AstuneConfig) -> OpenModel:
    folder = model_folder(config)
    bases = folders(config) if config.models else []
    with collector_at_rest():
        from astune.engine.local.in_process import InProcessEngine
        from astune.engine.local.policy_router import PolicyRouter

        load = partial(PolicyRouter.load, bases) if bases else partial(InProcessEngine.load, folder)
        engine = load(
            model=config.model,
            engine=config.engine,
            max_model_len=config.rollout.max_model_len,
            deterministic=config.deterministic,
        )
    return OpenModel(engine, load_renderer(folder, config.model.path), config)


def _own(own: type[EngineBase], config: AstuneConfig) -> OpenModel:
    folder = model_folder(config)
    with collector_at_rest():
        engine = make_engine(own, folder, config)
    return OpenModel(engine, load_renderer(folder, config.model.path), config, engine.lacks, apart=True)


async def _served(config: AstuneConfig, weights: PublishedWeights | None, closing: AsyncExitStack) -> OpenModel:
    addresses = require_addresses(config)
    key = key_from(config.engine.api_key_env)
    is_started = not config.engine.base_url
    endpoints: list[Endpoint] = []
    for base_url in addresses:
        endpoint = Endpoint(base_url, model=config.model.path if is_started else config.engine.model, api_key=key)
        closing.push_async_callback(endpoint.aclose)
        await endpoint.choose_model()
        endpoints.append(endpoint)

    @cache
    def template() -> ChatTemplate:  # loaded only where a server gives tokens
        from astune.renderers.template import ChatTemplate

        return ChatTemplate.load(model_folder(config), config.model.path)

    def encode(text: str) -> list[int]:
        return template().tokenizer.encode(text)

    gives = weights is not None
    probes = [await probe(endpoint, encode, weights=gives) for endpoint in endpoints]
    if all(found.exact for found in probes):
        return _exact(config, endpoints, probes, template(), weights)
    if config.engine.type == "vllm":
        raise EngineError(
            "; ".join(_lacking(config, endpoints, probes)),
            hint="serve the model of model.path with vLLM, or set engine.type to openai to debug in plain text",
        )
    return await _in_text(config, endpoints, probes)


def _exact(
    config: AstuneConfig,
    endpoints: Sequence[Endpoint],
    probes: Sequence[Probe],
    template: ChatTemplate,
    weights: PublishedWeights | None,
) -> OpenModel:
    """Token for token."""
    from astune.renderers.template_renderer import TemplateRenderer

    engines = [ServedEngine(endpoint, max_model_len=config.rollout.max_model_len) for endpoint in endpoints]
    lacks = tuple(_lacking(config, endpoints, probes))
    return OpenModel(Replicas(engines, weights), TemplateRenderer(template), config, lacks, apart=True)


def _lacking(config: AstuneConfig, endpoints: Sequence[Endpoint], probes: Sequence[Probe]) -> list[str]:
    temperature = config.rollout.temperature
    return [
        f"{endpoint.root}: {' and '.join(lacks)}"
        for endpoint, found in zip(endpoints, probes, strict=True)
        if (lacks := found.lacking(temperature=temperature))
    ]


async def _in_text(config: AstuneConfig, endpoints: Sequence[Endpoint], probes: Sequence[Probe]) -> OpenModel:
    from astune.engine.remote.text_endpoint import UNBOUNDED, TextEndpointEngine
    from astune.renderers.text_renderer import TextRenderer

    if len(endpoints) > 1:
        raise ConfigError(
            "engine.base_url names several endpoints that give text only", hint="name one, or serve token ids with vLLM"
        )
    lacks = tuple(_lacking(config, endpoints, probes))
    engine = TextEndpointEngine(endpoints[0])
    await engine.prove()
    return OpenModel(engine, TextRenderer(), changed(config, rollout={"max_model_len": UNBOUNDED}), lacks)
