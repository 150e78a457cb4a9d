"""Merge YAML files and `--set` overrides into one validated AstuneConfig.

Three layers, later ones win: `astune/default_config/default.yaml`, the user's file, the overrides. All errors are
collected and reported together, each with its location. Nothing is started or imported here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from astune.config._yaml import Document, KeyPath, parse_value, read_document
from astune.config.keys import ROOT, Key, canonical, find, key_at, keys_of, nearest
from astune.config.plain_yaml import dump_plain
from astune.config.schema import READER_ALIASES, AstuneConfig, ClusterEngine, StrictModel
from astune.schema import ConfigError

_DEFAULTS = Path(__file__).parent.parent / "default_config"
DEFAULT_YAML = _DEFAULTS / "default.yaml"
APPWORLD_TASKS = _DEFAULTS / "appworld_tasks.yaml"
"""Task reader under `--with-appworld`, unless the experiment sets one."""
READ_YAML_NAME = "read_yaml_name"
UNNAMED = "experiment"
"""Name of an experiment that is built from values without a name."""
ROOT_SECTIONS = get_args(ClusterEngine)
"""Sections that may also stand beside the root key, as in earlier documents."""

_VALUE_ALIASES = {"task_reader.type": READER_ALIASES}
"""Values known from earlier documents, with their present names."""


@dataclass(frozen=True)
class _Problem:
    place: str
    message: str
    hint: str = ""


def load_config(
    path: Path | str | None,
    overrides: Sequence[str] = (),
    *,
    tasks: Path | None = None,
    values: Sequence[Mapping[str, Any]] = (),
) -> AstuneConfig:
    """Load and validate a configuration.

    Args:
        path: the experiment's YAML file; None uses only the defaults and the overrides.
        overrides: `a.b=value` strings, with or without the root key; values are typed as in YAML.
        tasks: a YAML file with the `task_reader` of an experiment that has none.
        values: layers of values by key, dotted or nested, with or without the root key; later ones win.

    Raises:
        ConfigError: with every problem found, each with its file and line, and the fix.
    """
    documents = [read_document(DEFAULT_YAML)]
    if path is not None:
        documents.append(read_document(Path(path)))
    documents += [_given(layer) for layer in values]
    if tasks is not None and not any(_has_tasks(document) for document in documents):
        documents.insert(1, read_document(tasks))
    problems: list[_Problem] = []
    places: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for document in documents:
        _Layer(document, problems, places).add_to(merged)
    for override in overrides:
        _add_override(override, merged, problems, places)
    config = _validated(merged, problems, places)
    if problems or config is None:
        raise _report(problems)
    if config.experiment_name == READ_YAML_NAME and (path is not None or values):
        config = config.model_copy(update={"experiment_name": Path(path or UNNAMED).stem})
    return config


def _given(values: Mapping[str, Any]) -> Document:
    """Convert Python values to a document; with the root key among them they are read as a file is."""
    if ROOT not in values:
        return Document("the values given", {ROOT: _nested(values)}, {})
    root = values[ROOT]
    return Document("the values given", {**values, ROOT: _nested(root) if isinstance(root, Mapping) else root}, {})


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key, dotted or not, with the dotted ones nested."""
    nested: dict[str, Any] = {}
    for written, value in values.items():
        section, (*outer, last) = nested, canonical(written).split(".")
        for name in outer:
            inner = section.get(name)
            section[name] = section = dict(inner) if isinstance(inner, dict) else {}
        section[last] = _joined(section.get(last), value)
    return nested


def _has_tasks(document: Document) -> bool:
    section = document.data.get(ROOT)
    return isinstance(section, dict) and "task_reader" in section


def dump(config: AstuneConfig) -> str:
    """Return the whole configuration as YAML that `load_config` reads back unchanged."""
    return dump_plain({ROOT: config.model_dump(mode="json")}, sort_keys=False, width=120, default_flow_style=None)


class _Layer:
    """A document to be merged: aliases are renamed, unknown keys are collected."""

    def __init__(self, document: Document, problems: list[_Problem], places: dict[str, str]) -> None:
        self._document = document
        self._problems = problems
        self._places = places

    def add_to(self, merged: dict[str, Any]) -> None:
        data = self._document.data
        section = data.get(ROOT)
        if ROOT in data or not data:
            self._merge(section, AstuneConfig, (), merged, (ROOT,))
        for name, value in data.items():
            if name in ROOT_SECTIONS:
                self._add_root_section(name, value, section, merged)
            elif name != ROOT:
                self._unknown_root(str(name))

    def _add_root_section(self, name: str, value: Any, section: Any, merged: dict[str, Any]) -> None:
        if isinstance(section, dict) and name in section:
            message = f"`{name}` and `{ROOT}.{name}` are the same key `{name}`"
            self._problem((name,), message, "keep one of them")
        else:
            self._merge({name: value}, AstuneConfig, (), merged, ())

    def _unknown_root(self, name: str) -> None:
        hint = f"all keys belong under the root key `{ROOT}:`"
        if find(AstuneConfig, name) is not None:
            hint = f"add a line `{ROOT}:` above it and indent it"
        elif difflib.get_close_matches(name, [ROOT], cutoff=0.6):
            hint = f"did you mean `{ROOT}`?"
        self._problem((name,), f"unknown root key `{name}`", hint)

    def _merge(
        self, data: Any, model: type[StrictModel], path: KeyPath, merged: dict[str, Any], written: KeyPath
    ) -> None:
        """Merge `data` at the canonical key path `path`; `written` is the path as spelled in the document."""
        if data is None:  # `task_reader:` with every line below it commented out
            return
        if isinstance(data, str) and model.shorthand:
            data = {model.shorthand: data}
        if not isinstance(data, dict):
            names = ", ".join(keys_of(model))
            self._problem(
                written, f"`{'.'.join((ROOT, *path))}` must be a section, found {shown(data)}", f"its keys are {names}"
            )
            return
        spelled: dict[str, str] = {}
        for raw_name, value in data.items():
            name = str(raw_name)
            key = find(model, name)
            here = (*written, name)
            if ".".join((*path, name)) in _WITHOUT_EFFECT:
                continue
            if key is None:
                self._problem(here, *unknown_key(".".join((*path, name)), model))
                continue
            if key.name in spelled:
                self._problem(
                    here,
                    f"`{name}` and `{spelled[key.name]}` are the same key `{'.'.join((*path, key.name))}`",
                    "keep one of them",
                )
                continue
            spelled[key.name] = name
            below = (*path, key.name)
            self._places[".".join(below)] = self._document.place(here)
            self._set(value, key, below, merged, here)

    def _set(self, value: Any, key: Key, path: KeyPath, merged: dict[str, Any], written: KeyPath) -> None:
        instead = key.is_optional if value is None else key.takes_text and isinstance(value, str)
        if key.is_list and isinstance(value, list | dict | str) and key.section is not None and not instead:
            entries = value if isinstance(value, list) else [value]
            merged[key.name] = [dict[str, Any]() for _ in entries]
            for entry, inner in zip(entries, merged[key.name], strict=True):
                self._merge(entry, key.section, path, inner, written)
        elif key.section is not None and not key.is_list and not instead:
            inner = merged.get(key.name)
            inner = dict(inner) if isinstance(inner, dict) else {}
            self._merge(value, key.section, path, inner, written)
            merged[key.name] = inner
        elif key.entry is not None and isinstance(value, dict):
            entries = dict(merged.get(key.name) or {})
            for raw_name, entry in value.items():
                name = str(raw_name)
                entries[name] = dict(entries.get(name) or {})
                self._merge(entry, key.entry, (*path, name), entries[name], (*written, name))
            merged[key.name] = entries
        elif value is not None or not key.is_open or key.is_optional:  # an empty mapping sets nothing
            merged[key.name] = _joined(merged.get(key.name), _value_of(".".join(path), value))

    def _problem(self, written: KeyPath, message: str, hint: str) -> None:
        self._problems.append(_Problem(self._document.place(written), message, hint))


_WITHOUT_EFFECT = frozenset({"rollout.use_agentscope_protocol"})
"""Obsolete keys that have no effect: a workflow's class determines its protocol."""


def _joined(old: Any, new: Any) -> Any:
    """Merge an open mapping; keys that the later layer does not set are kept."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {name: _joined(old.get(name), value) for name, value in new.items()}


def _value_of(path: str, value: Any) -> Any:
    aliases = _VALUE_ALIASES.get(path, {})
    return aliases.get(value, value) if isinstance(value, str) else value


def _add_override(override: str, merged: dict[str, Any], problems: list[_Problem], places: dict[str, str]) -> None:
    """Merge one `a.b=value`; an open mapping (`task_reader.params.size=4`) accepts any keys."""
    source = f"--set {override}"
    written, equals, text = override.partition("=")
    if not equals or not written.strip():
        problems.append(_Problem(source, "an override needs the form key=value", "--set trainer.optim.lr=1e-5"))
        return
    try:
        value = parse_value(text)
    except yaml.YAMLError as cause:
        problems.append(_Problem(source, f"the value is not valid YAML: {cause}", "quote it"))
        return
    parts = canonical(written.strip()).split(".")
    data: Any = value
    for part in reversed(parts):
        data = {part: data}
    _Layer(Document(source, {ROOT: data}, {}), problems, places).add_to(merged)


def _validated(merged: dict[str, Any], problems: list[_Problem], places: dict[str, str]) -> AstuneConfig | None:
    problems.extend(_truth_values_for_numbers(merged, places))
    problems.extend(_keys_that_are_no_text(merged, "", places))
    try:
        return AstuneConfig.model_validate(merged)
    except ValidationError as cause:
        errors = cause.errors(include_url=False)
        problems.extend(_explain(error, places) for error in errors if error["loc"][-1:] != ("[key]",))
    return None


def _truth_values_for_numbers(merged: dict[str, Any], places: dict[str, str]) -> list[_Problem]:
    """Report booleans given for numbers, such as `num_repeat: true`, which pydantic would accept as 1."""
    found: list[_Problem] = []

    def walk(data: dict[str, Any], path: KeyPath) -> None:
        for name, value in data.items():
            below = (*path, name)
            key = key_at(".".join(below))
            if key is None:
                continue
            if (key.section is not None or key.entry is not None) and isinstance(value, dict):
                walk(value, below)
            elif isinstance(value, bool) and key.kind.startswith(("a whole number", "a number")):
                found.append(
                    _Problem(
                        _place(".".join(below), places),
                        f"`{'.'.join((ROOT, *below))}` must be {key.expected}, found {shown(value)}",
                    )
                )

    walk(merged, ())
    return found


def _keys_that_are_no_text(data: Any, path: str, places: dict[str, str]) -> Iterator[_Problem]:
    """Report keys of Python's values that a run's folder, and so its resume, would have as text."""
    if isinstance(data, dict):
        for name, value in data.items():
            if not isinstance(name, str):
                message = f"a key of `{ROOT}.{path}` must be text; found {shown(name)}"
                yield _Problem(_place(path, places), message, "quote it")
            yield from _keys_that_are_no_text(value, f"{path}.{name}".lstrip("."), places)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _keys_that_are_no_text(value, path, places)


def _explain(error: ErrorDetails, places: dict[str, str]) -> _Problem:
    """Describe one pydantic error in plain words: the key, what it must be, what it is."""
    path = canonical(".".join(str(part) for part in error["loc"] if not isinstance(part, int)))
    key = key_at(path)
    place = _place(path, places)
    if error["type"] == "missing":
        return _Problem(place, f"`{ROOT}.{path}` is missing", f"set it to {key.kind}" if key else "")
    if error["type"] == "value_error" or key is None:
        return _Problem(place, error["msg"].removeprefix("Value error, "))
    value = error["input"]
    hint = ""
    if key.field.annotation is str and isinstance(value, int | float):
        hint = "quote it"
    elif get_origin(key.field.annotation) is Literal and isinstance(value, str):
        close = difflib.get_close_matches(value, [str(option) for option in get_args(key.field.annotation)], n=1)
        hint = f"did you mean {close[0]}?" if close else ""
    return _Problem(place, f"`{ROOT}.{path}` must be {key.expected}; found {shown(value)}", hint)


def _place(path: str, places: dict[str, str]) -> str:
    """Return where the key, or the section around it, was last set."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path, "")


def unknown_key(path: str, model: type[StrictModel] | None = None) -> tuple[str, str]:
    """Return the message and hint for a path that is not a key, or that is one and was written with its dots."""
    key = canonical(path)
    if key_at(key) is not None:
        sections, _, last = key.rpartition(".")
        nested = f"{last}: ..."
        for section in reversed(sections.split(".")):
            nested = f"{section}: {{{nested}}}"
        return f"`{ROOT}.{key}` is written with dots, which a file does not read as sections", f"nest it: {nested}"
    close = nearest(path)
    if close:
        hint = "did you mean " + " or ".join(f"`{full}`" for full in close) + "?"
    elif model is not None:
        hint = f"its keys are {', '.join(keys_of(model))}"
    else:
        hint = f"the sections are {', '.join(key.name for key in keys_of(AstuneConfig).values() if key.section)}"
    return f"unknown key `{ROOT}.{path}`", hint


def shown(value: Any) -> str:
    """Format a value as the user wrote it, with its type if that is the problem."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value[:60]}"'
    if isinstance(value, dict):
        return f"a section with the keys {', '.join(map(str, value))[:60]}"
    return f"the list {value!r}"[:80] if isinstance(value, list) else repr(value)[:80]


def _report(problems: list[_Problem]) -> ConfigError:
    unique = list(dict.fromkeys(problems))
    if len(unique) == 1:
        problem = unique[0]
        return ConfigError(
            f"{problem.place}: {problem.message}" if problem.place else problem.message, hint=problem.hint
        )
    lines = [
        f"  {problem.place}: {problem.message}" + (f" ({problem.hint})" if problem.hint else "") for problem in unique
    ]
    return ConfigError(
        f"the configuration has {len(unique)} problems:\n" + "\n".join(lines),
        hint="`astune config explain KEY` describes a key",
    )
