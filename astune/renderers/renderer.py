"""The door between messages and tokens.

A renderer says which tokens messages add behind a model's own exact answer. It never turns sampled tokens into
text and back. The tracker knows renderers by this protocol alone.
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
    """Sampled tokens as the agent gets to read them.

    `tool_calls` are pairs of a name and its arguments in JSON. `malformed` is the raw text of what was meant as a call
    and is none; it stands in `content` too.
    """

    content: str
    reasoning: str | None = None
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What new messages add to a path, one list of tokens for each, and what then asks the model for its answer."""

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
        """What `new` adds behind an answer, the last message of `history`, that was sampled as `sampled_ids`.

        None where the template writes `history` differently as soon as `new` follows, so that nothing can be added.

        Raises:
            WorkflowError: the template cannot express a message or the tools.
        """
        ...

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Read a sampled answer to `prompt_ids`."""
        ...

    def settled(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Settled:
        """The beginning of what `parse` will read, whatever follows the tokens that were sampled so far."""
        ...

    def text(self, sampled_ids: Sequence[int]) -> str:
        """A sampled answer word for word, without the token that ended it."""
        ...

    def call_grammar(self, tools: Sequence[Tool]) -> Grammar:
        """What an answer must be to call one of `tools`.

        Raises:
            WorkflowError: the template writes calls in a form that no grammar is known for.
        """
        ...

    def is_longer(self, text: str, tokens: int) -> bool:
        """Whether text surely has more tokens than that, found out at the price of not many more than that."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included, for people to read."""
        ...

    def vocabulary(self) -> Vocabulary:
        """What every token reads as, for a record that outlives the tokenizer; some tenths of a second."""
        ...
