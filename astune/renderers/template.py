"""A model's own tokenizer and chat template, as plain text and token functions.

Independent of model families: it only renders and tokenises. Conclusions are up to the renderers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import copy
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Template

from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.beginnings import common_beginning
from astune.renderers.jinja import CLOCK, compiled
from astune.renderers.renderer import Tool
from astune.schema import ConfigError, Message
from astune.schema.plain_json import whole

_CHARACTERS_OF_TOKEN = 8
"""More than most tokens have. A text of fewer characters is tokenised whole."""


class ChatTemplate:
    """Text and tokens of chat messages by a model's tokenizer; safe to call from several threads."""

    def __init__(self, tokenizer: ModelTokenizer, *, name: str, generation_eos_ids: Sequence[int] = ()) -> None:
        if not tokenizer.templates:
            raise ConfigError(
                f"model.path: the tokenizer of {name} has no chat template",
                hint="use an instruct model, or save a chat_template.jinja in the folder of its tokenizer",
            )
        self.name = name
        self.tokenizer = tokenizer
        self.source = "\n".join(tokenizer.templates.values())
        """Source that its authors wrote."""
        self._today: date | None = None
        self._backend = tokenizer.backend
        self._added = self._backend.get_added_tokens_decoder()
        self.added_ids = frozenset(self._added)
        self._ids = {token.content: token_id for token_id, token in self._added.items()}
        self.eos_ids = tuple(dict.fromkeys([*_as_ids(tokenizer.eos_token_id), *generation_eos_ids]))
        self._guarded_names = self._control_texts()
        self._control = re.compile("|".join(map(re.escape, self._guarded_names)) or "(?!)")
        self._guard = re.compile("\ue000(" + "|".join(map(str, range(len(self._guarded_names)))) + ")\ue001")

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> ChatTemplate:
        """`name` is what errors call the model; its folder's name where none is given.

        Raises:
            ConfigError: the folder has no tokenizer that loads, or that has no chat template.
        """
        tokenizer = ModelTokenizer.load(folder)
        return cls(tokenizer, name=name or folder.name, generation_eos_ids=_generation_eos_ids(folder))

    def on(self, day: date) -> ChatTemplate:
        """The same, with `day` as today, which some templates write into the system message."""
        if CLOCK not in self.source:
            return self
        there = copy(self)
        there._today = day
        return there

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation: bool = False) -> str:
        """The whole conversation as the template writes it; what the template raises passes through.

        Half a character, which it may read in the JSON of a call or a tool, becomes �: no tokenizer reads it.
        """
        clock = {CLOCK: self._today.strftime} if self._today else {}
        text = self._program(bool(tools)).render(
            messages=list(messages),
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=generation,
            **self.tokenizer.special,
            **clock,
        )
        return whole(text)

    def _program(self, with_tools: bool) -> Template:
        templates = self.tokenizer.templates
        name = "tool_use" if with_tools and "tool_use" in templates else "default"
        if name not in templates:
            raise ConfigError(
                f"model.path: {self.name} has the chat templates {', '.join(sorted(templates))} and no default one",
                hint="save the one to use as chat_template.jinja in the folder of its tokenizer",
            )
        return compiled(templates[name])

    def guarded(self, value: Any) -> Any:
        """Return a copy of users' and models' data, of any structure, in which names of control tokens are plain
        letters.

        `encode` restores them; the template only sees private-use characters in their place.
        """
        if isinstance(value, str):
            return self._control.sub(lambda match: f"\ue000{self._guarded_names.index(match[0])}\ue001", value)
        if isinstance(value, dict):
            return {self.guarded(key): self.guarded(inner) for key, inner in value.items()}
        return [self.guarded(inner) for inner in value] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> list[int]:
        """Tokens of text in which the names of control tokens mean those tokens, and guarded ones are letters."""
        return self.encode_with_offsets(text)[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int]]:
        """`encode`, and where in the text each token starts."""
        token_ids: list[int] = []
        starts: list[int] = []
        position, begun = 0, ""
        for match in [*self._guard.finditer(text), None]:
            # A name is cut after its first character, so that no control token can form.
            name = self._guarded_names[int(match[1])] if match else ""
            end = match.start() if match else len(text)
            encoding = self._backend.encode(begun + text[position:end] + name[:1], add_special_tokens=False)
            token_ids += encoding.ids
            starts += [position + max(0, offset - len(begun)) for offset, _ in encoding.offsets]
            position, begun = match.end() if match else end, name[1:]
        return token_ids, starts

    def _control_texts(self) -> list[str]:
        """Names of control tokens, longest first: special ones, ends of answers, and those that the template writes.

        Others, such as runs of newlines, are ordinary words that a tokenizer keeps whole.
        """
        names = [
            token.content
            for token_id, token in self._added.items()
            if token.special or token_id in self.eos_ids or token.content in self.source
        ]
        return sorted((name for name in names if len(name.strip()) > 1), key=len, reverse=True)

    def following(self, text: str, other: str) -> str:
        """Return the part of `text` after its common prefix with `other`; no control token is cut in two."""
        if text.startswith(other):
            return text[len(other) :]
        length = common_beginning(text, other)
        cut = (match.start() for match in self._control.finditer(text) if match.start() < length < match.end())
        return text[next(cut, length) :]

    def pieces(self, text: str) -> list[str | int]:
        """Text, and the control tokens between it, in their order; guarded names stay text."""
        pieces: list[str | int] = []
        position = 0
        for match in [*self._control.finditer(text), None]:
            between = text[position : match.start() if match else len(text)]
            if between:
                pieces.append(self._guard.sub(lambda guarded: self._guarded_names[int(guarded[1])], between))
            if match:
                pieces.append(self._ids[match[0]])
                position = match.end()
        return pieces

    def encode_plain(self, text: str) -> list[int]:
        """Tokens of text in which the names of control tokens are only letters."""
        token_ids: list[int] = []
        start = 0
        for match in self._control.finditer(text):
            token_ids += self.encode(text[start : match.start() + 1])
            start = match.start() + 1
        return token_ids + self.encode(text[start:])

    def is_longer(self, text: str, tokens: int) -> bool:
        """Return whether the text certainly has more than `tokens` tokens: a prefix of it has twice as many.

        The factor of two covers a prefix that ends in other tokens than the whole text.
        """
        length = _CHARACTERS_OF_TOKEN * tokens
        while length < len(text):
            if len(self.encode_plain(text[:length])) > 2 * tokens:
                return True
            length *= 2
        return False

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=False)


def _as_ids(value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _generation_eos_ids(folder: Path) -> list[int]:
    """The ends of generation that the model's authors name, which may be more than the tokenizer's one."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return []
    try:
        return _as_ids(json.loads(file.read_text()).get("eos_token_id"))
    except (OSError, ValueError, AttributeError, TypeError) as cause:
        raise ConfigError(f"model.path: {file} cannot be read: {cause}") from cause
