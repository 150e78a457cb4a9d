"""Talking to a model: the answer is shown while it is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from astune.app.chat import Chat
from astune.config import load_config
from astune.engine.base import OnToken
from astune.engine.tokenizer import ModelTokenizer
from astune.schema import Completion, ContextOverflow, SamplingParams

SETTINGS = ["rollout.max_model_len=128", "rollout.max_response_length_in_one_turn=16"]


class Hesitates:
    """An engine that ends its answer only when the beginning was shown."""

    def __init__(self, folder: Path, shown: asyncio.Event) -> None:
        tokenizer = ModelTokenizer.load(folder)
        self.beginning, self.end = tokenizer.encode("It is sunny"), tokenizer.encode(" today")
        self.shown = shown

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken
    ) -> Completion:
        for token in self.beginning:
            on_token(token)
        async with asyncio.timeout(30):
            await self.shown.wait()
        for token in self.end:
            on_token(token)
        ids = [*self.beginning, *self.end]
        return Completion(ids, [0.0] * len(ids), "length", 0)


async def test_an_answer_is_shown_while_it_is_sampled(tiny_folder: Path) -> None:
    begun, texts = asyncio.Event(), list[str]()

    def show(text: str) -> None:
        texts.append(text)
        if "It is" in text:
            begun.set()

    engine: Any = Hesitates(tiny_folder, begun)
    chat = Chat(load_config(None, SETTINGS), str(tiny_folder), engine=engine)
    answer = await chat.answer("How is the weather?", show)
    await chat.aclose()
    assert answer == "It is sunny today"
    assert all(answer.startswith(text) for text in texts)
    assert texts == sorted(texts, key=len)


async def test_a_conversation_that_is_too_long_begins_anew(tiny_folder: Path) -> None:
    begun = asyncio.Event()
    begun.set()
    engine: Any = Hesitates(tiny_folder, begun)
    chat = Chat(load_config(None, SETTINGS), str(tiny_folder), engine=engine)
    await chat.answer("How is the weather?", lambda _: None)
    with pytest.raises(ContextOverflow):
        await chat.answer("Why? " * 100, lambda _: None)
    assert await chat.answer("And now?", lambda _: None) == "It is sunny today"
