"""Safe YAML for configurations from any source: plain values, bounded size and nesting.

Differs from PyYAML's safe loading in six ways: `1e-6` is a number, `1:30` and `2026-01-31` are strings instead of a
base-60 number and a date, `007` is a string instead of an octal number, a number has at most 300 characters, a key is
the text that is written (`on`, `1`), and aliases may not multiply the content.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from astune.schema.plain_json import whole

MAX_DEPTH = 50
MAX_NODES = 200_000
"""Maximum nodes, with every alias counted as its content; our longest configuration has some 500."""
_MAX_DIGITS = 300
_TAG = "tag:yaml.org,2002:"
TEXT = f"{_TAG}str"
NULL = f"{_TAG}null"
"""The tag of an empty value."""
_MERGE = f"{_TAG}merge"
_SIGNED_DIGITS = list("-+0123456789")
_BASE_60 = re.compile(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$")
_LEADING_ZERO = re.compile(r"^[-+]?0[0-9_]+$")
_EXPONENT = re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$")
_OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Ends of lines of Unicode, which a reader of YAML turns into spaces."""
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooLargeError(yaml.YAMLError):
    """YAML text that is nested too deeply, or that aliases make too large."""


class _TextKeys(yaml.constructor.SafeConstructor):
    """Keys are text as written, except `<<`. A pair of escapes that JSON writes for one character is that character."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        return whole(super().construct_scalar(node))

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = TEXT
        super().flatten_mapping(node)


class PlainLoader(_TextKeys, yaml.SafeLoader):
    """Loader that records the position of every value. Check the text with `require_small` first."""


class FastPlainLoader(_TextKeys, _Fast):
    """The same loader in C, for input where error messages do not matter."""


class _PlainDumper(yaml.SafeDumper):
    """Dumper of text that `PlainLoader` reads as the same text."""


def dump_plain(value: Any, **style: Any) -> str:
    """Return YAML that `PlainLoader` reads as this value; `style` is what `yaml.dump` accepts."""
    return yaml.dump(value, Dumper=_PlainDumper, allow_unicode=True, **style)


def _represent_text(dumper: _PlainDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(TEXT, text, style='"' if _OTHER_BREAKS.search(text) else None)


def _int(loader: Any, node: yaml.ScalarNode) -> int:
    if len(node.value) > _MAX_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, "the number has too many digits", node.start_mark)
    return yaml.SafeLoader.construct_yaml_int(loader, node)


def _make_plain(loader: Any) -> None:
    known: dict[str, list[Any]] = yaml.SafeLoader.yaml_implicit_resolvers
    loader.yaml_implicit_resolvers = {
        first: [
            (TEXT, _BASE_60),
            (TEXT, _LEADING_ZERO),
            *((tag, form) for tag, form in forms if tag != f"{_TAG}timestamp"),
        ]
        for first, forms in known.items()
    }
    loader.add_implicit_resolver(f"{_TAG}float", _EXPONENT, _SIGNED_DIGITS)
    loader.add_constructor(f"{_TAG}int", _int)


_make_plain(PlainLoader)
_make_plain(FastPlainLoader)
_PlainDumper.add_implicit_resolver(f"{_TAG}float", _EXPONENT, _SIGNED_DIGITS)
_PlainDumper.add_representer(str, _represent_text)


def require_small(text: str) -> None:
    """Raise TooLargeError if the text nests deeper than `MAX_DEPTH`, or has more than `MAX_NODES` values.

    Other errors are left to the loader.
    """
    try:
        _count(text, _Fast)
    except TooLargeError:
        raise
    except yaml.YAMLError:  # the C parser refuses what the other one reads
        try:
            _count(text, yaml.SafeLoader)
        except TooLargeError:
            raise
        except yaml.YAMLError:
            return


def _count(text: str, loader: Any) -> None:
    """Count nodes by events, which need no recursion however deep the nesting."""
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise TooLargeError("contains itself")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = total - before
        if len(open_nodes) > MAX_DEPTH:
            raise TooLargeError(f"is nested deeper than {MAX_DEPTH} levels")
        if total > MAX_NODES:
            raise TooLargeError(f"has more than {MAX_NODES:,} values")
