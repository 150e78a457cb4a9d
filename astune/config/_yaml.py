"""YAML with positions: records the line of every key, so that an error can name it. A duplicate key is an error. Values
are typed by `plain_yaml.py`; this module knows nothing of the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from astune.config.plain_yaml import NULL, TEXT, PlainLoader, TooLargeError, require_small
from astune.schema import ConfigError

KeyPath = tuple[str, ...]
_MARKED = tuple("\"'[{|>!&")
"""Beginnings of a value that is meant as YAML."""


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, and the line (from 1) of every key by its path."""

    source: str
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def place(self, path: KeyPath) -> str:
        """Return the source and the line of the key, or of the nearest enclosing section in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.source}, line {self.lines[path]}" if path else self.source


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", hint=_missing_hint(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a YAML file", hint=_missing_hint(path / "x")) from None
    except UnicodeDecodeError as cause:
        raise ConfigError(f"{path} is not a text file in UTF-8: {cause}", hint="save it as UTF-8") from None
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}", hint="check its permissions") from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text whose top level is a mapping; an empty text is an empty mapping."""
    lines: dict[KeyPath, int] = {}
    try:
        require_small(text)
        loader = PlainLoader(text)
        node = loader.get_single_node()
        if node is None or node.tag == NULL:
            return Document(source, {}, lines)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{source}, line {node.start_mark.line + 1}: expected `key: value` lines, found {_kind(node)}",
                hint="write a space after each key's colon",
            )
        _record_lines(node, (), lines, source)
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as cause:
        raise _syntax_error(cause, text, source) from None
    except yaml.reader.ReaderError as cause:
        raise ConfigError(f"{source}: {cause.reason} (character {cause.position})", hint="remove it") from None
    except TooLargeError as cause:
        raise ConfigError(f"{source} {cause}", hint="remove anchors (&) with their aliases (*), or brackets") from None
    return Document(source, data, lines)


def parse_value(text: str) -> Any:
    """Parse one value as YAML types it: `8` is a number, `true` a boolean, `[a, b]` a list.

    Text stays whole where a file would fold its lines, or end or begin something else: `####`, `You are #1`,
    `Answer: yes`, `- a`.
    """
    require_small(text)
    try:
        node = yaml.compose(text, Loader=PlainLoader)
    except yaml.MarkedYAMLError:
        if text.lstrip()[:1] in _MARKED:
            raise
        return text.strip()
    return text.strip() if _is_text(node, text) else yaml.load(text, Loader=PlainLoader)  # a subclass of SafeLoader


def _is_text(node: yaml.Node | None, text: str) -> bool:
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return "\n" not in text.strip()
    if node is None or text[node.start_mark.index : node.end_mark.index].strip() != text.strip():
        return bool(text.strip())  # the rest would be a comment
    return node.tag == TEXT and text.lstrip()[0] not in _MARKED


def _record_lines(node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int], source: str) -> None:
    here: dict[str, int] = {}
    for key_node, value_node in node.value:
        name = str(key_node.value)
        line = key_node.start_mark.line + 1
        if name in here and name != "<<":
            raise ConfigError(
                f"{source}, line {line}: key `{name}` appears twice in its section, first on line {here[name]}",
                hint="remove one of them",
            )
        here[name] = line
        lines[(*path, name)] = line
        if isinstance(value_node, yaml.MappingNode):
            _record_lines(value_node, (*path, name), lines, source)


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else f"the text {str(node.value)[:60]!r}"


def _syntax_error(cause: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    mark = cause.problem_mark or cause.context_mark
    problem = cause.problem or cause.context or "cannot be parsed"
    if mark is None:
        return ConfigError(f"{source} is not valid YAML: {problem}", hint="compare it with a tutorial's YAML")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    shown = line.replace("\t", "→")
    message = (
        f"{source}, line {mark.line + 1}, column {mark.column + 1} is not valid YAML: {problem}\n"
        f"  {mark.line + 1:4d} | {shown}\n       | {' ' * mark.column}^"
    )
    if "\t" in line[: mark.column + 1]:
        hint = "YAML indents with spaces, never with tabs"
    elif "mapping values are not allowed" in problem:
        hint = 'put a value that contains ": " into quotes, or indent the key like its neighbours'
    elif any(word in problem for word in ("block end", "found", "expected")):
        hint = "look for an unclosed quote or bracket, or a line with different indentation"
    else:
        hint = "the mistake is on this line or the one before it"
    return ConfigError(message, hint=hint)


def _missing_hint(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either; the working directory is {Path.cwd()}"
    there = sorted(p.name for p in folder.iterdir() if p.suffix in {".yaml", ".yml"})
    return f"{folder} contains {', '.join(there[:8])}" if there else f"{folder} contains no YAML files"
