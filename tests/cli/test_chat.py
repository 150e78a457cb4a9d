"""`astune chat`: answers on the terminal."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from astune.cli._chat import _Chat
from astune.config import load_config
from astune.engine.base import OnToken
from astune.engine.tokenizer import ModelTokenizer
from astune.schema import Completion, SamplingParams


class Terminal(io.StringIO):
    """Says when it shows the beginning of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.shows_beginning = asyncio.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if "It is" in self.getvalue():
            self.shows_beginning.set()
        return count


class Hesitates:
    """An engine that ends its answer only when the beginning is on the terminal."""

    def __init__(self, folder: Path, terminal: Terminal) -> None:
        tokenizer = ModelTokenizer.load(folder)
        self.beginning, self.end = tokenizer.encode("It is sunny"), tokenizer.encode(" today")
        self.terminal = terminal

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken
    ) -> Completion:
        for token in self.beginning:
            on_token(token)
        async with asyncio.timeout(30):
            await self.terminal.shows_beginning.wait()
        for token in self.end:
            on_token(token)
        ids = [*self.beginning, *self.end]
        return Completion(ids, [0.0] * len(ids), "length", 0)


def test_an_answer_is_printed_while_it_is_sampled(tiny_folder: Path) -> None:
    terminal = Terminal()
    settings = ["rollout.max_model_len=128", "rollout.max_response_length_in_one_turn=16"]
    chat = _Chat(load_config(None, settings), str(tiny_folder), [])
    with asyncio.Runner() as runner:
        runner.run(chat.aclose())
        engine: Any = Hesitates(tiny_folder, terminal)
        chat._engine = engine
        chat.talk(runner, "How is the weather?", Console(file=terminal, width=20))
    assert terminal.getvalue() == "It is sunny today\n"
