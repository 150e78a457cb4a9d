"""Jinja environment for chat templates, as their authors expect it.

Templates rely on transformers' additions to Jinja. This module provides the same without importing transformers, which
takes seconds; a test compares the two over every available template.
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
    """`{% generation %}`, with which authors mark the model's text; it does not change the output."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=32)
def compiled(source: str) -> Template:
    """Compile the template in a sandbox; it can neither change nor reach anything beyond its arguments.

    Raises:
        jinja2.TemplateError: it is not a valid template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals[CLOCK] = lambda form: datetime.now().strftime(form)
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
