"""Small charts as inline SVG. Colours are CSS classes, so a chart follows the page into dark and print.

Nothing here knows what is drawn; text is escaped, numbers are rounded to a tenth of a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 460.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight map from values [low, high] to places [start, end]; an empty range maps to `start`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        if self.high == self.low:
            return self.start
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round values from at or below `low` to at or above `high`, evenly spaced, about `most` of them."""
    if not high > low:
        high = low + 1
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def compact(value: float) -> str:
    """A number for an axis: 1,000 and 0.25, no trailing zeros."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Shapes in the order they are drawn; `kind` is a CSS class of the report's style sheet."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        *,
        tip: str = "",
        opacity: float | None = None,
    ) -> None:
        """A rectangle; `tip` shows under the pointer."""
        place = f'x="{_at(x)}" y="{_at(y)}" width="{_at(max(width, 0))}" height="{_at(max(height, 0))}"'
        # An attribute and no style: pages whose policy forbids inline styles show it, too.
        pale = "" if opacity is None else f' opacity="{opacity:.3g}"'
        self._add(f'rect class="{kind}" {place}{pale}', tip)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self._add(f'line class="{kind}" x1="{_at(x1)}" y1="{_at(y1)}" x2="{_at(x2)}" y2="{_at(y2)}"')

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        self._add(f'polyline class="{kind}" points="{" ".join(f"{_at(x)},{_at(y)}" for x, y in points)}"')

    def dot(self, x: float, y: float, kind: str, *, tip: str = "", radius: float = 3.5) -> None:
        """A small disc."""
        self._add(f'circle class="{kind}" cx="{_at(x)}" cy="{_at(y)}" r="{_at(radius)}"', tip)

    def text(
        self, x: float, y: float, text: str, kind: str = "t", *, anchor: str = "start", turn: float = 0
    ) -> None:
        """Text on its base line; `anchor` is start, middle or end, `turn` degrees about the place."""
        turned = f' transform="rotate({_at(turn)} {_at(x)} {_at(y)})"' if turn else ""
        head = f'<text class="{kind}" x="{_at(x)}" y="{_at(y)}" text-anchor="{anchor}"{turned}>'
        self._parts.append(f"{head}{escape(text)}</text>")

    def svg(self, alt: str) -> str:
        """The picture with its text for those who cannot see it."""
        head = (
            f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {_at(self.width)} {_at(self.height)}">'
        )
        return head + "".join(self._parts) + "</svg>"

    def _add(self, tag: str, tip: str = "") -> None:
        name = tag.split(" ", 1)[0]
        self._parts.append(f"<{tag}><title>{escape(tip)}</title></{name}>" if tip else f"<{tag}/>")


class Chart(Canvas):
    """A canvas with two axes; `x` and `y` map values to places."""

    def __init__(
        self,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        *,
        x_label: str,
        y_label: str,
        x_range: tuple[float, float] | None = None,
        height: float = 250.0,
        y_text: Callable[[float], str] = compact,
    ) -> None:
        super().__init__(height)
        left, right, top, bottom = 50.0, self.width - 12.0, 38.0, height - 40.0
        low, high = x_range or (x_ticks[0], x_ticks[-1])
        self.x = Scale(low, high, left, right)
        self.y = Scale(y_ticks[0], y_ticks[-1], bottom, top)
        self.top, self.bottom, self.left, self.right = top, bottom, left, right
        for value in y_ticks:
            self.line(left, self.y(value), right, self.y(value), "grid")
            self.text(left - 7, self.y(value) + 4, y_text(value), anchor="end")
        for value in x_ticks:
            if low <= value <= high:
                self.text(self.x(value), bottom + 17, compact(value), anchor="middle")
        self.line(left, bottom, right, bottom, "axis")
        self.text((left + right) / 2, height - 6, x_label, "t label", anchor="middle")
        self.text(left - 42, 12, y_label, "t label")

    def mark_x(self, value: float, text: str) -> None:
        """A dashed vertical line with its name above the plot, where no data can be."""
        place = self.x(value)
        self.line(place, self.top - 4, place, self.bottom, "mark")
        half = 3.6 * len(text)  # of a text whose end must not leave the picture
        self.text(
            min(max(place, self.left + half), self.right - half),
            self.top - 9,
            text,
            "t mark-t",
            anchor="middle",
        )

    def mark_y(self, value: float) -> None:
        """A dashed horizontal line, which the figure's legend names."""
        self.line(self.left, self.y(value), self.right, self.y(value), "mark")
