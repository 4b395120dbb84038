"""Small charts as inline SVG: they scale with the page, need no script, and print.

Colours and sizes of text come from the page's style sheet, by class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 460
_ROW = 24
_LABEL = 168
_VALUE = 84
_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 40
_TICKS = 4
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a line chart."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    """The class of its stroke: `a` or `b`."""


def bars(rows: Sequence[tuple[str, float]], show: Format, marked: Sequence[float] = ()) -> str:
    """Horizontal bars.

    Args:
        rows: labels and values.
        show: how a value reads.
        marked: for each row the part of its value that is marked, if any is.
    """
    if not rows:
        return nothing()
    top = max(value for _, value in rows) or 1
    room = WIDTH - _LABEL - _VALUE
    parts = []
    for number, (label, value) in enumerate(rows):
        y = number * _ROW
        parts.append(_text(_LABEL - 8, y + 16, _shortened(label), "end", title=label))
        parts.append(_rect(_LABEL, y + 4, room * value / top, _ROW - 8, "a"))
        if number < len(marked) and marked[number]:
            parts.append(_rect(_LABEL, y + 4, room * marked[number] / top, _ROW - 8, "b"))
        parts.append(_text(_LABEL + room * value / top + 6, y + 16, show(value)))
    return _svg(len(rows) * _ROW, parts)


def histogram(values: Sequence[float], show: Format, unit: str, bins: int = 16) -> str:
    """How often values of each size occur.

    Args:
        values: at least zero each.
        show: how a value reads.
        unit: what is counted along the horizontal axis.
        bins: into how many classes at most; whole numbers get classes of whole numbers.
    """
    if not values:
        return nothing()
    low, high = math.floor(min(values)), math.ceil(max(values))
    width = max(1, math.ceil((high - low + 1) / bins))
    counts = [0] * (((high - low) // width) + 1)
    for value in values:
        counts[int((value - low) // width)] += 1
    top = max(counts)
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = plot_w / len(counts)
    parts = _vertical_axis(top, lambda n: f"{n:.0f}", whole=True)
    for number, count in enumerate(counts):
        height = plot_h * count / top
        parts.append(
            _rect(_LEFT + number * step + 1, _TOP + plot_h - height, step - 2, height, "a")
        )
        if number % max(1, len(counts) // 6) == 0:
            x = _LEFT + (number + 0.5) * step
            parts.append(_text(x, _HEIGHT - 24, show(low + number * width), "middle"))
    parts.append(_text(_LEFT + plot_w / 2, _HEIGHT - 6, unit, "middle", "unit"))
    return _svg(_HEIGHT, parts)


def lines(series: Sequence[Line], show: Format, unit: str) -> str:
    """Lines over a common horizontal axis that begins at zero."""
    points = [point for line in series for point in line.points]
    if len(points) < 2:
        return nothing()
    right = max(x for x, _ in points) or 1
    top = max(y for _, y in points) or 1
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = _vertical_axis(top, show)
    for tick in range(_TICKS + 1):
        x = _LEFT + plot_w * tick / _TICKS
        parts.append(_text(x, _HEIGHT - 24, f"{right * tick / _TICKS:.0f}", "middle"))
    for number, line in enumerate(series):
        path = " ".join(
            f"{_LEFT + plot_w * x / right:.1f},{_TOP + plot_h * (1 - y / top):.1f}"
            for x, y in line.points
        )
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
        y = _TOP + 8 + 18 * number
        parts.append(_rect(_LEFT + 12, y - 4, 18, 4, line.style))
        parts.append(_text(_LEFT + 36, y + 2, line.name))
    parts.append(_text(_LEFT + plot_w / 2, _HEIGHT - 6, unit, "middle", "unit"))
    return _svg(_HEIGHT, parts)


def nothing(why: str = "nothing to show") -> str:
    """What stands where there is nothing to draw."""
    return f'<p class="nothing">{escape(why)}</p>'


def _vertical_axis(top: float, show: Format, whole: bool = False) -> list[str]:
    parts = []
    plot_h = _HEIGHT - _TOP - _BOTTOM
    ticks = min(_TICKS, int(top)) if whole else _TICKS
    for tick in range(ticks + 1):
        value = top * tick / ticks
        if whole:
            value = round(value)
        y = _TOP + plot_h * (1 - value / top)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, show(value), "end"))
    return parts


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", style: str = "", title: str = ""
) -> str:
    hint = f"<title>{escape(title)}</title>" if title and title != text else ""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{hint}{escape(text)}</text>"
    )


def _shortened(text: str, width: int = 22) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
