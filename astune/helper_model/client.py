"""A model beside the one that is trained, which answers questions within limits and a budget.

Answers are text, and the caller judges them. A missing answer is a HelperModelError, never a verdict.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from astune.config.helper import HelperModelConfig
from astune.helper_model.answers import Answers, name_of
from astune.helper_model.chat import Answered, Chat, EndpointChat, LocalChat, Question
from astune.helper_model.prompts import Prompts
from astune.schema import BudgetSpent, ConfigError, EngineError, HelperModelError, UnusableAnswer


class Form(BaseModel):
    """An answer in JSON: what the helper model is asked to fill in, and nothing more."""

    model_config = ConfigDict(extra="forbid")


M = TypeVar("M", bound=BaseModel)

_JSON_TRIES = 3
_VARIED = 0.7
"""The temperature at least at which several answers to one question are sampled."""
_FENCED = re.compile(r"\A```\w*\s*(.*?)\s*```\Z", re.DOTALL)
_SHOWN = 200
_SHOWN_ERRORS = 3
_LOCAL = "local"


@dataclass(slots=True)
class Usage:
    """Usage of a helper model: `calls` that were answered, `cached` of them from disk, and `tokens` of the others."""

    calls: float = 0
    cached: float = 0
    tokens: float = 0

    def shared_by(self, n: int) -> Usage:
        """The part of each of n episodes that were asked about together."""
        return Usage(self.calls / n, self.cached / n, self.tokens / n)

    def metrics(self) -> dict[str, float]:
        """The usage of one episode, under the names that reports show."""
        return {
            "helper_calls": float(self.calls),
            "helper_cached": float(self.cached),
            "helper_tokens": float(self.tokens),
        }


_METERS: ContextVar[tuple[Usage, ...]] = ContextVar("astune_helper_meters", default=())


@contextmanager
def metered() -> Iterator[Usage]:
    """Count what is asked within the block, of whatever helper model."""
    usage = Usage()
    token = _METERS.set((*_METERS.get(), usage))
    try:
        yield usage
    finally:
        _METERS.reset(token)


class HelperModel:
    """Answers questions, several at once. Raises ConfigError if `settings` name no endpoint, or one that cannot be.

    Args:
        settings: where it is, and its limits.
        section: the part of the configuration that holds the settings, for errors.
    """

    def __init__(self, settings: HelperModelConfig, *, section: str = "helper_model") -> None:
        if not settings.base_url:
            raise ConfigError(
                f"{section}.base_url is empty",
                hint='set it to an OpenAI-compatible endpoint, or to "local" with helper_model.model',
            )
        if settings.base_url == _LOCAL and not settings.model:
            raise ConfigError(f"{section}.model is empty", hint='name a model, such as "builtin:smollm2-135m"')
        local = settings.base_url == _LOCAL
        self._chat: Chat = (
            LocalChat(settings.model)
            if local
            else EndpointChat(settings.base_url, settings.model, settings.api_key_env, section)
        )
        self._settings = settings
        self._section = section
        self._turn = asyncio.Semaphore(settings.max_concurrency)
        self._answers = Answers() if settings.cache else None
        self._asking: dict[str, asyncio.Lock] = {}
        self.prompts = Prompts(settings.language, settings.prompts)
        self.used = Usage()

    @classmethod
    def overridden(cls, settings: HelperModelConfig, overrides: Mapping[str, Any], *, section: str) -> HelperModel:
        """The helper model of `settings`, where `overrides` go before them; `section` holds those. Another endpoint
        gets neither the key nor the model's name of `settings`. Raises ConfigError if one of them cannot be."""
        inherited = settings.model_dump()
        if overrides.get("base_url", settings.base_url) != settings.base_url:
            inherited |= {"api_key_env": "", "model": ""}
        try:
            return cls(HelperModelConfig.model_validate(inherited | dict(overrides)), section=section)
        except ValidationError as cause:
            [error, *_] = cause.errors()
            name = ".".join(map(str, error["loc"]))
            raise ConfigError(f"{section}.{name} is {error['input']!r}", hint=error["msg"].lower()) from cause

    async def ask(self, instruction: str, question: str, *, number: int | None = None) -> str:
        """Return its answer to `question` under the system prompt `instruction`, without its thoughts.

        Args:
            number: which of several tries at the question this is, from 0, where these are to differ.

        Raises:
            HelperModelError: it did not answer, or was cut off.
            BudgetSpent: its budget is used up.
        """
        return await self._ask(self._question(instruction, question, number))

    async def ask_json(
        self,
        instruction: str,
        question: str,
        form: type[M],
        *,
        number: int | None = None,
        check: Callable[[M], object] = lambda _: None,
    ) -> M:
        """Return its answer as a `form`. The endpoint is given the form's schema, where it takes one; what does not
        fit is given back with the reason, twice.

        Args:
            check: raises a ValueError about an answer that fits the form and is wrong all the same.

        Raises:
            HelperModelError: it did not answer; an UnusableAnswer, where it did and not in that form.
            BudgetSpent: its budget is used up.
        """
        schema = form.model_json_schema()
        asked = replace(self._question(instruction, question, number), schema=schema)
        text = wrong = ""
        for _ in range(_JSON_TRIES):
            text = await self._ask(asked)
            try:
                answer = form.model_validate_json(_json_in(text))
                check(answer)
                return answer
            except ValueError as cause:
                wrong = _in_words(cause)
            again = self.prompts.get("again", wrong=wrong, schema=json.dumps(schema))
            more = [{"role": "assistant", "content": text}, {"role": "user", "content": again}]
            asked = replace(asked, messages=asked.messages + more)
        raise UnusableAnswer(
            f"{_JSON_TRIES} answers of the helper model were no valid {form.__name__.strip('_')}: {wrong}; "
            f"the last was {text[:_SHOWN]!r}",
            hint=f"choose a model that follows JSON schemas with {self._section}.model",
        )

    def _question(self, instruction: str, question: str, number: int | None) -> Question:
        temperature = self._settings.temperature
        if number is not None and temperature is not None:
            temperature = max(temperature, _VARIED)
        messages = [{"role": "system", "content": instruction}, {"role": "user", "content": question}]
        return Question(messages, temperature, number=number)

    async def _ask(self, question: Question) -> str:
        try:
            if self._answers is None:
                return await self._answered(question)
            return await self._kept(question, self._answers)
        except EngineError as cause:
            raise HelperModelError(f"the helper model failed: {cause.message}", hint=cause.hint) from cause

    async def _kept(self, question: Question, answers: Answers) -> str:
        """The answer from disk, or a new one; a question that is being asked is not asked twice."""
        name = name_of(
            {
                "who": await self._chat.name(),
                "messages": question.messages,
                "temperature": question.temperature,
                "schema": question.schema,
                "number": question.number,
            }
        )
        asking = self._asking.setdefault(name, asyncio.Lock())
        try:
            async with asking:
                kept = answers.get(name)
                if kept is not None:
                    self._count(Usage(calls=1, cached=1))
                    return kept
                text = await self._answered(question)
                answers.put(name, text)
                return text
        finally:
            if not asking.locked():
                self._asking.pop(name, None)

    async def _answered(self, question: Question) -> str:
        async with self._turn:
            self._require_budget()
            answered: Answered = await self._chat.answer(question, self._settings.timeout_s)
        self._count(Usage(calls=1, tokens=answered.tokens))
        return answered.text

    def _require_budget(self) -> None:
        budget = self._settings.budget_tokens
        if budget is not None and self.used.tokens >= budget:
            raise BudgetSpent(
                f"the helper model has used {self.used.tokens:,} tokens of its {budget:,}",
                hint=f"raise {self._section}.budget_tokens; answers that it gave are kept and cost nothing",
            )

    def _count(self, more: Usage) -> None:
        for usage in (self.used, *_METERS.get()):
            usage.calls += more.calls
            usage.cached += more.cached
            usage.tokens += more.tokens


def _in_words(cause: ValueError) -> str:
    if not isinstance(cause, ValidationError):
        return str(cause)
    errors = cause.errors()[:_SHOWN_ERRORS]
    return "; ".join(f"{'.'.join(map(str, error['loc'])) or 'JSON'}: {error['msg']}" for error in errors)


def _json_in(text: str) -> str:
    """The JSON of an answer, without a fence and words around it."""
    fenced = _FENCED.match(text.strip())
    text = fenced[1] if fenced else text
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text
