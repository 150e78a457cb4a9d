"""A task: what an agent is asked to do, and what a judge needs to know about it."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Message: TypeAlias = dict[str, Any]
"""One chat message in the OpenAI shape: `role`, `content`; `name`, `tool_calls`, `tool_call_id` where they apply."""


class Task(BaseModel):
    """One unit of work. An id is unique within its split; `metadata` is never shown to the agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task_id: str
    main_query: str = ""
    init_messages: list[Message] = Field(default_factory=list)
    env_type: str = "no_env"
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Task:
        if not self.main_query and not self.init_messages:
            raise ValueError("a task needs 'main_query' or 'init_messages'")
        for message in self.init_messages:
            if not isinstance(message.get("role"), str) or "content" not in message:
                raise ValueError(f"each of 'init_messages' needs 'role' and 'content', not {message!r}")
        return self
