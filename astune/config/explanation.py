"""Description of a key in words: type, default, allowed range and reason, from the schema's docstrings."""

from __future__ import annotations

from typing import Any

import yaml

from astune.config.keys import ROOT, Key, canonical, key_at, keys_of
from astune.config.loader import unknown_key
from astune.config.schema import AstuneConfig, StrictModel
from astune.schema import ConfigError


def explain(key: str) -> str:
    """Describe a key, or a section with its keys; `astune` or an empty key lists the sections.

    Raises:
        ConfigError: there is no such key; names the nearest.
    """
    path = canonical(key)
    if not path:
        lines = [f"{ROOT} (section)", ""]
        return "\n".join(lines + [_line(found) for found in keys_of(AstuneConfig).values()])
    found = key_at(path)
    if found is None:
        message, hint = unknown_key(path)
        raise ConfigError(message, hint=hint)
    return _section(found) if found.section is not None else _value(found)


def _section(key: Key) -> str:
    section = key.section
    lines = [f"{key.full} (section{', may be null' if key.is_optional else ''})"]
    if key.aliases:
        lines.append(f"also written {', '.join(key.aliases)}")
    if key.reason:
        lines += [key.reason]
    lines += ["", *(_line(found) for found in keys_of(section).values())] if section is not None else []
    return "\n".join(lines)


def _value(key: Key) -> str:
    rows = [
        ("type", key.kind),
        ("default", "none (required)" if key.is_required else as_yaml(key.default())),
        ("allowed", key.allowed),
        ("aliases", ", ".join(key.aliases)),
    ]
    return "\n".join([key.full, *(f"  {name:<9}{text}" for name, text in rows if text), "", key.reason])


def _line(key: Key) -> str:
    if key.section is not None:
        return f"  {key.name + ':':<34}{key.reason or '(section)'}"
    default = "(required)" if key.is_required else as_yaml(key.default())
    return f"  {f'{key.name}: {default}':<34}{key.reason}"


def as_yaml(value: Any) -> str:
    """Format a value on one line, as it would be written in a file."""
    if hasattr(value, "__fspath__"):
        value = str(value)
    if isinstance(value, tuple | list):
        value = [_shorthand(each) if isinstance(each, StrictModel) else each for each in value]
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def _shorthand(section: StrictModel) -> Any:
    """Format a section of a list as a user writes it: its settings, or its name if it sets nothing else."""
    given = section.model_dump(mode="json", exclude_defaults=True)
    return given[section.shorthand] if list(given) == [section.shorthand] else given
