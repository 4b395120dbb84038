"""Small charts as inline SVG: they scale with the page, need no script, and print.

Colours and sizes of text come from the page's style sheet, by class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 460
_ROW = 24
_LABEL = 214
_LABEL_CHARS = 30
_VALUE = 72
_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 26, 40
_TICKS = 4
_MAX_BAR = 48
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a line chart."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    """The class of its stroke: `a` or `b`."""


def bars(rows: Sequence[tuple[str, float]], show: Format, marked: Sequence[float] = ()) -> str:
    """Horizontal bars; nothing for no rows.

    Args:
        rows: labels and values.
        show: how a value reads.
        marked: for each row the part of its value that is marked, if any is.
    """
    if not rows:
        return ""
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


def histogram(
    values: Sequence[float], show: Format, unit: str, counted: str, bins: int = 16
) -> str:
    """How often values of each size occur; nothing for no values.

    Args:
        values: at least zero each.
        show: how a value reads.
        unit: what the values are of, along the horizontal axis.
        counted: what has such a value, along the vertical axis.
        bins: into how many classes at most; whole numbers get classes of whole numbers.
    """
    if not values:
        return ""
    low, high = math.floor(min(values)), math.ceil(max(values))
    width = max(1, math.ceil((high - low + 1) / bins))
    counts = [0] * (((high - low) // width) + 1)
    for value in values:
        counts[int((value - low) // width)] += 1
    top = max(counts)
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = plot_w / len(counts)
    parts = _vertical_axis(top, lambda n: f"{n:,.0f}", counted, least=1)
    bar = min(step - 2, _MAX_BAR)
    for number, count in enumerate(counts):
        height = plot_h * count / top
        x, first = _LEFT + (number + 0.5) * step, low + number * width
        span = show(first) if width == 1 else f"{show(first)} to {show(first + width - 1)}"
        hint = f"{span} {unit}: {count:,} {counted}"
        parts.append(_rect(x - bar / 2, _TOP + plot_h - height, bar, height, "a", hint))
        if number % max(1, len(counts) // 6) == 0:
            parts.append(_text(x, _HEIGHT - 24, show(first), "middle"))
    parts.append(_text(_LEFT + plot_w / 2, _HEIGHT - 6, unit, "middle", "unit"))
    return _svg(_HEIGHT, parts)


def lines(series: Sequence[Line], show: Format, unit: str, *, base: int = 1000) -> str:
    """Lines over a common horizontal axis that begins at zero; nothing for less than two points.

    Args:
        series: the lines.
        show: how a value reads.
        unit: what is counted along the horizontal axis, in whole numbers.
        base: of the units in which values read: 1024 for bytes.
    """
    points = [point for line in series for point in line.points]
    if len(points) < 2:
        return ""
    right = max(x for x, _ in points) or 1
    top = max(y for _, y in points) or 1
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = _vertical_axis(top, show, base=base)
    for tick in _ticks(right, least=1):
        x = _LEFT + plot_w * tick / right
        parts.append(_text(x, _HEIGHT - 24, f"{tick:,.0f}", "middle"))
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


def nothing(why: str) -> str:
    """What stands where there is nothing to draw."""
    return f'<p class="nothing">{escape(why)}</p>'


def _ticks(top: float, *, least: float = 0, base: int = 1000) -> Iterator[float]:
    """Round numbers from zero to `top`, `least` apart or more."""
    about = max(top / _TICKS, least)
    unit = float(base) ** math.floor(math.log(about, base))
    power = 10.0 ** math.floor(math.log10(about / unit))
    step = next(n * power * unit for n in (1, 2, 5, 10) if n * power * unit >= about * 0.999)
    yield from (number * step for number in range(int(top / step) + 1))


def _vertical_axis(
    top: float, show: Format, counted: str = "", *, least: float = 0, base: int = 1000
) -> list[str]:
    parts = [_text(_LEFT - 6, _TOP - 12, counted, "middle", "unit")] if counted else []
    plot_h = _HEIGHT - _TOP - _BOTTOM
    for value in _ticks(top, least=least, base=base):
        y = _TOP + plot_h * (1 - value / top)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, show(value), "end"))
    return parts


def _rect(x: float, y: float, width: float, height: float, style: str, hint: str = "") -> str:
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    rect = f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size}'
    return f"{rect}><title>{escape(hint)}</title></rect>" if hint else f"{rect}/>"


def _text(
    x: float, y: float, text: str, anchor: str = "start", style: str = "", title: str = ""
) -> str:
    hint = f"<title>{escape(title)}</title>" if title and title != text else ""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{hint}{escape(text)}</text>"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
