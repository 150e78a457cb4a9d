"""Interactions from the spans of one trace, in any known format. What cannot be read is an error, never guessed.

AgentScope 1.0.7, 1.0.8   `input` and `output` in JSON; `Msg` objects in them as Python writes them
AgentScope from 1.0.9 on, OpenTelemetry's GenAI conventions   `gen_ai.input.messages`, `gen_ai.output.messages`
OpenInference             `llm.input_messages.0.message.role`, ...
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.feedback.interaction import Interaction, Rating
from astune.feedback.rating_files import as_number
from astune.schema import Message

_LONGEST_REPR = 2_000_000


class Unreadable(ValueError):
    """A span that is meant as a model's or an agent's, and cannot be read."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span as files hold it; attributes are flat, times in seconds since 1970."""

    trace_id: str
    span_id: str
    name: str
    start: float
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Call:
    messages: list[Message]
    tools: list[dict[str, Any]]


def interaction_of(spans: Sequence[Span], source: str) -> Interaction | None:
    """The interaction of one trace: the last call of a model in it with its answer, or else what an agent received and
    replied. None where it has neither. Raises Unreadable if such a span is there, and cannot be read."""
    ordered = sorted(spans, key=lambda span: span.start)
    for wanted in (_is_model, _is_agent):
        found = [span for span in ordered if wanted(span.attributes)]
        if found:
            call = _read(found[-1])
            return Interaction(
                found[-1].trace_id,
                call.messages,
                session=_text(found[-1], "gen_ai.conversation.id", "session.id", "project.run_id"),
                user=_text(found[-1], "user.id", "enduser.id"),
                model=_model(found[-1]),
                tools=call.tools,
                source=source,
                created_at=found[-1].start,
            )
    return None


def ratings_of(spans: Sequence[Span]) -> list[Rating]:
    """Return the evaluations within a trace, as events of OpenTelemetry or as annotations of OpenInference."""
    found: list[Rating] = []
    for span in spans:
        for name, event in span.events:
            if name == "gen_ai.evaluation.result":
                score = event.get("gen_ai.evaluation.score.value")
                comment = str(event.get("gen_ai.evaluation.explanation") or "")
                if isinstance(score, int | float):
                    found.append(Rating(span.trace_id, as_number(score), comment, created_at=span.start))
        score = span.attributes.get("annotation.score")
        if isinstance(score, int | float):
            comment = str(span.attributes.get("annotation.explanation") or "")
            found.append(Rating(span.trace_id, as_number(score), comment, created_at=span.start))
    return found


def _is_model(attributes: Mapping[str, Any]) -> bool:
    kind = str(attributes.get("openinference.span.kind") or _json(attributes.get("span.kind")) or "").upper()
    return attributes.get("gen_ai.operation.name") in ("chat", "text_completion", "generate_content") or kind == "LLM"


def _is_agent(attributes: Mapping[str, Any]) -> bool:
    kind = str(attributes.get("openinference.span.kind") or _json(attributes.get("span.kind")) or "").upper()
    return attributes.get("gen_ai.operation.name") == "invoke_agent" or kind == "AGENT"


def _read(span: Span) -> _Call:
    attributes = span.attributes
    try:
        if any(key.startswith("llm.input_messages") for key in attributes):
            return _open_inference(attributes)
        if "gen_ai.output.messages" in attributes:
            return _gen_ai(attributes)
        if "input" in attributes and "output" in attributes:
            return _agentscope(attributes["input"], attributes["output"])
    except Unreadable:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, SyntaxError, RecursionError) as cause:
        raise Unreadable(f"span {span.span_id} of trace {span.trace_id}: {type(cause).__name__}: {cause}") from cause
    raise Unreadable(f"span {span.span_id} of trace {span.trace_id} ({span.name}) has no messages")


def _gen_ai(attributes: Mapping[str, Any]) -> _Call:
    """The GenAI conventions. AgentScope writes a model's input beside them, with its arguments."""
    own = _json(attributes.get("agentscope.function.input"))
    tools = [_tool(each) for each in _json(attributes.get("gen_ai.tool.definitions")) or []]
    inputs = _json(attributes.get("gen_ai.input.messages"))
    if inputs is not None:
        messages = [message for each in inputs for message in _from_parts(each)]
    else:
        messages = [_plain(each) for each in _first_list(own)]
    system = _json(attributes.get("gen_ai.system_instructions"))
    if system:
        messages.insert(0, {"role": "system", "content": _joined(system)})
    [answer, *_] = _json(attributes["gen_ai.output.messages"])
    return _Call([*messages, *_from_parts(answer)], tools)


def _agentscope(given: Any, returned: Any) -> _Call:
    """AgentScope 1.0.7 and 1.0.8: arguments and result in JSON."""
    arguments, result = _json(given), _json(returned)
    if isinstance(result, str):
        result = _message_of_repr(result)
    keywords = arguments.get("kwargs") or {}
    inputs = _first_list(arguments) or [keywords.get("msg")]
    return _Call([_plain(each) for each in inputs] + [_plain(result)], list(keywords.get("tools") or []))


def _first_list(arguments: Any) -> list[Any]:
    """The messages among a model's arguments."""
    places = [*(arguments.get("args") or []), (arguments.get("kwargs") or {}).get("messages")]
    return next((each for each in places if isinstance(each, list)), [])


def _open_inference(attributes: Mapping[str, Any]) -> _Call:
    messages = [*_indexed(attributes, "llm.input_messages"), *_indexed(attributes, "llm.output_messages")[:1]]
    tools = _indexed(attributes, "llm.tools")
    return _Call(
        [_from_open_inference(each["message"]) for each in messages],
        [_json(each["tool"]["json_schema"]) for each in tools],
    )


def _indexed(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """The values below `prefix`, whose names are flat: `prefix.0.message.role`."""
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(f"{prefix}."):
            place = tree
            *path, last = key.removeprefix(f"{prefix}.").split(".")
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
    return [tree[number] for number in sorted(tree, key=int)]


def _from_open_inference(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    if content is None and "contents" in message:
        parts = message["contents"]
        texts = (parts[number]["message_content"].get("text", "") for number in sorted(parts, key=int))
        content = "".join(texts)
    found: Message = {"role": message["role"], "content": content or ""}
    calls = message.get("tool_calls") or {}
    if calls:
        found["tool_calls"] = [_call_of(calls[number]["tool_call"]) for number in sorted(calls, key=int)]
    if "tool_call_id" in message:
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _call_of(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return _function_call(str(call.get("id", "")), function["name"], function.get("arguments", "{}"))


def _function_call(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def _from_parts(message: Mapping[str, Any]) -> list[Message]:
    """A message of parts: its text and calls, and a message of its own for each result of a tool."""
    parts = message["parts"]
    text = "".join(str(part.get("content", "")) for part in parts if part["type"] == "text")
    calls = [
        _function_call(str(part.get("id", "")), part["name"], part.get("arguments", {}))
        for part in parts
        if part["type"] == "tool_call"
    ]
    results = [_result(part) for part in parts if part["type"] == "tool_call_response"]
    own: list[Message] = []
    if text or calls or not results:
        own = [{"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {})]
    return own + results


def _result(part: Mapping[str, Any]) -> Message:
    content = _joined(part.get("response", part.get("result")))
    return {"role": "tool", "tool_call_id": str(part.get("id", "")), "content": content}


def _plain(message: Any) -> Message:
    """A message of AgentScope: in the OpenAI shape already, as a `Msg`, or a `ChatResponse`, which has blocks alone."""
    if isinstance(message, str):
        message = _message_of_repr(message)
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    calls = [_function_call(str(b["id"]), b["name"], b["input"]) for b in blocks if b.get("type") == "tool_use"]
    results = [b for b in blocks if b.get("type") == "tool_result"]
    if results:
        return {"role": "tool", "tool_call_id": str(results[0]["id"]), "content": _joined(results[0]["output"])}
    text = content if isinstance(content, str) else _joined([b for b in blocks if b.get("type") == "text"])
    found: Message = {"role": message.get("role") or "assistant", "content": text}
    calls = calls or list(message.get("tool_calls") or [])
    if calls:
        found["tool_calls"] = calls
    if message.get("tool_call_id"):
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _message_of_repr(text: str) -> dict[str, Any]:
    """The arguments of `Msg(...)` or another class as Python's `repr` writes it; nothing is executed."""
    if len(text) > _LONGEST_REPR:
        raise Unreadable(f"a message of {len(text):,} characters")
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call):
        raise Unreadable(f"no message: {text[:80]!r}")
    wanted = ("name", "role", "content")
    return {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg in wanted}


def _tool(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the OpenAI shape; the GenAI conventions write it flat."""
    if "function" in definition:
        return dict(definition)
    return {"type": "function", "function": {name: value for name, value in definition.items() if name != "type"}}


def _joined(value: Any) -> str:
    """The text of a string, or of a list of blocks."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        blocks = [each if isinstance(each, dict) else {"text": each} for each in value]
        return "".join(str(block.get("text", block.get("content", ""))) for block in blocks)
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> Any:
    """A value that may be JSON in a text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _text(span: Span, *names: str) -> str:
    found = next((span.attributes[name] for name in names if span.attributes.get(name)), "")
    return str(_json(found))


def _model(span: Span) -> str:
    metadata = _json(span.attributes.get("metadata"))
    known = metadata.get("model_name", "") if isinstance(metadata, dict) else ""
    return _text(span, "gen_ai.request.model", "gen_ai.response.model", "llm.model_name") or str(known)
