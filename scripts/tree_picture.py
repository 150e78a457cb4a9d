"""A picture of a prefix tree, as SVG: what a trainer computes once for all timelines that begin with it.

The tree comes from whoever computes it; here it is only drawn and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from svg_drawing import BASELINE, BOX, FAINT, MARGIN, PLAIN, SHARED, SIZE, TOP, WIDTH, Drawing, text_width

_ROW = BOX + 10
_BEHIND = 240.0
"""Pixels behind the longest timeline."""


class Segment(Protocol):
    """An edge of the tree: `length` tokens at the positions from `depth` on of its timelines. In the tree's layout they
    lie from `start` on. `parent` is the number of the segment that they follow. The trainer's segments are ones."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def parent(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A timeline: where each of its tokens lies in the tree's layout."""

    name: str
    places: Sequence[int]

    def passes(self, segment: Segment) -> bool:
        return len(self.places) > segment.depth and self.places[segment.depth] == segment.start

    def ends_in(self, segment: Segment) -> bool:
        return self.passes(segment) and len(self.places) == segment.depth + segment.length


def tree_svg(segments: Sequence[Segment], rows: Sequence[NamedRow], call_lengths: Sequence[int]) -> str:
    """Each segment once, to scale from left to right, and how many tokens are computed in this and in other ways.

    Args:
        segments: in depth-first order.
        call_lengths: the tokens of each trained call, prompt and answer, for a comparison.
    """
    in_tree, packed = sum(segment.length for segment in segments), sum(len(row.places) for row in rows)
    drawing = Drawing(f"{len(rows)} timelines of {packed:,} tokens as a tree of {in_tree:,}")
    entries = [(SHARED, "begins n timelines (×n), computed once"), (PLAIN, "in one timeline only")]
    y = drawing.legend(TOP, entries) + 8
    lines = _lines(segments)
    y = _draw(drawing, segments, rows, lines, y) + 16
    padded = len(call_lengths) * max(call_lengths, default=0)
    counts = {
        f"{len(call_lengths)} calls, each a sample, padded to the longest": padded,
        f"{len(rows)} timelines, one after another": packed,
        "the tree": in_tree,
    }
    _compare(drawing, counts, y)
    return drawing.svg()


def _lines(segments: Sequence[Segment]) -> list[int]:
    """The line on which each segment is drawn: a first child follows where its parent ends, others begin a line."""
    lines: list[int] = []
    parents: set[int] = set()
    n_lines = 0
    for segment in segments:
        if segment.parent is None or segment.parent in parents:
            lines.append(n_lines)
            n_lines += 1
        else:
            lines.append(lines[segment.parent])
            parents.add(segment.parent)
    return lines


def _draw(
    drawing: Drawing, segments: Sequence[Segment], rows: Sequence[NamedRow], lines: Sequence[int], top: float
) -> float:
    scale = (WIDTH - 2 * MARGIN - _BEHIND) / max([1, *(segment.depth + segment.length for segment in segments)])
    tails = [_Tail() for _ in range(max(lines, default=-1) + 1)]
    for segment, line in zip(segments, lines, strict=True):
        x, y, width = MARGIN + segment.depth * scale, top + line * _ROW, segment.length * scale
        n_rows = sum(row.passes(segment) for row in rows)
        if segment.parent is not None and lines[segment.parent] != line:
            drawing.line((x, top + lines[segment.parent] * _ROW + BOX), (x, y))
        drawing.box(x, y, width, BOX, SHARED if n_rows > 1 else PLAIN, "segment")
        shared = f" ×{n_rows}" if n_rows > 1 else ""
        if not drawing.label(x, y, width, f"{segment.length} tokens{shared}", f"{segment.length}{shared}"):
            tails[line].counts.append(f"{segment.length}{shared}")
        tails[line].names += [row.name for row in rows if row.ends_in(segment)]
        tails[line].x = x + width + 8
    for line, tail in enumerate(tails):
        drawing.text(tail.x, top + line * _ROW + BASELINE, tail.text, colour=FAINT)
    return top + len(tails) * _ROW


@dataclass(slots=True)
class _Tail:
    """The end of a line: the counts that found no room in their boxes, and the timelines that end there."""

    x: float = 0.0
    counts: list[str] = field(default_factory=list[str])
    names: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        names = f"timeline{'s' if len(self.names) > 1 else ''} {', '.join(self.names)}" if self.names else ""
        return ": ".join(part for part in (", ".join(self.counts), names) if part)


def _compare(drawing: Drawing, counts: dict[str, int], y: float) -> None:
    """The counts as bars to one scale."""
    most, left = max([1, *counts.values()]), max(map(text_width, counts)) + MARGIN + 12
    room = WIDTH - MARGIN - left - max(text_width(f"{count:,} tokens") for count in counts.values()) - 8
    for name, count in counts.items():
        drawing.text(MARGIN, y + SIZE, name)
        drawing.box(left, y + 1, count / most * room, SIZE + 2, PLAIN, "count")
        drawing.text(left + count / most * room + 8, y + SIZE, f"{count:,} tokens")
        y += SIZE + 12
