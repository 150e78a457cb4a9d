"""Chat templates as programs: the Jinja environment that their authors write them for.

Templates rely on what transformers offers them beyond Jinja itself. Here is the same without transformers, which takes
seconds to be imported; a test compares the two over every template at hand.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CLOCK = "strftime_now"
"""The function by which templates ask for the time."""


class _Generation(Extension):
    """`{% generation %}`, by which authors mark what a model says; it changes nothing of what is written."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=32)
def compiled(source: str) -> Template:
    """The template, ready to be rendered; it can neither change nor reach anything beyond what it is given.

    Raises:
        jinja2.TemplateError: it is no template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals[CLOCK] = _strftime_now
    return environment.from_string(source)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter is for pages, and would write `<` as an escape."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
