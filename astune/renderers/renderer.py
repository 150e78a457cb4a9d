"""Protocol between messages and tokens.

A renderer computes the tokens that messages add after a model's exact answer. It never converts sampled tokens to text
and back. The tracker depends on this protocol only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol

from astune.schema import Grammar, Message, Vocabulary

if TYPE_CHECKING:
    from astune.renderers.settled import Settled

Tool = dict[str, Any]
"""A tool's JSON schema in the OpenAI shape."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Parsed answer for the agent.

    `tool_calls` are pairs of a name and its arguments in JSON. `malformed` is the raw text of unparsable calls; it is
    also part of `content`.
    """

    content: str
    reasoning: str | None = None
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens that new messages add to a path, one list for each, and the generation prompt."""

    deltas: list[list[int]]
    generation_ids: list[int]

    @property
    def token_ids(self) -> list[int]:
        return [*(token for delta in self.deltas for token in delta), *self.generation_ids]


class Renderer(Protocol):
    """A model's chat template as the tracker uses it."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ...

    def on(self, day: date) -> Renderer:
        """The renderer with `day` as today, which some templates write into the system message."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        """A conversation from its beginning.

        Raises:
            WorkflowError: the template cannot express a message or the tools.
        """
        ...

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        """Return what `new` adds after an answer, the last message of `history`, that was sampled as `sampled_ids`.

        None if the template renders `history` differently once `new` follows, so that nothing can be added.

        Raises:
            WorkflowError: the template cannot express a message or the tools.
        """
        ...

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Read a sampled answer to `prompt_ids`."""
        ...

    def settled(
        self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool], *, calls: bool = False
    ) -> Settled:
        """Return the beginning of what `parse` will return, whatever follows the tokens sampled so far.

        Args:
            calls: whether calls are settled, too, although they may turn out malformed: such an answer is not read.
        """
        ...

    def text(self, sampled_ids: Sequence[int]) -> str:
        """A sampled answer word for word, without the token that ended it."""
        ...

    def call_grammar(self, tools: Sequence[Tool]) -> Grammar:
        """Return the grammar of an answer that calls one of `tools`.

        Raises:
            WorkflowError: the template's call format has no known grammar.
        """
        ...

    def is_longer(self, text: str, tokens: int) -> bool:
        """Return whether the text certainly has more than `tokens` tokens, at a cost of not many more than that."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included, for people to read."""
        ...

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, for records that outlive the tokenizer; takes some tenths of a second."""
        ...
