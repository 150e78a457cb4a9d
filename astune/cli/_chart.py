"""A line chart in characters: curves in braille dots, measured points as marks, in plain ASCII where it must be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from rich.text import Text

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of the dot in each of a cell's four rows and two columns."""
_LABEL_WIDTH = 5
"""The least, so that charts of shares begin in one column."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) by rising x; NaN is left out. `joined` draws a curve through them, else each is a mark."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    joined: bool = True

    @property
    def finite(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


def draw_chart(series: Sequence[Series], *, width: int, height: int = 12, ascii_only: bool = False) -> Text:
    """The chart as lines of at most `width` characters; y runs from 0 to 1, widened where a value lies outside.

    Empty where there is no point, or no room for a chart.
    """
    points = [point for each in series for point in each.finite]
    if not points or height < 2:
        return Text()
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = min(0.0, *(y for _, y in points)), max(1.0, *(y for _, y in points))
    labels = {row: _label(y) for row, y in ((0, y_high), (height // 2, (y_high + y_low) / 2), (height - 1, y_low))}
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    if columns < 8:
        return Text()

    def place(point: tuple[float, float]) -> tuple[int, int]:
        """The dot of a point, counted from the upper left corner."""
        across = (point[0] - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        down = (y_high - point[1]) / (y_high - y_low)
        return round(across * (columns * 2 - 1)), round(down * (height * 4 - 1))

    bits = [[0] * columns for _ in range(height)]
    cells: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(height)]
    for each in series:
        dots = [place(point) for point in each.finite]
        if each.joined:
            for x, y in _dots_between(dots):
                row, column = y // 4, x // 2
                bits[row][column] |= _DOTS[y % 4][x % 2]
                cells[row][column] = ("*" if ascii_only else chr(_BRAILLE + bits[row][column]), each.style)
    for each in series:
        if not each.joined:
            for x, y in map(place, each.finite):
                cells[y // 4][x // 2] = ("o" if ascii_only else "●", f"bold {each.style}")

    wall, corner, floor = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    chart = Text(no_wrap=True)
    for row, line in enumerate(cells):
        chart.append(labels.get(row, "").rjust(margin), style="dim")
        chart.append(f" {wall}", style="dim")
        for style, run in groupby(line, key=itemgetter(1)):
            chart.append("".join(character for character, _ in run), style=style)
        chart.append("\n")
    chart.append(f"{' ' * margin} {corner}{floor * columns}\n", style="dim")
    first, last = f"{x_low:g}", f"{x_high:g}"
    middle = "step"
    gap = columns - len(first) - len(last) - len(middle)
    chart.append(" " * (margin + 2) + first, style="dim")
    if gap >= 2:
        chart.append(" " * (gap // 2) + middle + " " * (gap - gap // 2) + last, style="dim")
    chart.append("\n" + " " * (margin + 2))
    for each in series:
        if each.finite:
            mark = ("*" if ascii_only else "━") if each.joined else ("o" if ascii_only else "●")
            chart.append(f"{mark} {each.name}  ", style=each.style)
    return chart


def _label(value: float) -> str:
    """Two digits behind the point; what rounds to zero has no sign."""
    return f"{round(value, 2) + 0.0:{_LABEL_WIDTH}.2f}"


def _dots_between(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Every dot of the straight lines through `dots`."""
    yield from dots[:1]
    for (x0, y0), (x1, y1) in pairwise(dots):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for index in range(1, length + 1):
            yield round(x0 + (x1 - x0) * index / length), round(y0 + (y1 - y0) * index / length)
