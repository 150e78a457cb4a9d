"""Layout of a data set: which files hold which split of which subset, by the hub's conventions.

What the data set's card (`README.md`) declares under `configs` counts. Without it the names say it:

    main/train-00000-of-00001.parquet      subset main,    split train
    data/test-00000-of-00002.parquet       subset default, split test
    en/validation/0000.jsonl               subset en,      split validation
    dev.csv                                subset default, split dev
    gsm8k.parquet                          subset default, split train: no file of the subset names a split

Nothing is read but the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

import yaml

from astune.schema import TaskReaderError
from astune.task_reader.rows import FORMATS

Splits = dict[str, list[str]]
"""The names of the files of each split."""

DEFAULT_SUBSET = "default"
_MAIN_SUBSET = "main"
"""Usual name of the default subset, as in GSM8K."""
CARD = "README.md"
_MEANINGS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_MEANING_OF = {word: meaning for meaning, words in _MEANINGS.items() for word in words}
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"}
"""JSON files that describe a data set, and hold no rows."""


@dataclass(frozen=True)
class Layout:
    """The splits of each subset of the data set that errors call `title`."""

    title: str
    subsets: dict[str, Splits]

    @staticmethod
    def of(title: str, names: Iterable[str], card: str) -> Layout:
        """Derive the layout from the names of all files, with `/` between folders, and the card's text (may be empty).
        Raises TaskReaderError if no file is one that can be read."""
        data = sorted(name for name in names if _is_data(PurePosixPath(name)))
        if not data:
            raise TaskReaderError(
                f"{title} holds no data file", hint=f"expected {', '.join(FORMATS)}; convert it to one of them"
            )
        subsets = _declared(data, card) or _by_name(data)
        return Layout(title, {subset: _one_format_each(splits) for subset, splits in subsets.items()})

    def splits_of(self, subset: str | None) -> Splits:
        """The splits of one subset; None means the only one, or the one called `default` or `main`.

        Raises:
            TaskReaderError: there is no such subset, or None leaves a choice; names those that are there.
        """
        there = ", ".join(self.subsets)
        if subset is None:
            usual = list(self.subsets) if len(self.subsets) == 1 else [DEFAULT_SUBSET, _MAIN_SUBSET]
            found = next((name for name in usual if name in self.subsets), None)
            if found is None:
                raise TaskReaderError(
                    f"{self.title} has the subsets {there}", hint="set task_reader.huggingface.subset to one of them"
                )
            return self.subsets[found]
        if subset not in self.subsets:
            raise TaskReaderError(
                f"{self.title} has no subset {subset!r}; it has {there}",
                hint="set task_reader.huggingface.subset to one of them"
                + (", or to null" if len(self.subsets) == 1 else ""),
            )
        return self.subsets[subset]

    def files_of(self, subset: str | None, split: str, *, key: str) -> list[str]:
        """The names of a split's files. `validation` also finds a split called `dev`, where that is the only such one.

        Raises:
            TaskReaderError: there is no such subset or split; names those that are there, and the `key` to set.
        """
        splits = self.splits_of(subset)
        alike = [name for name in splits if _MEANING_OF.get(name, name) == _MEANING_OF.get(split, split)]
        if split not in splits and len(alike) != 1:
            where = f"{self.title}, subset {subset}," if subset is not None else self.title
            raise TaskReaderError(
                f"{where} has no split {split!r}; it has {', '.join(splits)}", hint=f"set {key} to one of them"
            )
        return splits[split if split in splits else alike[0]]


def _is_data(path: PurePosixPath) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return path.suffix in FORMATS and path.name not in _DESCRIPTIONS and not hidden


def _declared(data: list[str], card: str) -> dict[str, Splits]:
    """The subsets that the card's header declares, as far as their files are there."""
    header = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(?:\n|$)", card, re.DOTALL)
    try:
        declared = yaml.safe_load(header[1]) if header else None
    except yaml.YAMLError:
        return {}
    configs = declared.get("configs") if isinstance(declared, dict) else None
    subsets: dict[str, Splits] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict) and (splits := _declared_splits(data, config)):
            subsets[str(config.get("config_name", DEFAULT_SUBSET))] = splits
    return subsets


def _declared_splits(data: list[str], config: dict[str, Any]) -> Splits:
    """The splits of one subset: `data_files` is a pattern, a list of them, or patterns for each split."""
    folder = str(config.get("data_dir") or "").strip("/")
    below = [name for name in data if not folder or name.startswith(f"{folder}/")]
    patterns = config.get("data_files")
    if patterns is None:
        return _splits_by_name(below) if folder and below else {}
    entries = patterns if isinstance(patterns, list) else [patterns]
    splits: Splits = {}
    for entry in entries:
        if isinstance(entry, dict) and "split" not in entry:
            pairs = list(entry.items())
        elif isinstance(entry, dict):
            pairs = [(entry["split"], entry.get("path"))]
        else:
            pairs = [("train", entry)]
        for split, paths in pairs:
            for pattern in paths if isinstance(paths, list) else [paths]:
                splits.setdefault(str(split), []).extend(_matching(below, f"{folder}/{pattern}".lstrip("/")))
    return {split: names for split, names in splits.items() if names}


def _matching(data: list[str], pattern: str) -> list[str]:
    """Return the files that match a pattern; only `**` matches further folders."""
    deep = "**" in pattern
    pattern = pattern.replace("**/", "*")
    return [name for name in data if fnmatchcase(name, pattern) and (deep or name.count("/") == pattern.count("/"))]


def _by_name(data: list[str]) -> dict[str, Splits]:
    names: dict[str, list[str]] = {}
    for name in data:
        names.setdefault(_subset_named(PurePosixPath(name)), []).append(name)
    return {subset: _splits_by_name(files) for subset, files in names.items()}


def _subset_named(path: PurePosixPath) -> str:
    folders = [part for part in path.parts[:-1] if part.lower() not in _MEANING_OF]
    return "/".join(folders[1:] if folders[:1] == ["data"] else folders) or DEFAULT_SUBSET


def _splits_by_name(data: list[str]) -> Splits:
    """Files that name no split are `train` where no other one does, and are else left out, as on the hub."""
    splits: Splits = {}
    for name in data:
        split = _split_named(PurePosixPath(name))
        if split is not None:
            splits.setdefault(split, []).append(name)
    return splits or {"train": data}


def _split_named(path: PurePosixPath) -> str | None:
    shard = _SHARD.fullmatch(path.stem)
    if shard:
        return shard["split"]
    words = [*re.split(r"[^A-Za-z0-9]+", path.stem), *reversed(path.parts[:-1])]
    return next((word.lower() for word in words if word.lower() in _MEANING_OF), None)


def _one_format_each(splits: Splits) -> Splits:
    """Keep one format of a split: where there are several, they are copies of each other."""
    chosen: Splits = {}
    for split, names in splits.items():
        first = next(suffix for suffix in FORMATS if any(name.endswith(suffix) for name in names))
        chosen[split] = sorted({name for name in names if name.endswith(first)})
    return chosen
