"""Choice of the answer parser for a model family: `renderers` for those that it supports, else plain text.

The table below is the only place with a family's own tokens, to recognise it by its chat template; probing alone is not
enough, since some templates drop reasoning from history and so never show it. Each parser is verified: the template
renders an answer with a call, which the parser has to find.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from astune.renderers import plain_tools
from astune.renderers.call_json import is_readable, read_json, spelled
from astune.renderers.renderer import Reply, Tool
from astune.renderers.spelled_calls import read_as
from astune.renderers.template import ChatTemplate
from astune.schema import ConfigError, install_extra
from astune.schema.plain_json import whole

_log = logging.getLogger(__name__)

ReadReply = Callable[[Sequence[int], Sequence[int], Sequence[Tool]], Reply]
"""(sampled ids, prompt ids, tools) to a reply."""


class Reader(NamedTuple):
    """Parser of answers; `plain` if an answer to a request without tools is its text."""

    read: ReadReply
    plain: bool


_MARKERS: list[tuple[tuple[str, ...], str]] = [
    (("<|channel|>", "<|call|>"), "GptOssRendererConfig"),
    (("<｜tool▁calls▁begin｜>",), "DeepSeekV3RendererConfig"),
    (("<arg_key>", "<|observation|>"), "GLM45RendererConfig"),
    (("<function=", "<|im_start|>"), "Qwen35RendererConfig"),
    (("<tool_call>", "</think>", "<|im_start|>"), "Qwen3RendererConfig"),
    (("<|start_header_id|>", "<|eot_id|>"), "Llama3RendererConfig"),
    (("<|tool_call>", "<turn|>"), "Gemma4RendererConfig"),
    (("[TOOL_CALLS]", "[/INST]"), "mistral"),
]
"""Texts that a template must contain, first match first, with the configuration of `renderers`; Mistral is not in its
families."""
_NAMED_CALL = re.compile(r"(?P<name>[^\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?(?P<arguments>\{.*)", re.DOTALL)


def reader_for(template: ChatTemplate, stop_token_ids: Collection[int]) -> Reader:
    """Return the parser of the family's own format; plain text with calls between tags if the family is unknown."""
    config_name = next((name for markers, name in _MARKERS if all(m in template.source for m in markers)), None)
    plain = Reader(_plain(template, stop_token_ids), plain=True)
    if config_name is None:
        return plain
    try:
        if config_name == "GptOssRendererConfig":
            return Reader(_harmony(template, stop_token_ids), plain=False)
        if config_name == "mistral":
            return Reader(_mistral(template, stop_token_ids), plain=True)
        return Reader(_by_library(template, config_name, stop_token_ids), plain=False)
    except ImportError as cause:
        raise ConfigError(
            f"model.path: reading the answers of {template.name} needs the package renderers, which does not import: "
            f"{cause}",
            hint=install_extra("local"),
        ) from cause
    except Exception as cause:  # such as a control token that the tokenizer lacks
        _log.warning("answers of %s are read as plain text, because renderers refuses it: %s", template.name, cause)
        return plain


def _plain(template: ChatTemplate, stop_token_ids: Collection[int]) -> ReadReply:
    def read(sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        text = template.decode(without_last(sampled_ids, stop_token_ids))
        return plain_tools.read(text) if tools else Reply(text)

    return read


def _by_library(template: ChatTemplate, config_name: str, stop_token_ids: Collection[int]) -> ReadReply:
    import renderers

    reader: Any = renderers.create_renderer(template.tokenizer, getattr(renderers, config_name)())
    unknown = set(stop_token_ids) - set(reader.get_stop_token_ids())

    def read(sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        sampled_ids = without_last(sampled_ids, unknown)
        known = [read_as(tool) for tool in tools] or None
        return _reply(reader.parse_response(list(sampled_ids), tools=known, prompt_ids=list(prompt_ids)))

    return read


def _harmony(template: ChatTemplate, stop_token_ids: Collection[int]) -> ReadReply:
    """gpt-oss; the library's renderer would fetch a vocabulary from the net that its parser does not need."""
    from renderers.parsing import parse_gpt_oss

    names = ("return", "call", "start", "end", "channel", "message", "constrain")
    control = {f"{name}_id": template.encode(f"<|{name}|>")[0] for name in names}
    opening = template.encode("<|start|>assistant")
    unknown = set(stop_token_ids) - {control["return_id"], control["call_id"]}

    def read(sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        sampled_ids = without_last(sampled_ids, unknown)
        return _reply(parse_gpt_oss(template.tokenizer, [*opening, *sampled_ids], **control))

    return read


def _mistral(template: ChatTemplate, stop_token_ids: Collection[int]) -> ReadReply:
    """Parser of Mistral's calls, which follow the text in one of these formats:

    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "Xy1234567"}]      a list, until 2024
    [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 2}                    one after another, since
    """

    def read(sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        text = template.decode(without_last(sampled_ids, stop_token_ids))
        content, *blocks = text.split("[TOOL_CALLS]")
        if not blocks or not tools:
            return Reply(text)
        found = [_mistral_calls(block.strip()) for block in blocks]
        bad = [f"[TOOL_CALLS]{block}" for block, calls in zip(blocks, found, strict=True) if not calls]
        text = "\n".join(part for part in [content.strip(), *bad] if part)
        return Reply(text, None, [call for calls in found for call in calls], bad)

    return read


def _mistral_calls(block: str) -> list[tuple[str, str]]:
    """Empty where the block is not whole."""
    named = _NAMED_CALL.fullmatch(block)
    try:
        if named is not None:
            found = [{"name": named["name"].strip(), "arguments": read_json(named["arguments"])}]
        else:
            found = read_json(block)
        calls = [(whole(str(call["name"])), spelled(dict(call["arguments"]))) for call in found]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    return calls if all(name.strip() for name, _ in calls) else []


def without_last(sampled_ids: Sequence[int], stop_token_ids: Collection[int]) -> Sequence[int]:
    """Return the ids without the token that ended the answer, if it is one of these."""
    return sampled_ids[:-1] if sampled_ids and sampled_ids[-1] in stop_token_ids else sampled_ids


def _reply(parsed: Any) -> Reply:
    """A thought that was cut off is read as a closed one is, without outer whitespace."""
    good = [call for call in parsed.tool_calls if _is_readable(call)]
    bad = [call.raw for call in parsed.tool_calls if not _is_readable(call)]
    content = "\n".join(part for part in [parsed.content, *bad] if part)
    thought = parsed.reasoning_content
    return Reply(
        content, thought and thought.strip(), [(whole(call.name), spelled(call.arguments)) for call in good], bad
    )


def _is_readable(call: Any) -> bool:
    return call.status == "ok" and is_readable(call.name, call.arguments, call.raw)
