"""Answers that are cut, in the SDKs' helpers that parse them: they raise, and the answer is recorded all the same."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel, ValidationError
from stepping import ASK, answers_of, played, stepping

from astune import AstuneProxy
from astune.renderers import Renderer


class Sum(BaseModel):
    total: int
    words: str


WHOLE = '{"total": 63, "words": "forty-seven and sixteen are sixty-three"}'


async def test_the_helper_of_chat_completions_raises_and_names_the_answer(renderer: Renderer) -> None:
    engine = stepping(renderer, WHOLE)
    engine.allow()
    cut: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        completions = proxy.as_openai_client().chat.completions
        with pytest.raises(openai.LengthFinishReasonError) as raised:
            await completions.parse(model="m", messages=ASK, response_format=Sum, max_tokens=6)
        cut.append(raised.value.completion.choices[0].message.content)
        whole = await completions.parse(model="m", messages=ASK, response_format=Sum)
        assert whole.choices[0].message.parsed == Sum.model_validate_json(WHOLE)

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert answers_of(episode) == [*cut, WHOLE]
    assert WHOLE.startswith(cut[0])


async def test_the_helper_of_responses_raises_what_pydantic_does(renderer: Renderer) -> None:
    engine = stepping(renderer, WHOLE)
    engine.allow()

    async def agent(proxy: AstuneProxy) -> None:
        responses = proxy.as_openai_client().responses
        with pytest.raises(ValidationError, match="EOF while parsing"):
            await responses.parse(model="m", input=ASK, text_format=Sum, max_output_tokens=16)
        answer = await responses.create(model="m", input=ASK, max_output_tokens=16)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert WHOLE.startswith(answer.output_text)

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert len(answers_of(episode)) == 2
