"""The report's figures: each a picture, its words, and the numbers behind it as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pate_fed.format import delta_text, epsilon_text
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord

# Small charts as inline SVG. Colours are CSS classes, so a chart follows the page into dark and print.
#
# Nothing here knows what is drawn; text is escaped, numbers are rounded to a tenth of a unit.


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


_MOST_CLASSES = 20  # with more, a confusion matrix shows no numbers and no names


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """An inline SVG with its title, caption, legend (CSS class, name), and its numbers as a table.

    `private`: computed from private votes, for the analyst only.
    """

    title: str
    picture: str
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    private: bool = False


def epsilon_curve(result: RunResult) -> Figure | None:
    """Data-independent ε over the queries so far, and the one that was fixed beforehand.

    None where all was spent at once: a line to the only point would tell of a growth that never was.
    """
    words = result.study.words
    each, unit = words.step
    points = [(0, 0, 0.0), *((asked // each, *rest) for asked, *rest in result.spent_so_far)]
    if len(points) <= 2:
        return None
    fixed, top = result.outcome.privacy.student, points[-1][2]
    shown = fixed is not None and fixed <= 4 * top
    chart = Chart(
        _whole(nice_ticks(0, points[-1][0])),
        nice_ticks(0, max(top, fixed or 0) * 1.08 if shown else top),
        x_range=(0, points[-1][0]),
        x_label=f"{unit} asked",
        y_label=f"ε at δ = {delta_text(result.study.terms.delta)}",
    )
    chart.path([(chart.x(queries), chart.y(epsilon)) for queries, _, epsilon in points], "line c1")
    for queries, labels, epsilon in points[1:]:
        tip = f"ε = {epsilon_text(epsilon)} after {queries:,} {unit}, {labels:,} labels"
        chart.dot(chart.x(queries), chart.y(epsilon), "dot c1", tip=tip)
    if shown and fixed is not None:
        chart.line(chart.left, chart.y(fixed), chart.right, chart.y(fixed), "mark")
    alt = f"ε grows with the {unit} asked, to {epsilon_text(top)} after {points[-1][0]:,} {unit}."
    caption = "Spent against the public whatever the data are, charged before a batch is released."
    if assumed := result.study.assumptions:
        caption += f" Every ε is {assumed.short}."
    if fixed is not None and top == fixed and points[-2][2] == fixed:
        caption += f" It ends level: all {unit} together cost no more than what was fixed beforehand."
    if fixed is not None and not shown:
        caption += f" What was fixed beforehand, ε = {epsilon_text(fixed)}, lies far above."
    named = (("c1", "spent"), ("mark", f"fixed beforehand: ε = {epsilon_text(fixed)}"))
    return Figure(
        title="Privacy spent",
        picture=chart.svg(alt),
        caption=caption,
        legend=named if shown else (),
        header=(f"{unit} asked", words.released, "ε"),
        rows=tuple(
            (f"{queries:,}", f"{labels:,}", epsilon_text(epsilon)) for queries, labels, epsilon in points[1:]
        ),
    )


def top_vote_histogram(result: RunResult) -> Figure | None:
    """How many votes the winner of each query had, answered above refused. From private totals."""
    found = result.evaluation
    if not found.top_edges or not (sum(found.top_answered) + sum(found.top_refused)):
        return None
    edges, answered, refused = found.top_edges, found.top_answered, found.top_refused
    stacked = [left + right for left, right in zip(answered, refused, strict=True)]
    chart = Chart(
        _whole(nice_ticks(0, edges[-1])),
        _whole(nice_ticks(0, max(stacked), most=5)),
        x_range=(-0.5, edges[-1] - 0.5),  # votes are whole: a bar stands around its number
        x_label="votes for the winner",
        y_label="queries",
    )
    for low, high, yes, both in zip(edges, edges[1:], answered, stacked, strict=False):
        left, width = chart.x(low - 0.5), max(chart.x(high) - chart.x(low) - 1, 0.7)
        tip = f"{_votes(low, high)} votes: {yes:,} answered, {both - yes:,} refused"
        if yes:
            chart.rect(left, chart.y(yes), width, chart.bottom - chart.y(yes), "fill c1", tip=tip)
        if both > yes:
            chart.rect(left, chart.y(both), width, chart.y(yes) - chart.y(both), "fill c2", tip=tip)
    if result.study.threshold is not None and 0 <= result.study.threshold <= edges[-1]:
        chart.mark_x(result.study.threshold, f"threshold {compact(result.study.threshold)}")
    rows = zip(edges, edges[1:], answered, refused, strict=False)
    return Figure(
        title="Agreement of the teachers",
        picture=chart.svg(
            f"Histogram of the winner's votes over {sum(stacked):,} queries: {sum(answered):,} answered, "
            f"{sum(refused):,} refused."
        ),
        caption=_how_asked(result.study),
        legend=(("c1", f"answered ({sum(answered):,})"), ("c2", f"refused ({sum(refused):,})")),
        header=("winner's votes", "answered", "refused"),
        rows=tuple((_votes(low, high), f"{yes:,}", f"{no:,}") for low, high, yes, no in rows if yes or no),
        private=True,
    )


def _how_asked(study: StudyRecord | LabelStudyRecord) -> str:
    if study.coordinator == "hospital-noise":
        # All that anyone has are noisy totals, so nothing is drawn again for the threshold.
        text = "With the hospitals' noise in them; the last bar counts all above it too."
        return text + (
            "" if study.threshold is None else " Once there are labels enough, the rest is refused."
        )
    if study.threshold is None:
        return "Every query is answered: this mechanism has no threshold."
    return "Noise is added before the threshold is asked, so the two kinds overlap around it."


def _whole(ticks: Sequence[float]) -> list[float]:
    """Those of an axis that counts."""
    return [tick for tick in ticks if tick == int(tick)]


def _votes(low: int, high: int) -> str:
    return str(low) if high == low + 1 else f"{low} to {high - 1}"


def confusion_matrix(result: RunResult) -> Figure | None:
    """Released labels against the public inputs' true classes; each row's shares as depth of colour."""
    counts = result.evaluation.confusion
    total = sum(map(sum, counts))
    if not total:
        return None
    size, right = len(counts), sum(counts[place][place] for place in range(len(counts)))
    few = size <= _MOST_CLASSES
    names = [_cut(result.study.class_name(place)) for place in range(size)]
    longest = max(map(len, names)) if few else 0
    left = 26.0 + 7.2 * longest
    cell = min((WIDTH - left - 8) / size, 40.0 if size > 4 else 84.0)
    flat = longest * 7.2 <= cell - 4
    canvas = Canvas(26 + cell * size + (22 if flat or not few else 10 + 5.6 * longest))
    left += (WIDTH - 8 - left - cell * size) / 2
    if not few:
        canvas.rect(left, 8, cell * size, cell * size, "empty")
    for truth, row in enumerate(counts):
        y = 8 + truth * cell
        if few:
            canvas.text(left - 7, y + cell / 2 + 4, names[truth], anchor="end")
        for label, count in enumerate(row):
            _cell(canvas, left + label * cell, y, cell, count, sum(row), few=few, diagonal=truth == label)
    _frame(canvas, left, cell * size, names if few else [], flat=flat)
    mixed = sorted(
        ((count, truth, label) for truth, row in enumerate(counts) for label, count in enumerate(row)),
        reverse=True,
    )
    worst = [(count, truth, label) for count, truth, label in mixed if truth != label and count][:10]
    name = result.study.class_name
    return Figure(
        title="Released labels against the truth",
        picture=canvas.svg(
            f"Confusion matrix of {size} classes: {right:,} of {total:,} released labels are right"
            + (f"; most often {name(worst[0][1])} is called {name(worst[0][2])}." if worst else ".")
        ),
        caption=f"{right:,} of {total:,} right. A row is a true class, a column the label it got; shades are "
        "shares of the row. From released labels and public truth, so it costs no privacy.",
        header=("truth", "called", "times"),
        rows=tuple((name(truth), name(label), f"{count:,}") for count, truth, label in worst),
    )


def _cell(
    canvas: Canvas, x: float, y: float, size: float, count: int, of: int, *, few: bool, diagonal: bool
) -> None:
    if not count:
        if few:
            canvas.rect(x + 0.5, y + 0.5, size - 1, size - 1, "empty")
        return
    gap = 0.5 if few else 0.0
    share = count / of
    kind = "fill c1" if diagonal else "fill c2"
    canvas.rect(x + gap, y + gap, size - 2 * gap, size - 2 * gap, "empty" if few else kind, opacity=1)
    canvas.rect(x + gap, y + gap, size - 2 * gap, size - 2 * gap, kind, opacity=0.12 + 0.88 * share)
    if few:
        text = "t on" if share > 0.8 else "t ink halo"
        small = " tiny" if len(f"{count}") * 8 > size else ""
        canvas.text(x + size / 2, y + size / 2 + 4, f"{count}", text + small, anchor="middle")


def _frame(canvas: Canvas, left: float, side: float, names: Sequence[str], *, flat: bool) -> None:
    cell = side / len(names) if names else side
    for place, name in enumerate(names):
        x = left + (place + 0.5) * cell
        if flat:
            canvas.text(x, side + 23, name, anchor="middle")
        else:
            canvas.text(x + 4, side + 20, name, anchor="end", turn=-45)
    canvas.text(left + side / 2, canvas.height - 3, "released label", "t label", anchor="middle")
    beside = left - 14 - 7.2 * max(map(len, names), default=0)
    canvas.text(max(12.0, beside), 8 + side / 2, "truth", "t label", anchor="middle", turn=-90)


def _cut(name: str) -> str:
    return name if len(name) <= 11 else name[:10] + "…"


def time_bars(result: RunResult) -> Figure | None:
    """Seconds a phase, and what none of them accounts for."""
    seconds, words = result.outcome.seconds, result.study.words
    first, second = "teach" if words.prepares else "agree", words.answers
    rows = [
        (first, seconds.teach),
        (second, seconds.vote),
        ("aggregate", seconds.aggregate),
        ("learn", seconds.student),
    ]
    known = [(name, value) for name, value in rows if value is not None]
    if not known:
        return None
    total = sum(value for _, value in known)
    if seconds.total is not None and seconds.total > total:
        known.append(("other", seconds.total - total))
        total = seconds.total
    canvas = Canvas(32 * len(known) + 8)
    x = Scale(0, max(max(value for _, value in known), 1e-9), 84, WIDTH - 120)
    for place, (name, value) in enumerate(known):
        y = 6 + 32 * place
        canvas.text(76, y + 16, name, "t ink", anchor="end")
        canvas.rect(x(0), y, max(x(value) - x(0), 1), 22, "fill soft")
        canvas.text(
            max(x(value), x(0) + 1) + 7,
            y + 16,
            f"{value:,.1f} s  ({value / max(total, 1e-9):.0%})",
            "t strong",
        )
    text = ", ".join(f"{name} {value:.1f} s" for name, value in known)
    return Figure(
        title="Time by phase",
        picture=canvas.svg(f"Time by phase: {text}."),
        caption="Other: starting up, reading data, writing files."
        + _engine_share(result, total, first, second),
        header=("phase", "seconds", "share"),
        rows=tuple((name, f"{value:,.2f}", f"{value / max(total, 1e-9):.1%}") for name, value in known),
    )


def _engine_share(result: RunResult, total: float, first: str, second: str) -> str:
    engine = result.engine_seconds
    if engine is None:
        return ""
    return (
        f" {engine:.1f} s ({engine / max(total, 1e-9):.1%} of the run) were Flower, its engine's start and "
        f"end, and messages: in {first}, {second} and other; the rest of {first} and {second} was the "
        "parties' own work."
    )
