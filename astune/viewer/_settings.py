"""A run's configuration as a list of runs needs it: model, backbone, seed, and the settings in which runs differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson
import yaml

from astune.config.document_marks import without_marks
from astune.config.plain_yaml import FastPlainLoader, require_small
from astune.viewer._answers import plain_text

_OWN_COLUMNS = ("backbone", "model.path", "seed", "experiment_name", "record_dir")
_OF_THE_RUN = ("project_name", "experiment_name", "record_dir")
_MOST_KEYS = 1000
_CHARACTERS = 80
_HEAD = "astune:\n"
_KEPT_SECTIONS = 2000
_SECTION_BEGINS = re.compile(r"^(?=  [^\s#-])", re.MULTILINE)
_OUTSIDE = re.compile(r"^(?!  |$)", re.MULTILINE)
"""A line that is not indented belongs to no section."""
_REACHES_FURTHER = re.compile(r"[&*]")
"""An anchor in one section may be named in another."""
_TARGETS = re.compile(r"models\.([^.]+)\.targets")


@dataclass(frozen=True)
class Settings:
    """Settings that were read; None, or empty, if the file does not have them. `values` are whole texts by
    `section.key`."""

    backbone: str | None = None
    model: str | None = None
    seed: int | None = None
    values: Mapping[str, str] = field(default_factory=dict[str, str])


def read_settings(text: str) -> Settings:
    """The settings in a resolved configuration; of one that cannot be read there are none."""
    text = without_marks(text)
    try:
        root, flat = _read_by_section(text) or _read(text)
        backbone, model, seed = root.get("backbone"), (root.get("model") or {}).get("path"), root.get("seed")
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return Settings()
    return Settings(
        plain_text(backbone) if isinstance(backbone, str) else None,
        plain_text(model) if isinstance(model, str) else None,
        seed if type(seed) is int and abs(seed) < 2**53 else None,
        dict(islice(flat.items(), _MOST_KEYS)),
    )


def _read(text: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The configuration, and its settings by `section.key`."""
    require_small(text)
    root = yaml.load(text, FastPlainLoader)[_HEAD[:-2]]
    return root, dict(_flat(root, ""))


def _read_by_section(text: str) -> tuple[Mapping[str, Any], Mapping[str, str]] | None:
    """The same, where runs have most of their sections in common: each text of one is read once.

    None where the text is not laid out as `astune.config.dump` does, so that it has to be read as a whole.
    """
    if not text.startswith(_HEAD) or _REACHES_FURTHER.search(text) or _OUTSIDE.search(text, len(_HEAD)):
        return None
    root: dict[str, Any] = {}
    flat: dict[str, str] = {}
    try:
        for section in _SECTION_BEGINS.split(text)[1:]:
            one, values = _section(section)
            root |= one
            flat |= values
    except (yaml.YAMLError, TypeError):  # a line inside a value that looks like the start of a section
        return None
    return root, flat


@lru_cache(_KEPT_SECTIONS)
def _section(text: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    return _read(f"{_HEAD}{text}")


def policies_of(settings: Settings) -> dict[str, str]:
    """The policy of each target, where a run has several; empty in a run of one.

    models.wolf.targets ["werewolf"], models.village.targets []   gives   werewolf: wolf, village: village
    """
    found: dict[str, str] = {}
    for key, text in settings.values.items():
        if (named := _TARGETS.fullmatch(key)) is None:
            continue
        targets = orjson.loads(text) if text.startswith("[") else []
        found |= dict.fromkeys(map(str, targets or [named[1]]), named[1])
    return found


def changed(settings: Settings) -> list[tuple[str, str, str | None]]:
    """Return the settings that are not this version's defaults: key, value, and default; None where a key has none.

    lr 1, seed 0, params.x 2, where lr is 1 and seed 7 by default   gives   (seed, 0, 7), (params.x, 2, None)
    """
    default = _defaults()
    return [
        (key, _shown(value), _shown(default[key]) if key in default else None)
        for key, value in settings.values.items()
        if default.get(key) != value and key not in _OF_THE_RUN
    ]


@lru_cache(1)
def _defaults() -> Mapping[str, str]:
    from astune.config import AstuneConfig, dump

    return read_settings(dump(AstuneConfig())).values


def differing(runs: Sequence[Settings]) -> list[dict[str, str]]:
    """Return, for each run, the settings in which at least two of the runs that have them differ.

    [lr 1, seed 1, x 1], [lr 2, seed 1], [lr 1, seed 1]   gives   [lr 1], [lr 2], [lr 1]
    """
    seen: dict[str, set[str]] = {}
    for run in runs:
        for key, value in run.values.items():
            seen.setdefault(key, set()).add(value)
    keys = {key for key, values in seen.items() if len(values) > 1 and key not in _OWN_COLUMNS}
    return [{key: _shown(value) for key, value in run.values.items() if key in keys} for run in runs]


def _flat(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        at = plain_text(f"{path}{key}")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}.")
        else:
            yield at, _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return plain_text(value)
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (orjson.JSONEncodeError, TypeError):  # a number with thousands of digits
        return "?"


def _shown(value: str) -> str:
    """A long value is cut, and ends with a digest of its whole, so that values that differ are shown as different."""
    if len(value) <= _CHARACTERS:
        return value
    end = f"… #{sha256(value.encode()).hexdigest()[:8]}"
    return value[: _CHARACTERS - len(end)] + end


def together(infos: Iterable[dict[str, Any]], settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """Each run's entry of the list with the settings in which it differs from others."""
    return [info | {"settings": own} for info, own in zip(infos, differing(settings), strict=True)]
