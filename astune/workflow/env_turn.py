"""Messages of a turn with the environment: the agent's action, and the response with the ids of its tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from astune.context_tracker.agentscope import without_blocks
from astune.renderers import canonical
from astune.schema import Message, WorkflowError


def action_of(action: Message | str) -> Message:
    """Return the canonical message of an agent's action, with its tool calls; `action` may be plain text.

    Raises:
        WorkflowError: it is not a message, or it contains something other than text and tool calls.
    """
    message = {"content": action} if isinstance(action, str) else action
    if not isinstance(message, dict) or not ("content" in message or message.get("tool_calls")):
        raise WorkflowError(
            f"gym_step was called with {action!r}",
            hint='pass {"role": "assistant", "content": reply.content}',
        )
    answer = without_blocks({**message, "role": message.get("role") or "assistant"})
    plain = canonical({**answer, "content": answer.get("content") or ""})  # a model may say nothing
    if "images" in plain:
        raise WorkflowError("gym_step was called with an image", hint="environments take text and tool calls")
    return plain


def answers_of(state: Sequence[Message], action: Message) -> list[Message]:
    """The environment's messages; results that name no call get the ids of the calls that no result names, in order."""
    named = {message.get("tool_call_id") for message in state}
    free = iter([call["id"] for call in action.get("tool_calls", ()) if call["id"] not in named])
    answers: list[Message] = []
    for message in state:
        nameless = message.get("role") == "tool" and not message.get("tool_call_id")
        call_id = next(free, None) if nameless else None
        answers.append(message if call_id is None else {**message, "tool_call_id": call_id})
    return answers
