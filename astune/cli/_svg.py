"""Curves as SVG that stands in a page: lines, points and bands over steps, with axes at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

WIDTH, HEIGHT = 460, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 10, 24
_DOTS_UP_TO = 60
_ROUNDING = 1e-9
"""Part of a step that a sum of rewards may miss a round number by."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve, ascending in x; `band` has the same x with its lower and upper end. `style` is a class of the page's."""

    label: str
    style: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()


def svg_chart(title: str, lines: Sequence[Line], *, from_zero: bool) -> str:
    """The picture, with a gap where a point is not finite; empty where none is."""
    points = [point for each in lines for point in each.points if math.isfinite(point[1])]
    if not points:
        return ""
    ends = [end for each in lines for _, *pair in each.band for end in pair]
    x_ticks = _ticks([x for x, _ in points], whole=True)
    y_ticks = _ticks([*(y for _, y in points), *ends, *([0.0] if from_zero else [])], whole=False)
    place = _Place(_span([x for x, _ in points]), (y_ticks[0], y_ticks[-1]))
    labels = ", ".join(each.label for each in lines)
    return "".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}: {labels}")}">',
            *_axes(place, x_ticks, y_ticks),
            *(drawn for each in lines for drawn in _curve(each, place)),
            "</svg>",
        ]
    )


def shown(value: float) -> str:
    """Four significant digits."""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


class _Place:
    """Map a data point to its position on the page."""

    def __init__(self, x: Point, y: Point) -> None:
        self._x, self._y = x, y

    def x(self, value: float) -> float:
        return round(_LEFT + (value - self._x[0]) / (self._x[1] - self._x[0]) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        room = HEIGHT - _TOP - _BOTTOM
        return round(_TOP + room - (value - self._y[0]) / (self._y[1] - self._y[0]) * room, 1)


def _axes(place: _Place, xs: Sequence[float], ys: Sequence[float]) -> Iterable[str]:
    for y in ys:
        at = place.y(y)
        yield f'<path class="grid" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{shown(y)}</text>'
    for x in xs:
        if _LEFT <= (at := place.x(x)) <= WIDTH - _RIGHT + 1:
            yield f'<text x="{at}" y="{HEIGHT - 6}" text-anchor="middle">{shown(x)}</text>'


def _curve(line: Line, place: _Place) -> Iterable[str]:
    if line.band:
        way = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
        yield f'<path class="band {line.style}" d="{_path(way, place)}Z"/>'
    pieces = [list(piece) for known, piece in groupby(line.points, lambda point: math.isfinite(point[1])) if known]
    if way := "".join(_path(piece, place) for piece in pieces):
        yield f'<path class="line {line.style}" d="{way}"/>'
    for piece in pieces:
        for x, y in piece if len(line.points) <= _DOTS_UP_TO or len(piece) == 1 else ():
            yield (
                f'<circle class="{line.style}" cx="{place.x(x)}" cy="{place.y(y)}" r="3">'
                f"<title>{escape(line.label)}, step {shown(x)}: {shown(y)}</title></circle>"
            )


def _path(points: Sequence[Point], place: _Place) -> str:
    return "M" + "L".join(f"{place.x(x)} {place.y(y)}" for x, y in points)


def _span(values: Sequence[float]) -> Point:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _ticks(values: Sequence[float], *, whole: bool) -> list[float]:
    """Round numbers from below the smallest value to above the largest."""
    low, high = _span(values)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + _ROUNDING), math.ceil(high / step - _ROUNDING)
    return [n * step for n in range(first, last + 1)]
