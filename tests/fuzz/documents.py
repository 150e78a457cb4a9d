"""OpenAPI documents of our servers, made from their own tables of routes: what is added to a server is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from test_odd_bodies import BODIES

from astune.backbone.cluster.messages import MESSAGES
from astune.env_service.server import new_app
from astune.gateway.app import COUNT_TOKENS, DIALECTS
from astune.viewer.app import answers_by_name

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}


def document(title: str, paths: dict[str, Schema]) -> Schema:
    return {"openapi": "3.1.0", "info": {"title": title, "version": "1"}, "paths": paths}


def posted(body: Schema, query: Iterable[Schema] = ()) -> Schema:
    """A route that takes a body of JSON."""
    content = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": {"parameters": list(query), "requestBody": content, "responses": _ANSWERS}}


def asked(*query: Schema) -> Schema:
    return {"get": {"parameters": list(query), "responses": _ANSWERS}}


def parameter(name: str, schema: Schema, *, required: bool = False, where: str = "query") -> Schema:
    return {"name": name, "in": where, "required": required, "schema": schema}


def schema_of(example: Any) -> Schema:
    """The schema of values like this one."""
    match example:
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return _NUMBER
        case str():
            return {"anyOf": [{"const": example}, _TEXT]}
        case list():
            return {"type": "array", "items": {"anyOf": [schema_of(each) for each in example] or [{}]}, "maxItems": 4}
        case dict():
            return {"type": "object", "properties": {name: schema_of(value) for name, value in example.items()}}
    return {}


_ANSWERS = {"default": {"description": "an answer or a refusal"}}


def environment_service() -> Schema:
    body = {
        "type": "object",
        "properties": {
            "env_type": {"enum": ["calculator", "frozenlake", "any", ""]},
            "task_id": {"type": ["string", "null"]},
            "instance_id": {"anyOf": [{"enum": ["a", "b"]}, _TEXT]},
            "messages": {"type": "object", "properties": {"role": _TEXT, "content": _TEXT}},
            "params": {"type": "object", "properties": {"split": _TEXT, "step_index": _WHOLE, "seed": _WHOLE}},
        },
    }
    routes: Any = new_app(None, loopback=True, token=None).routes  # type: ignore[arg-type]
    return document("environment service", {r.path: posted(body) if "POST" in r.methods else asked() for r in routes})


def gateway() -> Schema:
    bodies = {f"/v1{path}": schema_of(body) for path, body in BODIES.items()}
    assert bodies.keys() == {str(path) for path in DIALECTS}
    counted = posted(schema_of(BODIES["/messages"]))
    paths = {path: posted(body) for path, body in bodies.items()}
    return document("gateway", {**paths, COUNT_TOKENS: counted, "/v1/models": asked(), "/healthz": asked()})


def workers() -> Schema:
    """The gateway's routes for workers."""
    lease = {"lease": _TEXT, "error": _TEXT, "reward": _NUMBER, "metrics": {"type": "object"}, "final_answer": {}}
    body = {"type": "object", "properties": lease}
    path = parameter("episode", _TEXT, required=True, where="path")
    each = {f"/v1/episodes/{{episode}}/{name}": posted(body, [path]) for name in ("heartbeat", "end", "abort")}
    claim = posted({"type": "object", "properties": {"wait_s": {"type": "number", "maximum": 0}}})
    return document("gateway for workers", {"/v1/episodes": claim, **each})


def viewer(episode_id: str) -> Schema:
    """Without the stream of events, which has no end."""
    run = parameter("run", {"anyOf": [{"const": ""}, _TEXT]})
    one = parameter("id", {"anyOf": [{"const": episode_id}, _TEXT]})
    texts = "agent by client error_type model name opinion order policy sort split status success task task_id text"
    whole = "limit max_tokens min_branches min_tokens offset step timeline"
    query = [
        *(run, one),
        *(parameter(name, _TEXT) for name in f"{texts} turned user".split()),
        *(parameter(name, _WHOLE) for name in whole.split()),
        *(parameter(name, _NUMBER) for name in ("max_reward", "min_reward", "since", "until")),
    ]
    names = [*answers_by_name(None), "report", "turn"]  # type: ignore[arg-type]
    notes = {"type": "object", "properties": {"episode": _TEXT, "text": _TEXT, "tags": {"type": "array"}}}
    paths = {f"/api/{name}": asked(*query) for name in names}
    others = {"/": asked(), "/healthz": asked(parameter("folder", _TEXT))}
    return document("viewer", {**paths, **others, "/api/notes": posted(notes, [run])})


def run_server() -> Schema:
    reports = {f"/{kind}": posted(_inlined(message.model_json_schema())) for kind, message in MESSAGES.items()}
    anything = posted({})
    return document("run server", {"/job": asked(), **reports, "/episode": anything, "/nothing-like-it": anything})


def _inlined(schema: Schema) -> Schema:
    """Without references."""
    known = schema.pop("$defs", {})

    def read(value: Any) -> Any:
        match value:
            case {"$ref": str(name)}:
                return read(known[name.rpartition("/")[2]])
            case dict():
                return {key: read(inner) for key, inner in value.items()}
            case list():
                return [read(inner) for inner in value]
        return value

    return read(schema)
