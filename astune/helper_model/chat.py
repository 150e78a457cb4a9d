"""Implementations of a helper model: any OpenAI-compatible endpoint, or the in-process engine with a second model."""

from __future__ import annotations

import asyncio
import atexit
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from httpx import ReadTimeout

from astune.engine.remote.endpoint import Endpoint, Refusal, Unreachable, choice_of, key_from
from astune.schema import EngineError, UnusableAnswer

if TYPE_CHECKING:
    from astune.engine.local.in_process import InProcessEngine
    from astune.renderers import Renderer

_END_OF_THOUGHT = "</think>"
_UNREACHED_TRIES = 3
_PAUSE_S = 1.0
_TOO_MANY = 429
_FAILED = frozenset({408, 500, 529})
"""Statuses that another try may change, besides those for which `Endpoint` waits."""
_LOCAL_CONTEXT = 4_096
_LOCAL_ANSWER = 1_024
_LOCAL_TEXT = 300
"""Characters of one text in an answer by a schema."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that an answer is wanted to; of the JSON schema, where there is one.

    `number` counts tries at one question, which are to differ; None for a question that is asked once.
    """

    messages: list[dict[str, str]]
    temperature: float | None
    schema: dict[str, Any] | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer without its thoughts, and the tokens of question and answer; in characters where they are not
    counted."""

    text: str
    tokens: int


class Chat(Protocol):
    """A model that answers."""

    async def name(self) -> str:
        """Address, and name of the model there."""
        ...

    async def answer(self, question: Question, timeout_s: float) -> Answered:
        """Raises EngineError if it does not answer, or was cut off."""
        ...


class EndpointChat:
    """A model behind an OpenAI-compatible endpoint; a failing or unreachable one is retried, a busy one waited for."""

    def __init__(self, base_url: str, model: str, api_key_env: str, section: str) -> None:
        self._endpoint = Endpoint(base_url, model=model, api_key=key_from(api_key_env, section), section=section)
        self._section = section
        self._takes_schemas = True

    async def name(self) -> str:
        return f"{self._endpoint.root} {await self._endpoint.choose_model()}"

    async def answer(self, question: Question, timeout_s: float) -> Answered:
        body: dict[str, Any] = {"model": await self._endpoint.choose_model(), "messages": question.messages}
        if question.temperature is not None:
            body["temperature"] = question.temperature
        if question.number is not None:
            body["seed"] = question.number
        try:
            answer = await self._post(self._with_schema(body, question.schema), timeout_s)
        except Refusal as refusal:
            if question.schema is None or not self._takes_schemas or refusal.status not in (400, 404, 422):
                raise
            answer = await self._post(body, timeout_s)
            self._takes_schemas = False  # it answers without: the form is what it does not know
        return self._read(answer, question)

    def _with_schema(self, body: dict[str, Any], schema: dict[str, Any] | None) -> dict[str, Any]:
        if schema is None or not self._takes_schemas:
            return body
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        return body | {"response_format": form}

    async def _post(self, body: dict[str, Any], timeout_s: float) -> Any:
        for number in range(1, _UNREACHED_TRIES + 1):
            try:
                return await self._endpoint.post("/chat/completions", body, timeout_s=timeout_s)
            except Refusal as failure:
                if failure.status == _TOO_MANY:
                    failure.hint = f"lower {self._section}.max_concurrency, or wait"
                if number == _UNREACHED_TRIES or failure.status not in _FAILED:
                    raise
            except Unreachable as failure:
                if isinstance(failure.__cause__, ReadTimeout):
                    failure.hint = f"raise {self._section}.timeout_s, or see whether the server is stuck"
                if number == _UNREACHED_TRIES:
                    raise
                await asyncio.sleep(_PAUSE_S * number)
        raise AssertionError

    def _read(self, answer: Any, question: Question) -> Answered:
        choice = choice_of(answer, self._endpoint.root)
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        text = _storable(content) if isinstance(content, str) else ""
        usage = answer.get("usage")
        used = usage.get("total_tokens") if isinstance(usage, dict) else None
        asked = sum(len(each["content"]) for each in question.messages)
        visible = text.rpartition(_END_OF_THOUGHT)[2].strip()
        if choice.get("finish_reason") == "length" or not visible:
            raise _unfinished(self._endpoint.root, text)
        return Answered(visible, used if isinstance(used, int) else asked + len(text))


class LocalChat:
    """A second model in this process, on the in-process engine; loaded at the first question."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._loading = asyncio.Lock()
        self._loaded: tuple[InProcessEngine, Renderer] | None = None
        self._asked = 0

    async def name(self) -> str:
        return f"local {self._model}"

    async def answer(self, question: Question, timeout_s: float) -> Answered:
        from astune.schema import Grammar, SamplingParams

        async with self._loading:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(_load, self._model)
        engine, renderer = self._loaded
        prompt_ids = renderer.render(list(question.messages), []).token_ids
        room = _LOCAL_CONTEXT - len(prompt_ids)
        if room < 1:
            raise EngineError(f"a question of {len(prompt_ids):,} tokens exceeds {_LOCAL_CONTEXT:,} of {self._model}")
        self._asked += 1
        session = f"helper-{self._asked}"
        params = SamplingParams(
            max_tokens=min(room, _LOCAL_ANSWER),
            temperature=1.0 if question.temperature is None else question.temperature,
            stop_token_ids=renderer.stop_token_ids,
            seed=question.number or 0,
            grammar=None if question.schema is None else Grammar("json_schema", json.dumps(_bounded(question.schema))),
        )
        engine.open_session(session)
        try:
            async with asyncio.timeout(timeout_s):
                completion = await engine.generate(prompt_ids, params, session=session)
        except TimeoutError as cause:
            raise EngineError(f"{self._model} did not answer within {timeout_s:g} s") from cause
        finally:
            engine.close_session(session)
        text = renderer.parse(completion.token_ids, prompt_ids, []).content.strip()
        if completion.finish_reason == "length" or not text:
            raise _unfinished(self._model, text)
        return Answered(text, len(prompt_ids) + len(completion.token_ids))


def _storable(text: str) -> str:
    """The text without lone surrogates, which no file, table or request can hold."""
    return text.encode("utf-8", errors="replace").decode()


def _unfinished(who: str, text: str) -> UnusableAnswer:
    return UnusableAnswer(
        f"{who} gave no whole answer: {text[-200:]!r}",
        hint="raise the longest answer that it gives, or choose another model with helper_model.model",
    )


def _bounded(schema: Any) -> Any:
    """The schema with an end to every text: small models repeat themselves in one that has none."""
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(each) for name, each in schema.items()}
    if schema.get("type") == "string" and "enum" not in schema:
        bounded.setdefault("maxLength", _LOCAL_TEXT)
    return bounded


def _load(model: str) -> tuple[InProcessEngine, Renderer]:
    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.engine.model_files import resolve_model
    from astune.renderers import load_renderer

    folder = resolve_model(model)
    engine = InProcessEngine.load(
        folder, model=ModelConfig(path=model), engine=EngineConfig(), max_model_len=_LOCAL_CONTEXT
    )
    atexit.register(engine.stop)  # a thread that computes must not outlive the interpreter
    return engine, load_renderer(folder, model)
