"""Parts of an episode that judges read: its task, its reply, its conversation."""

from __future__ import annotations

import json
from typing import Any

from astune.env_service.base import text_of
from astune.schema import JudgeError, Task

Inputs = dict[str, Any]
"""A judge's input dictionary; docs/en/judge.md has its keys."""


def task_of(inputs: Inputs) -> Task:
    return inputs["task_core_arg"].task


def problem_of(task: Task) -> str:
    """The text of what was asked."""
    return task.main_query or text_of(task.init_messages[-1])


def reply_of(inputs: Inputs) -> str:
    """`final_answer` where the workflow registered it, else the last assistant message. Raises JudgeError if there is
    neither."""
    final = inputs.get("final_answer")
    if final is not None:
        return final if isinstance(final, str) else _text_of_value(final)
    for steps in reversed(inputs.get("grouped_steps") or []):
        for message in reversed(steps):
            if message.get("role") == "assistant":
                return text_of(message)
    raise JudgeError(
        f"task {task_of(inputs).task_id} ended without an assistant message",
        hint="register the answer: astune_proxy.update_judge_input_dictionary(final_answer=...)",
    )


def _text_of_value(value: Any) -> str:
    """The text of blocks; a number or another value, which programs print as their answer, as JSON."""
    blocks = value if isinstance(value, list) else [value]
    if all(isinstance(each, str) or (isinstance(each, dict) and "text" in each) for each in blocks):
        return text_of({"content": blocks})
    return json.dumps(value, ensure_ascii=False, default=str)


def conversation_of(inputs: Inputs) -> list[dict[str, Any]]:
    """The messages of all timelines from the first answer on, each with its role, text and tool calls."""
    messages: list[dict[str, Any]] = []
    for steps in inputs.get("grouped_steps") or []:
        spoken = next((i for i, message in enumerate(steps) if message.get("role") == "assistant"), len(steps))
        messages += [_plain(message) for message in steps[spoken:]]
    return messages


def answers_of(inputs: Inputs) -> list[dict[str, Any]]:
    """The messages that trained agents wrote, each once; those of the assistant where that was not recorded."""
    recorded = getattr(inputs["task_core_arg"], "answers", None)
    if recorded is None:
        return [message for message in conversation_of(inputs) if message["role"] == "assistant"]
    return [_plain(message) for message in recorded]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    plain = {"role": message.get("role"), "content": text_of(message)}
    functions = [call.get("function", call) for call in message.get("tool_calls") or []]
    calls = [{name: function.get(name) for name in ("name", "arguments")} for function in functions]
    return plain | ({"tool_calls": calls} if calls else {})
