"""Documents as Markdown, whatever they were written as; what cannot be read is named."""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.schema import TaskReaderError, install_extra

PLAIN = frozenset({".md", ".markdown", ".txt", ".text", ".rst", ".adoc", ".org", ".tex"})
CONVERTED = frozenset({".html", ".htm", ".xhtml", ".pdf", ".docx", ".pptx", ".xlsx", ".epub"})
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WESTERN = "cp1252"
_FOREIGN_TO_WESTERN = re.compile(
    r"[ŠŽšžÐÝÞðýþŸ]|[À-ÿ]{3}|[a-z](?![´·\u00ad])[\u00a1-\u00bf‚ƒ„†‡ˆ‰‹•˜›][a-z]", re.IGNORECASE
)
"""Signs of another encoding in text that is read as cp1252: letters of Central Europe, Turkey or the Baltic, words
without a letter of ASCII, and symbols within words."""
_LETTERS_A_MARKED_ONE = 12
"""Fewest letters for each one with an accent in a text that counts as Western."""
_ZIPPED = frozenset({".docx", ".pptx", ".xlsx", ".epub"})
_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one file as Markdown; `name` is its path below what was named."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was left out, and why."""

    name: str
    reason: str


class _Unreadable(Exception):
    """The reason, in words."""


def read_documents(paths: Sequence[Path]) -> tuple[list[Document], list[Unread]]:
    """Read the files, and those below the folders, in order of their names. Raises TaskReaderError if one of the paths
    is not there, or nothing in them can be read."""
    documents: list[Document] = []
    unread: list[Unread] = []
    known: dict[str, str] = {}
    for path, name in _files(paths):
        try:
            text = _text_of(path)
        except _Unreadable as reason:
            unread.append(Unread(name, str(reason)))
            continue
        twin = known.setdefault(hashlib.sha256(text.encode()).hexdigest(), name)
        if twin != name:
            unread.append(Unread(name, f"the same as {twin}"))
        else:
            documents.append(Document(name, text))
    if not documents:
        named = "; ".join(f"{each.name}: {each.reason}" for each in unread[:3]) or "there is no file"
        raise TaskReaderError(
            f"nothing can be read in {', '.join(map(str, paths)) or 'no documents'} ({named})",
            hint=f"name text, Markdown, {', '.join(sorted(CONVERTED))} files, or folders of them",
        )
    return documents, unread


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Each file once, with a name that differs from all others."""
    seen: set[Path] = set()
    names: set[str] = set()
    for given in paths:
        root = given.expanduser()
        if not root.exists():
            raise TaskReaderError(f"there is no file or folder {given}", hint="name documents, or folders of them")
        inside = sorted(_below(root)) if root.is_dir() else [root]
        for path in inside:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            name = name if name not in names else str(path)
            name = name.encode("utf-8", "backslashreplace").decode()  # a name may be in another encoding
            names.add(name)
            yield path, name


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        yield from (Path(folder, name) for name in files if not name.startswith("."))


def _text_of(path: Path) -> str:
    suffix = path.suffix.lower()
    if not path.is_file():
        raise _Unreadable("is no regular file")
    if suffix not in PLAIN and suffix not in CONVERTED:
        raise _Unreadable(f"{suffix or 'a file without a suffix'} is no format that is read")
    if path.stat().st_size > _LARGEST:
        raise _Unreadable(f"is larger than {_LARGEST >> 20} MiB")
    try:
        text = decoded(path.read_bytes()) if suffix in PLAIN else _converted(path)
    except OSError as cause:
        raise _Unreadable(cause.strerror or str(cause)) from cause
    if not text.strip():
        raise _Unreadable("holds no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(content: bytes) -> str:
    """The text of a file: by its byte order mark, as UTF-8, as cp1252 if it looks Western, or by a guess.

    A guess needs much text: of `fee is €25` it makes Ć25.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding, errors="replace")
    if b"\0" in content:
        raise _Unreadable("is no text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        western = _western(content)
        if western is not None:
            return western
        from charset_normalizer import from_bytes

        likeliest = from_bytes(content).best()
        if likeliest is None:
            raise _Unreadable("has no encoding that is known") from None
        return str(likeliest)


def _western(content: bytes) -> str | None:
    """The text as cp1252, if nearly all of its letters are ASCII and the others are those of Western languages."""
    try:
        text = content.decode(_WESTERN)
    except UnicodeDecodeError:
        return None
    letters = [letter for letter in text if letter.isalpha()]
    marked = sum(not letter.isascii() for letter in letters)
    if marked > 1 + len(letters) / _LETTERS_A_MARKED_ONE or _FOREIGN_TO_WESTERN.search(text):
        return None
    return text


def _converted(path: Path) -> str:
    if importlib.util.find_spec("markitdown") is None:
        raise _Unreadable(f"needs an extra: {install_extra('documents')}")
    if not _is_of_its_format(path):  # else it would be read as if it were plain text
        raise _Unreadable(f"is no whole {path.suffix} file")
    from markitdown import MarkItDown  # pyright: ignore[reportMissingImports]

    converter: Any = MarkItDown(enable_plugins=False)
    try:
        return str(converter.convert_local(str(path)).text_content)
    except Exception as cause:  # each format has a library of its own, with errors of its own
        raise _Unreadable(f"cannot be converted: {type(cause).__name__}: {str(cause)[:200]}") from cause


def _is_of_its_format(path: Path) -> bool:
    if path.suffix.lower() in _ZIPPED:
        return zipfile.is_zipfile(path)
    return path.suffix.lower() != ".pdf" or path.read_bytes()[:1024].find(b"%PDF-") >= 0
