"""What the tutorials' tests share: where the tutorials are, and how one is played."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from astune.config import AstuneConfig, load_config

ROOT = Path(__file__).parents[2]

Play = Callable[..., Any]
"""`await play("example/conf.yaml", task, ["reply", ...])` runs one group of two episodes."""


def tutorial_config(path: str) -> AstuneConfig:
    return load_config(ROOT / "tutorial" / path)


def tool_call(name: str, **arguments: Any) -> str:
    """A call as the small model writes it, whose template knows no tools."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def math_answer(text: str) -> list[str]:
    """What the math agent's model says to end with this result; AgentScope 1.0.7 takes the text within the call."""
    if version("agentscope") == "1.0.7":
        return [tool_call("generate_response", response="That is the answer.", result=text)]
    return [tool_call("generate_response", result=text), "That is the answer."]
