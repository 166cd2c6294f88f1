"""Line charts in SVG; the style sheet of the page has the colors."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WIDTH, HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 30, 34, 30
_TICKS = 5
_NICE = (1, 2, 5, 10)


@attrs.frozen
class ChartLine:
    """One line of a chart.

    Args:
        name: for the legend.
        points: x and y, with x rising.
    """

    name: str
    points: Sequence[tuple[float, float]]


@attrs.frozen
class ChartAxis:
    """One axis of a chart.

    Args:
        label: formats a value.
        ticks: marked values, increasing; the axis begins at the first.
    """

    label: Callable[[float], str]
    ticks: Sequence[float]
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value, from 0 to 1; values beyond an end are moved to it."""
        low, high, value = self.ticks[0], self.end, max(self.ticks[0], min(value, self.end))
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


def linear_axis(largest: float, label: Callable[[float], str], *, tight: bool = False) -> ChartAxis:
    """Return an axis from 0 to `largest` or, unless `tight`, to the next of about five round ticks."""
    step = _nice_step((largest or 1) / _TICKS)
    count = math.ceil(round((largest or 1) / step, 6))
    ticks = [number * step for number in range(count + 1)]
    if tight:
        return ChartAxis(label, [tick for tick in ticks if tick <= largest], largest)
    return ChartAxis(label, ticks, ticks[-1])


def log_axis(smallest: float, largest: float, label: Callable[[float], str]) -> ChartAxis:
    """Return an axis of powers of ten that includes `smallest`, more than 0, and `largest`."""
    first, last = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    ticks = [10.0**power for power in range(first, max(last, first + 1) + 1)]
    return ChartAxis(label, ticks, ticks[-1], is_log=True)


def chart(title: str, x: ChartAxis, y: ChartAxis, lines: Sequence[ChartLine]) -> str:
    """Draw at most four lines, for as many colors, as an ``svg`` element."""
    parts = (*_grid(x, y), *_legend(lines), *_paths(x, y, lines))
    name = escape(title)
    heading = f'<text class="heading" x="0" y="16">{name}</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{heading}{''.join(parts)}</svg>"
    )


def _grid(x: ChartAxis, y: ChartAxis) -> Iterator[str]:
    for tick in y.ticks:
        height = _y(y, tick)
        yield f'<path class="grid" d="M{_LEFT} {height}H{WIDTH - _RIGHT}"/>'
        yield f'<text class="right" x="{_LEFT - 8}" y="{height + 4}">{escape(y.label(tick))}</text>'
    for tick in x.ticks:
        place = _x(x, tick)
        yield f'<path class="grid" d="M{place} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        yield f'<text class="middle" x="{place}" y="{HEIGHT - _BOTTOM + 18}">{escape(x.label(tick))}</text>'


def _legend(lines: Sequence[ChartLine]) -> Iterator[str]:
    for number, line in enumerate(reversed(lines)):
        right = WIDTH - _RIGHT - number * 110
        color = f"line{len(lines) - 1 - number}"
        yield f'<path class="{color}" d="M{right - 100} 12h18"/>'
        yield f'<text x="{right - 76}" y="16">{escape(line.name)}</text>'


def _paths(x: ChartAxis, y: ChartAxis, lines: Sequence[ChartLine]) -> Iterator[str]:
    for number, line in enumerate(lines):
        places = " ".join(f"{_x(x, across)} {_y(y, up)}" for across, up in line.points)
        if places:
            yield f'<path class="line{number}" d="M{places}h0"/>'


def _x(axis: ChartAxis, value: float) -> float:
    return round(_LEFT + axis.place(value) * (WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: ChartAxis, value: float) -> float:
    return round(HEIGHT - _BOTTOM - axis.place(value) * (HEIGHT - _TOP - _BOTTOM), 1)


def _nice_step(least: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(nice * power for nice in _NICE if nice * power >= least * (1 - 1e-9))
