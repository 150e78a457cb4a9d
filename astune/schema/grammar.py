"""Constraint on an answer: a grammar for its text, whichever engine enforces it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "lark", "call"]
ConstrainedTokens = Literal["replay", "mask"]
"""Treatment of tokens that were sampled under a grammar, in the loss; see `trainer.loss.constrained_tokens`."""
ONE_LINE_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""llguidance options for JSON: free whitespace costs tokens, and a small model may emit it without end."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that an answer's text must belong to.

    json_schema   {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    regex         (yes|no), because .{1,80}           the whole answer
    lark          start: <tool_call> /\\d+/            llguidance's own notation, which can name control tokens
    call          ["search", "finish"]                names of tools, one of which is called, in any format; for
                                                      endpoints that enforce it themselves
    """

    kind: GrammarKind
    text: str

    @property
    def is_literal(self) -> bool:
        """Whether an answer is plain text, whatever a parser of tool calls would find in it."""
        return self.kind in ("json_schema", "regex")


@dataclass(frozen=True, slots=True)
class Constraint:
    """Set of possible completions: a text of `grammar`, followed by one of `stop_token_ids`."""

    grammar: Grammar
    stop_token_ids: tuple[int, ...]
