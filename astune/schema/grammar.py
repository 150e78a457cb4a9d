"""Constraint on an answer: a grammar for its text, whoever makes the model keep to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "lark", "call"]
ConstrainedTokens = Literal["replay", "mask"]
"""What the loss does with tokens that were sampled under a grammar; see `trainer.loss.constrained_tokens`."""
ONE_LINE_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""What llguidance shall let JSON look like: free whitespace costs tokens, and a small model can go on with it without
end."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that an answer's text must belong to.

    json_schema   {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    regex         (yes|no), because .{1,80}           the whole answer
    lark          start: <tool_call> /\\d+/            llguidance's own notation, which can name control tokens
    call          ["search", "finish"]                names of tools, one of which is called, in whatever form; for
                                                      endpoints that see to it themselves
    """

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """Which tokens a completion could have: those of a text of `grammar`, and then one of `stop_token_ids`."""

    grammar: Grammar
    stop_token_ids: tuple[int, ...]
