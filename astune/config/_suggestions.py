"""Suggestions for a class name that could not be resolved; only classes that import successfully are suggested.

Files are first searched as text for classes that derive from the wanted one; only a few of them are then imported.
"""

from __future__ import annotations

import ast
import difflib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_FILES = 400
_MAX_DEPTH = 3
_MAX_IMPORTED = 4
_SIMILAR = 0.6
_FOREIGN = {"site-packages", "node_modules", "__pycache__", "tests"}


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or one file to search. Results are named as modules below `prefix`, or by their path if that is None."""

    folder: Path
    prefix: str | None = ""


def suggestion(
    name: str, location: str, places: Sequence[Place], base: type, loads: Callable[[str], object | None]
) -> str:
    """Return a hint with the class of that name or a similar one, else with a few that fit; empty if there is none.

    Args:
        name, location: what was written on both sides of the arrow.
        loads: imports a reference; returns None where that fails.
    """
    found = list(dict.fromkeys(reference for place in places for reference in _references(place, base)))

    def likeness(reference: str) -> tuple[float, float]:
        there, _, its_name = reference.partition("->")
        of_name = _alike(its_name, name)
        return (of_name if of_name >= _SIMILAR else 0.0, _alike(there, location))

    found.sort(key=likeness, reverse=True)
    fitting: list[str] = []
    for reference in found[:_MAX_IMPORTED]:
        if loads(reference) is None:
            continue
        if likeness(reference)[0]:
            return f"did you mean {reference}?"
        fitting.append(reference)
    return f"available: {', '.join(fitting)}" if fitting else ""


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _references(place: Place, base: type) -> Iterator[str]:
    names = _with_subclasses(base)
    for path in _python_files(place.folder):
        for name in _classes_deriving_from(names, path):
            yield f"{_called(path, place)}->{name}"


def _called(path: Path, place: Place) -> str:
    if place.prefix is None:
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    if path == place.folder:
        return place.prefix
    parts = path.relative_to(place.folder).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join([*([place.prefix] if place.prefix else []), *parts])


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the folder's Python files, nearest first and up to a limit, or the file itself."""
    if folder.is_file():
        yield folder
        return
    level, seen = [folder], 0
    for _ in range(_MAX_DEPTH):
        below: list[Path] = []
        for each in level:
            entries = sorted(each.iterdir()) if os.access(each, os.R_OK | os.X_OK) else []
            for path in entries:
                if path.suffix == ".py" and path.is_file():
                    yield path
                    seen += 1
                elif path.is_dir() and path.name not in _FOREIGN and path.name.isidentifier():
                    below.append(path)
                if seen >= _MAX_FILES:
                    return
        level = below


def _with_subclasses(base: type) -> set[str]:
    return {base.__name__}.union(*(_with_subclasses(each) for each in base.__subclasses__()))


def _classes_deriving_from(names: set[str], path: Path) -> list[str]:
    """Return the top-level classes of the file with a base of such a name, directly or through another class of the
    file."""
    try:
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in names):
            return []
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):  # unreadable files are not suggested
        return []
    found: list[str] = []
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            bases = {ast.unparse(each).rpartition(".")[2] for each in statement.bases}
            if bases & (names | set(found)):
                found.append(statement.name)
    return found
