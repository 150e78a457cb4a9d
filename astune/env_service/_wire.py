"""Wire format between an environment service and its clients; docs/en/env_service.md documents it.

Every POST takes `{"env_type", "task_id", "instance_id", "messages", "params"}`; every answer is
`{"success": bool, "data": ...}`, or `{"detail": text}` with a status of 400 or more. The order of keys is part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from astune.env_service.base import EnvState, EnvStep
from astune.schema import EnvError, Message
from astune.schema.plain_json import encoded, shortened
from astune.serving.json_body import read_json

TOKEN_VARIABLE = "ASTUNE_SERVICE_TOKEN"
"""Environment variable that holds the token of a service, for the server and its clients."""

MAX_BODY_BYTES = 32 * 2**20
"""The largest body of a request, and of an answer."""

STEP_INDEX = "Step-Index"
"""Header of a service that applies a repeated step once: the index that the instance's next step has."""

LIVE, FREE, TOTAL = "Env-Instances-Live", "Env-Instances-Free", "Env-Instances-Total"
"""Headers of `/healthz`: places taken, left, and of both."""

ANY_ENV = "default"
"""The `env_type` of clients that leave it to the server."""
HOSTS = "this server hosts"
"""Beginning of a server's message that it does not host the requested `env_type`."""


@dataclass(frozen=True, slots=True)
class Request:
    """The body of every POST."""

    env_type: str = ANY_ENV
    task_id: str | None = None
    instance_id: str | None = None
    messages: Message = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        body = {name: getattr(self, name) for name in ("env_type", "task_id", "instance_id", "messages", "params")}
        return encoded(body)


class MalformedRequest(ValueError):
    """Body that is not a valid request; the message is for the client."""


def read_request(body: bytes) -> Request:
    """Parse a request; missing or null fields have their default, other keys are ignored. Raises MalformedRequest if it
    is not a JSON object, or a field has the wrong type."""
    try:
        given = read_json(body)
    except ValueError as cause:
        raise MalformedRequest(f"the body is not JSON: {cause}") from cause
    if not isinstance(given, dict):
        raise MalformedRequest("the body is not a JSON object")
    messages = given.get("messages") or {}
    if isinstance(messages, list):  # a list of one, as other clients send it
        if len(messages) != 1:
            raise MalformedRequest(f"'messages' holds {len(messages)} messages; an action is one message")
        [messages] = messages
    return Request(
        env_type=_typed(given, "env_type", str) or ANY_ENV,
        task_id=_typed(given, "task_id", str),
        instance_id=_typed(given, "instance_id", str),
        messages=_typed({"messages": messages}, "messages", dict) or {},
        params=_typed(given, "params", dict) or {},
    )


def state_data(state: EnvState, *, instance_id: str, task_id: str) -> dict[str, Any]:
    ids = {"instance_id": instance_id, "task_id": task_id}
    return {"state": state.state, "info": ids | state.info | ids}


def step_data(step: EnvStep) -> dict[str, Any]:
    return {
        "state": step.state,
        "reward": float(step.reward),
        "is_terminated": bool(step.is_terminated),
        "info": step.info,
    }


def read_state(data: Any, what: str) -> EnvState:
    if not isinstance(data, dict):
        raise _unlike(what, '{"state": [messages], "info": {...}}', data)
    return EnvState(_messages(data, what), _info(data, what))


def read_step(data: Any, what: str) -> EnvStep:
    if not isinstance(data, dict) or not isinstance(data.get("is_terminated"), bool):
        raise _unlike(what, '{"state": [messages], "reward": number, "is_terminated": bool, "info": {...}}', data)
    return EnvStep(
        _messages(data, what), read_number(data.get("reward"), what), data["is_terminated"], _info(data, what)
    )


def read_number(data: Any, what: str) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
        raise _unlike(what, "a finite number", data)
    return float(data)


def read_text(data: Any, what: str) -> str:
    if not isinstance(data, str):
        raise _unlike(what, "text", data)
    return data


def read_ids(data: Any, what: str) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(task_id, str | int) for task_id in data):
        raise _unlike(what, "a list of task ids", data)
    return [str(task_id) for task_id in data]


def _messages(data: dict[str, Any], what: str) -> list[Message]:
    messages = data.get("state")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _unlike(what, "a list of messages as 'state'", messages)
    return messages


def _info(data: dict[str, Any], what: str) -> dict[str, Any]:
    info = {} if data.get("info") is None else data["info"]
    if not isinstance(info, dict):
        raise _unlike(what, "an object as 'info'", info)
    return info


def _unlike(what: str, expected: str, found: Any) -> EnvError:
    return EnvError(
        f"{what}: expected {expected}, found {shortened(repr(found))}",
        hint="what answers there does not keep to the protocol in docs/en/env_service.md",
    )


def _typed(given: dict[str, Any], name: str, kind: type) -> Any:
    value = given.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and kind is str:
        return str(value)
    if value is not None and not isinstance(value, kind):
        expected = "an object" if kind is dict else "text"
        raise MalformedRequest(f"{name!r} is expected to be {expected}, and is {type(value).__name__}")
    return value
