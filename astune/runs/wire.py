"""Wire format of a recorded episode, version 1: the content of a store's `blob`.

A blob is zstd-compressed UTF-8 JSON, one object an episode:

    {"format": 1,
     "episode_id", "split": "train"|"validation", "step", "repeat", "attempt", "seed",
     "status": "success"|"failed"|"truncated"|"error", "error": text | null,
     "task": {"task_id", "main_query", "init_messages", "env_type", "metadata"},
     "reward": {"raw_reward", "is_success", "per_target", "per_turn", "metadata"} | null,
     "metrics": {name: number}, "timings": {phase: seconds}, "judge_inputs": {...}, "targets": {agent: tag},
     "constrained_tokens": "replay"|"mask",
     "forest": [node, ...], "day": "2026-01-31" | null}

A node is one message, in the order of recording; the path from the root (`parent` null) is what the model read:

    {"node_id", "parent": id | null, "role", "content", "agent", "token_ids": [int],
     "name", "reasoning", "tool_calls", "tool_call_id", "images": [[place, SHA-256], ...], "tools",
     "malformed_calls": [text], "logprobs": [float] | null,
     "finish_reason", "weights_version", "trainable": bool, "fork_cause": text | null,
     "constraint": {"kind", "text", "stop_token_ids": [int]} | null,
     "asked_after": int}

`token_ids` is the delta to the parent's path; the last `len(logprobs)` of them were sampled, the others read. Keys from
`name` on are omitted if they hold their default (null, [], 0 or false). Episodes recorded before there were grammars
lack `constrained_tokens`, and read as "replay"; `day` may be missing as well.

JSON cannot hold everything that Python can, so a few values are wrapped in an object with one `$` key: `{"$float":
"nan"|"inf"|"-inf"}`, `{"$int": digits}` beyond 64 bits, `{"$tuple": [...]}`, `{"$bytes": base64}`, `{"$text": hex}` for
text that is not valid Unicode (UTF-8 with surrogates passed through), `{"$dict": [[key, value], ...]}` for keys that
are not text, or for a mapping that would look like one of these. Any other object is stored as `{"$repr": text}` and is
read back as that text.
"""

from __future__ import annotations

import base64
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import zstandard

from astune.runs._limits import decompressed
from astune.schema import Constraint, Episode, Forest, Grammar, MessageNode, Reward, RunStoreError, Task

FORMAT = 1
_EPISODE = (
    *("episode_id", "split", "step", "repeat", "attempt", "seed", "status", "error", "metrics", "timings"),
    *("judge_inputs", "targets", "constrained_tokens"),
)
_LATER = ("targets", "constrained_tokens")
"""Fields of an episode that old records lack."""
_TASK = ("task_id", "main_query", "init_messages", "env_type", "metadata")
_REWARD = ("raw_reward", "is_success", "per_target", "per_turn", "metadata")
_OPTIONAL: dict[str, Any] = {
    "name": None,
    "reasoning": None,
    "tool_calls": [],
    "tool_call_id": None,
    "images": [],
    "tools": [],
    "malformed_calls": [],
    "logprobs": None,
    "finish_reason": None,
    "weights_version": None,
    "trainable": False,
    "fork_cause": None,
    "constraint": None,
    "stopped_by": None,
    "asked_after": 0,
}
_TEXTS = (
    *("role", "content", "agent", "name", "reasoning", "tool_calls", "tool_call_id", "tools", "malformed_calls"),
    "fork_cause",
    "stopped_by",
)
"""Fields of a node that hold text of users and models."""
_MAX_INT_BITS = 14_000
"""Maximum bits of an integer, since Python parses no more digits."""
_INT64 = range(-(2**63), 2**63)
_WRAPPED = re.compile(r"\$(float|int|tuple|bytes|text|dict|repr)")
_MAX_DEPTH = 60
_MAX_PATHS = 5_000_000
"""Maximum messages on all root-to-leaf paths together; an episode of 1,000 calls that branched 500 times has half a
million."""


def snapshot(episode: Episode) -> dict[str, Any]:
    """Return the episode as JSON-ready data. Only token ids and log-probabilities are shared with it, not copied."""
    reward = episode.reward
    return {
        "format": FORMAT,
        **_fields_to_json(episode, _EPISODE),
        "task": _fields_to_json(episode.task, _TASK),
        "reward": None if reward is None else _fields_to_json(reward, _REWARD),
        "forest": [_node_to_json(node) for node in episode.forest.nodes],
        "day": episode.forest.day,
    }


def _fields_to_json(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: to_json(getattr(value, name)) for name in names}


def pack(snapshot: dict[str, Any], compressor: zstandard.ZstdCompressor) -> bytes:
    return compressor.compress(orjson.dumps(snapshot, option=orjson.OPT_SERIALIZE_NUMPY))


def unpack(blob: bytes) -> Episode:
    """Decode a blob: the inverse of `snapshot` and `pack`. Raises RunStoreError if the blob is damaged, or was written
    by a newer version."""
    with _record_errors():
        return _episode_from_json(_record(blob))


def main_query(blob: bytes) -> str:
    """The query of a packed episode's task, without making the episode.

    Raises:
        RunStoreError: as `unpack`.
    """
    with _record_errors():
        return str(from_json(_record(blob)["task"]["main_query"]))


def _record(blob: bytes) -> dict[str, Any]:
    data = orjson.loads(decompressed(blob))
    version = data["format"]
    if version != FORMAT:
        raise RunStoreError(
            f"an episode was recorded in format {version}, this version reads {FORMAT}", hint="upgrade astune"
        )
    return data


@contextmanager
def _record_errors() -> Iterator[None]:
    try:
        yield
    except (zstandard.ZstdError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise RunStoreError(f"an episode's record is damaged: {str(cause)[:500]}") from cause


def _episode_from_json(data: dict[str, Any]) -> Episode:
    reward = data["reward"]
    nodes = [_node_from_json(node) for node in data["forest"]]
    _require_forest(nodes)
    return Episode(
        task=Task(**_fields_from_json(data["task"])),
        forest=Forest(nodes, data.get("day")),
        reward=None if reward is None else Reward.model_validate(_fields_from_json(reward)),
        **_fields_from_json({name: data[name] for name in _EPISODE if name in data or name not in _LATER}),
    )


def _fields_from_json(data: dict[str, Any]) -> dict[str, Any]:
    return {name: from_json(value) for name, value in data.items()}


def _require_forest(nodes: Sequence[MessageNode]) -> None:
    """Raise ValueError if the nodes are not a valid forest, or have more or longer paths than any real episode."""
    depths: list[int] = []
    inner: set[int | None] = set()
    for position, node in enumerate(nodes):
        parent = node.parent
        if node.node_id != position or not (parent is None or (type(parent) is int and 0 <= parent < position)):
            raise ValueError(f"node {position} precedes its parent, or has another number")
        if set(map(type, node.token_ids)) - {int} or set(map(type, node.logprobs or ())) - {int, float}:
            raise ValueError(f"node {position} has invalid tokens or log-probabilities")
        if node.n_sampled > len(node.token_ids) or not isinstance(node.agent, str) or not isinstance(node.role, str):
            raise ValueError(f"node {position} is not a message")
        depths.append(1 if parent is None else depths[parent] + 1)
        inner.add(parent)
    if sum(depth for position, depth in enumerate(depths) if position not in inner) > _MAX_PATHS:
        raise ValueError(f"its paths have more than {_MAX_PATHS:,} messages together")


def _node_to_json(node: MessageNode) -> dict[str, Any]:
    data: dict[str, Any] = {
        "node_id": node.node_id,
        "parent": node.parent,
        "role": to_json(node.role),
        "content": to_json(node.content),
        "agent": to_json(node.agent),
        "token_ids": node.token_ids,
    }
    for key, default in _OPTIONAL.items():
        value = getattr(node, key)
        if value != default:
            data[key] = _OWN_FORM.get(key, to_json)(value)
    return data


def _node_from_json(data: dict[str, Any]) -> MessageNode:
    logprobs = data.get("logprobs")
    if logprobs and dict in map(type, logprobs):
        data["logprobs"] = from_json(logprobs)
    for key in _TEXTS:
        if key in data:
            data[key] = from_json(data[key])
    if "images" in data:
        data["images"] = [(place, digest) for place, digest in data["images"]]
    if "constraint" in data:
        data["constraint"] = _constraint_from_json(data["constraint"])
    return MessageNode(**data)


def _images_to_json(images: list[tuple[int, str]]) -> list[list[Any]]:
    return [list(image) for image in images]


def _logprobs_to_json(logprobs: list[float]) -> list[Any]:
    """Convert log-probabilities; shared if JSON can hold them all."""
    return logprobs if math.isfinite(sum(logprobs)) else to_json(logprobs)


def _constraint_to_json(constraint: Constraint) -> dict[str, Any]:
    grammar = constraint.grammar
    return {"kind": grammar.kind, "text": to_json(grammar.text), "stop_token_ids": list(constraint.stop_token_ids)}


def _constraint_from_json(data: dict[str, Any]) -> Constraint:
    return Constraint(Grammar(data["kind"], from_json(data["text"])), tuple(data["stop_token_ids"]))


_OWN_FORM: dict[str, Callable[[Any], Any]] = {
    "images": _images_to_json,
    "logprobs": _logprobs_to_json,
    "constraint": _constraint_to_json,
}
"""Encoders of node fields that are not written unchanged."""


def to_json(value: Any, ancestors: tuple[int, ...] = ()) -> Any:
    """Copy `value` into strict JSON, with wrappers as in the module's docstring."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if _is_unicode(text) else {"$text": text.encode("utf-8", "surrogatepass").hex()}
    if isinstance(value, numbers.Integral):
        number = int(value)
        if number.bit_length() > _MAX_INT_BITS:
            return {"$repr": f"<int of {number.bit_length()} bits>"}
        return number if number in _INT64 else {"$int": str(number)}
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if not isinstance(value, Mapping | list | tuple):
        return {"$repr": to_json(_safe_repr(value))}
    if id(value) in ancestors or len(ancestors) > _MAX_DEPTH:
        return {"$repr": f"<{type(value).__name__} that contains itself, or is nested deeper than {_MAX_DEPTH}>"}
    ancestors = (*ancestors, id(value))
    if isinstance(value, Mapping):
        items = list(value.items())
        looks_wrapped = len(items) == 1 and isinstance(items[0][0], str) and _WRAPPED.fullmatch(items[0][0])
        if not looks_wrapped and all(isinstance(key, str) and _is_unicode(key) for key, _ in items):
            return {str.__str__(key): to_json(item, ancestors) for key, item in items}
        return {"$dict": [[to_json(key, ancestors), to_json(item, ancestors)] for key, item in items]}
    elements = [to_json(item, ancestors) for item in value]
    return elements if isinstance(value, list) else {"$tuple": elements}


def from_json(value: Any) -> Any:
    """Decode the output of `to_json`; only a `$repr` becomes text instead of the original object."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if _WRAPPED.fullmatch(key):
            return _unwrap(key, inner)
    return {key: from_json(item) for key, item in value.items()}


def _unwrap(key: str, inner: Any) -> Any:
    match key:
        case "$float":
            return float(inner)
        case "$int":
            return int(inner)
        case "$tuple":
            return tuple(from_json(item) for item in inner)
        case "$bytes":
            return base64.b64decode(inner)
        case "$text":
            return bytes.fromhex(inner).decode("utf-8", "surrogatepass")
        case "$dict":
            return {from_json(name): from_json(item) for name, item in inner}
        case _:
            return from_json(inner)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)[:10_000]
    except Exception as cause:
        return f"<{type(value).__name__} whose repr fails: {cause!r}>"
