"""A renderer around the real one, for tests that change or watch a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from astune.renderers import Rendered, Renderer, Reply, Tool
from astune.schema import Grammar, Message, Vocabulary


@dataclass
class PassingRenderer:
    """Hands everything on to `inner`."""

    inner: Renderer

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self.inner.stop_token_ids

    def on(self, day: date) -> Renderer:
        return self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        return self.inner.render(messages, tools)

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        return self.inner.extend(history, sampled_ids, new, tools)

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        return self.inner.parse(sampled_ids, prompt_ids, tools)

    def text(self, sampled_ids: Sequence[int]) -> str:
        return self.inner.text(sampled_ids)

    def call_grammar(self, tools: Sequence[Tool]) -> Grammar:
        return self.inner.call_grammar(tools)

    def is_longer(self, text: str, tokens: int) -> bool:
        return self.inner.is_longer(text, tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.inner.decode(token_ids)

    def vocabulary(self) -> Vocabulary:
        return self.inner.vocabulary()
