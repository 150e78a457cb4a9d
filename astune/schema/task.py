"""A task: what an agent has to do, and what a judge needs to know about it.

It is plain data, since it is also sent to environments whose Python has other packages.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""A chat message in the OpenAI format: `role`, `content`; `name`, `tool_calls`, `tool_call_id` where they apply."""

_KINDS: dict[str, tuple[type, str]] = {
    "task_id": (str, "text"),
    "main_query": (str, "text"),
    "init_messages": (list, "a list of messages"),
    "env_type": (str, "text"),
    "metadata": (dict, "an object"),
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task. Ids are unique within a split; `metadata` is never shown to the agent.

    Raises:
        ValueError: a field has the wrong type, or there is no query.
    """

    task_id: str
    """Id, unique within the split."""
    main_query: str = ""
    """The question; either this or `init_messages` is required."""
    init_messages: list[Message] = field(default_factory=list)
    """First messages of the conversation."""
    env_type: str = "no_env"
    """Environment that the agent acts in: a built-in name, `module->Class` or `path/file.py->Class`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Values for the judge and the environment, such as the reference answer."""

    def __post_init__(self) -> None:
        for name, (kind, expected) in _KINDS.items():
            _require(name, getattr(self, name), kind, expected)
        for index, message in enumerate(self.init_messages):
            _require(f"init_messages.{index}", message, dict, "an object")
            if not isinstance(message.get("role"), str) or "content" not in message:
                raise ValueError(f"each of 'init_messages' needs 'role' and 'content', not {message!r}")
        if not self.main_query and not self.init_messages:
            raise ValueError("a task needs 'main_query' or 'init_messages'")


def content_id(content: dict[str, Any]) -> str:
    """Derive an id from the content alone: the same in every run, for every order of keys."""
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _require(name: str, value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"field {name!r}: expected {expected}, found {reprlib.repr(value)}")
