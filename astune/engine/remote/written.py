"""Conversations as characters, for endpoints that take messages and give text: one message a line, in JSON.

A "token" is then a character's code point. That keeps the one contract of engines, ids in and ids out, and the record
exact in its text; it says nothing of the model's real tokens, and such episodes cannot be trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

END = ord("\n")
_TOOLS = "offered_tools"


def written(content: dict[str, Any]) -> list[int]:
    """A message as ids; `END` is the last one, and occurs nowhere else."""
    return [ord(character) for character in json.dumps(content, ensure_ascii=False)] + [END]


def written_tools(tools: Sequence[dict[str, Any]]) -> list[int]:
    return written({_TOOLS: list(tools)}) if tools else []


def read(token_ids: Sequence[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages and the tools that `token_ids` hold."""
    lines = [json.loads(line) for line in "".join(map(chr, token_ids)).split("\n") if line]
    tools = [tool for line in lines for tool in line.get(_TOOLS, ())]
    return [line for line in lines if _TOOLS not in line], tools
