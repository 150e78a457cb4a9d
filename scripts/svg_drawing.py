"""A drawing of boxes, lines and text as SVG: it fetches nothing, and looks the same on a light and a dark page.

Its text is monospaced, so that how wide it gets is known here. What text says is never trusted: whatever XML does not
allow, or a terminal would obey, is shown as a replacement character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

WIDTH = 900
MARGIN = 16
SIZE = 12
"""Pixels of ordinary text."""
TOP = MARGIN + 24
"""Vertical position of what follows a picture's title."""
BOX = 24
"""The height of a box that holds text."""
BASELINE = 15
"""Baseline of that text, below the box's top."""
INK, FAINT, CAUSE = "#1f2328", "#57606a", "#a40e26"

_PAPER, _FRAME = "#ffffff", "#d0d7de"
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_CELL = 0.61
"""Width of a character, as a part of the font's size, in the widest of these fonts."""
_LINE = 20
_SWATCH = 22

Anchor = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a box: a colour, and a mark for those who do not see it: a bar along the bottom, or slanted lines."""

    fill: str
    edge: str
    bar: bool = False
    lines: int | None = None
    """The angle of the lines in degrees."""


READ = Look("#fff4cc", "#9a6700")
SAMPLED = Look("#b6d8ff", "#0550ae", bar=True)
MASKED = tuple(Look("#e4f0ff", "#0550ae", lines=angle) for angle in (45, 135, 90, 0))
PLAIN = Look("#f6f8fa", "#57606a")
SHARED = Look("#c9e8d0", "#116329", bar=True)


class Drawing:
    """Elements are added from the top down; `svg` cuts the paper behind the last of them."""

    def __init__(self, title: str) -> None:
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        ElementTree.SubElement(self._root, "title").text = printable(title)
        self._defs = ElementTree.SubElement(self._root, "defs")
        self._paper = self._add("rect", x=0.5, y=0.5, width=WIDTH - 1, rx=6, fill=_PAPER, stroke=_FRAME)
        self._patterns: set[str] = set()
        self._bottom = float(MARGIN)
        self.text(MARGIN, MARGIN + SIZE, title, bold=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        room: float = WIDTH,
        colour: str = INK,
        bold: bool = False,
        anchor: Anchor = "start",
    ) -> None:
        """Draw a line of text on the baseline `y`, cut to `room` pixels and to the paper."""
        room = min(room, (WIDTH - MARGIN - x) if anchor == "start" else (x - MARGIN))
        style = {"font_family": _FONT, "font_size": SIZE, "text_anchor": anchor, "fill": colour}
        if bold:
            style["font_weight"] = "bold"
        self._add("text", x=x, y=y, **style).text = fitted(text, room)
        self._bottom = max(self._bottom, y + SIZE / 3)

    def box(self, x: float, y: float, width: float, height: float, look: Look, kind: str, hover: str = "") -> None:
        fill = look.fill if look.lines is None else self._pattern(look)
        stroke = {"fill": fill, "stroke": look.edge}
        rect = self._add("rect", **{"class": kind}, x=x, y=y, width=width, height=height, **stroke)
        if hover:
            ElementTree.SubElement(rect, "title").text = printable(hover)
        if look.bar:
            self._add("rect", x=x, y=y + height - 4, width=width, height=4, fill=look.edge)
        self._bottom = max(self._bottom, y + height)

    def label(self, x: float, y: float, width: float, *texts: str) -> bool:
        """Draw the first of the texts that fits into a box; return False if none does."""
        for text in texts:
            if text_width(text) + 8 <= width:
                self.text(x + 4, y + BASELINE, text)
                return True
        return False

    def line(self, *points: tuple[float, float], colour: str = FAINT, dashed: bool = False) -> None:
        """Through all the points."""
        path = {"stroke_dasharray": "2 3"} if dashed else {}
        joined = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._add("polyline", points=joined, fill="none", stroke=colour, stroke_width=1.5, **path)

    def legend(self, y: float, entries: Iterable[tuple[Look, str]]) -> float:
        """Explain the looks, from left to right and on as many lines as it needs; return where it ends."""
        x = float(MARGIN)
        for look, meaning in entries:
            width = _SWATCH + 6 + text_width(meaning)
            if x > MARGIN and x + width > WIDTH - MARGIN:
                x, y = float(MARGIN), y + _LINE
            self.box(x, y, _SWATCH, SIZE + 2, look, "legend")
            self.text(x + _SWATCH + 6, y + SIZE - 1, meaning, colour=FAINT)
            x += width + 18
        return y + _LINE

    def svg(self) -> str:
        height = round(self._bottom + MARGIN)
        size = {"width": str(WIDTH), "height": str(height), "viewBox": f"0 0 {WIDTH} {height}"}
        self._root.attrib.update(size)
        self._paper.set("height", str(height - 1))
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _pattern(self, look: Look) -> str:
        name = f"lines-{look.lines}"
        if name not in self._patterns:
            self._patterns.add(name)
            turned = {"patternUnits": "userSpaceOnUse", "patternTransform": f"rotate({look.lines})"}
            pattern = ElementTree.SubElement(self._defs, "pattern", {"id": name, "width": "7", "height": "7", **turned})
            ElementTree.SubElement(pattern, "rect", {"width": "7", "height": "7", "fill": look.fill})
            ElementTree.SubElement(pattern, "rect", {"width": "2", "height": "7", "fill": "#b3d3f5"})
        return f"url(#{name})"

    def _add(self, tag: str, **attributes: str | float) -> ElementTree.Element:
        named = {key.replace("_", "-"): _number(value) for key, value in attributes.items()}
        return ElementTree.SubElement(self._root, tag, named)


def text_width(text: str) -> float:
    return cells(text) * SIZE * _CELL


def cells(text: str) -> int:
    """Columns of a monospaced font that a text takes."""
    return sum(_cells_of(character) for character in printable(text))


def fitted(text: str, room: float) -> str:
    """The text, or as much of its beginning as fits, with a mark that more follows."""
    text = printable(text)
    free = int(room / (SIZE * _CELL) + 1e-6)
    if cells(text) <= free:
        return text
    kept: list[str] = []
    for character in text:
        free -= _cells_of(character)
        if free < 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def printable(text: str) -> str:
    """On one line, with whatever cannot be drawn shown as a replacement character."""
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
