"""Documents cut into passages: at headings and sentence borders; tables and code stay whole where they fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from astune.data_generator.documents import Document

Count = Callable[[str], int]
"""Count the tokens of a text."""

_HEADING = re.compile(r"(#{1,6})\s+(\S.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_SHORT_FORMS = (
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bFig)(?<!\bNo)(?<!\b[A-Z])"
)
_SENTENCE_END = re.compile(rf"{_SHORT_FORMS}(?<=[.!?])[\"')\]]?\s+|(?<=[。！？])")
_FEWEST_WORDS = 12
"""A passage with fewer says nothing to ask about."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document, below the headings that lead to it."""

    document: str
    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Block:
    """A heading, a paragraph, a table or a piece of code; `level` is a heading's, and 0 for all others."""

    text: str
    level: int = 0
    whole: bool = False


def passages_of(document: Document, tokens: int, count: Count) -> list[Passage]:
    """The document's passages in order, each with at most about `tokens` tokens."""
    made: list[Passage] = []
    path: list[tuple[int, str]] = []
    held: list[str] = []
    held_tokens = 0
    begins: tuple[str, ...] = ()

    def flush() -> None:
        nonlocal held, held_tokens
        text = "\n\n".join(held)
        if len(re.findall(r"\w+", text)) >= _FEWEST_WORDS or len(text) >= 20 * _FEWEST_WORDS:
            made.append(Passage(document.name, begins, text))
        held, held_tokens = [], 0

    for block in _blocks(document.text):
        if block.level:
            if held_tokens * 2 >= tokens or (path and block.level <= path[0][0]):
                flush()
            path = [each for each in path if each[0] < block.level] + [(block.level, block.text)]
        shown = f"{'#' * block.level} {block.text}" if block.level else block.text
        for piece in _pieces(_Block(shown, whole=block.whole), tokens, count):
            size = count(piece)
            if held and held_tokens + size > tokens:
                flush()
            if not held:
                begins = tuple(title for _, title in path)
            held.append(piece)
            held_tokens += size
    flush()
    return made


def _blocks(text: str) -> Iterator[_Block]:
    lines: list[str] = []
    fence = ""

    def paragraph() -> Iterator[_Block]:
        if lines:
            yield _Block("\n".join(lines).strip("\n"), whole=lines[0].lstrip().startswith(("|", "```", "~~~")))
            lines.clear()

    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            lines.append(line)
            if mark and mark[1] == fence:
                fence = ""
                yield from paragraph()
        elif mark:
            yield from paragraph()
            fence = mark[1]
            lines.append(line)
        elif heading := _HEADING.match(line):
            yield from paragraph()
            title = heading[2].rstrip()
            yield _Block(title.rstrip("#").rstrip() or title, level=len(heading[1]))
        elif not line.strip():
            yield from paragraph()
        else:
            lines.append(line)
    yield from paragraph()


def _pieces(block: _Block, tokens: int, count: Count) -> Iterator[str]:
    """The block, or what it is cut into where it is too long: rows under the table's head, lines, sentences, words."""
    if count(block.text) <= tokens:
        yield block.text
        return
    lines = block.text.split("\n")
    if block.whole:
        head = lines[:2] if lines[0].lstrip().startswith("|") and len(lines) > 2 else []
        head = head if 2 * count("\n".join(head)) <= tokens else []
        yield from _packed(lines[len(head) :], "\n", tokens, count, head="\n".join([*head, ""]))
        return
    sentences = [each for each in _SENTENCE_END.split(block.text) if each and each.strip()]
    yield from _packed(sentences, " ", tokens, count)


def _packed(parts: list[str], between: str, tokens: int, count: Count, head: str = "") -> Iterator[str]:
    """The parts joined, as many as fit; one that is too long by itself is cut between words, or within one."""
    held: list[str] = []
    for part in parts:
        if held and count(head + between.join([*held, part])) > tokens:
            yield head + between.join(held)
            held = []
        if count(head + part) > tokens:
            yield from (head + piece for piece in _cut(part, tokens, count))
        else:
            held.append(part)
    if held:
        yield head + between.join(held)


def _cut(text: str, tokens: int, count: Count) -> Iterator[str]:
    """Pieces of a text that is too long, with about as many tokens: of its words, or of the letters of one word."""
    words = text.split(" ")
    parts, between = (words, " ") if len(words) > 1 else (text, "")
    step = max(1, len(parts) * tokens // max(1, count(text)))
    for at in range(0, len(parts), step):
        piece = between.join(parts[at : at + step])
        yield from _cut(piece, tokens, count) if len(piece) > 1 and count(piece) > 2 * tokens else [piece]
