"""The report's figures of how good a run is: accuracies, the student's recall by class, its calibration."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.format import FEW_TRIALS, accuracy_text, share_text, wilson_interval
from pate_fed.report.accuracy import Accuracy, Recall
from pate_fed.report.plots import Figure
from pate_fed.report.result import RunResult
from pate_fed.report.svg import WIDTH, Canvas, Chart, Scale

_MOST_BARS = 20  # classes; of more those of least recall are drawn
_MANY = 10_000  # inputs of a class: more do not fit beside its bar
_LONGEST = 16  # letters of a class's name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One share with its number of trials, interval, and the majority's share, where these are known."""

    name: str
    share: float
    count: int | None
    interval: tuple[float, float] | None = None
    majority: float | None = None
    private: bool = False
    strong: bool = False
    counted_below: int = FEW_TRIALS

    @property
    def counted(self) -> bool:
        """Whether few were tested, so that a count says it better than a percentage."""
        return self.count is not None and 0 < self.count < self.counted_below and self.interval is not None

    @property
    def short(self) -> str:
        """The share as it stands behind the bar, with its number."""
        if self.counted and self.count is not None:
            return f"{round(self.share * self.count)} of {self.count}"
        share = share_text(self.share, self.count)
        return f"{share} of {self.count:,}" if self.count else share

    @property
    def ends(self) -> str:
        """The interval as it stands below the share; empty where there is none."""
        if self.interval is None:
            return ""
        low, high = (share_text(end, self.count) for end in self.interval)
        return f"{low.removesuffix(' %')} to {high}"

    @property
    def row(self) -> tuple[str, ...]:
        """It as a row of the table beside the picture."""
        share = self.short if self.counted else share_text(self.share, self.count)
        count = "-" if self.count is None else f"{self.count:,}"
        ends = [share_text(end, self.count) for end in self.interval or ()]
        majority = share_text(self.majority, self.count)
        return self.name, share, count, " to ".join(ends) or "-", majority


def accuracy_bars(result: RunResult, *, publishable: bool) -> Figure | None:
    """Teachers, ensemble, labels and student, side by side, with intervals and the majority's share."""
    accuracy = result.outcome.accuracy
    bars = [bar for bar in _accuracies(accuracy) if not (publishable and bar.private)]
    if not bars:
        return None
    text = ", ".join(f"{bar.name} {bar.short}" for bar in bars)
    notes = []
    if any(bar.interval for bar in bars):
        notes.append("A line, and the figures below a share, are the 95 % interval (Wilson).")
    if any(bar.majority is not None for bar in bars):
        notes.append("A dashed mark is what always saying the most frequent class gets right.")
    if result.study.threshold is not None and accuracy.labels is not None:
        notes.append(
            f"Labels count answered queries only: the threshold passes over hard {result.study.inputs}, so "
            "they look easier."
        )
    notes.append(accuracy.how_tested(result.study.inputs, made_of=result.study.words.made_of))
    if any(bar.private for bar in bars):
        notes.append("◆ computed from private votes: for the analyst, do not publish.")
    return Figure(
        title="Accuracy",
        picture=_draw(bars, intervals=True).svg(f"Share of right answers: {text}."),
        caption=" ".join(note for note in notes if note),
        header=("who", "right", "n", "95 % interval", "majority"),
        rows=tuple(bar.row for bar in bars),
    )


def _accuracies(accuracy: Accuracy) -> list[_Bar]:
    labels, student, votes = accuracy.labels_interval, accuracy.student_interval, accuracy.ensemble_interval
    number, most = accuracy.votes_n, accuracy.votes_majority
    rows = [
        # Several teachers told the same inputs: no independent trials, so there is no interval.
        ("teachers, mean", accuracy.teacher_mean, number, None, most, True),
        ("ensemble", accuracy.ensemble, number, votes, most, True),
        ("released labels", accuracy.labels, accuracy.labels_n, labels, accuracy.labels_majority, False),
        ("student", accuracy.student, accuracy.student_n, student, accuracy.majority, False),
    ]
    return [
        _Bar(
            name=name,
            share=share,
            count=count,
            interval=interval,
            majority=majority,
            private=private,
            strong=name == "student",
        )
        for name, share, count, interval, majority, private in rows
        if share is not None
    ]


def recall_bars(result: RunResult) -> Figure | None:
    """The student's recall of each class with its interval; None where it is not known."""
    accuracy = result.outcome.accuracy
    recall = accuracy.recall
    if len(recall) < 2:
        return None
    shown = list(recall)
    if len(recall) > _MOST_BARS:
        shown = sorted(recall, key=lambda each: (each.share, -each.count))[:_MOST_BARS]
    name = result.study.class_name
    weakest, foretold = min(shown, key=lambda each: (each.share, -each.count)), _foretold(result)
    caption = (
        f"Balanced accuracy {accuracy.balanced_text}: the mean of all classes' recall, where always saying "
        f"one class gets {share_text(1 / len(recall))}. A line is the 95 % interval (Wilson); it is wide "
        "where a class has few test inputs."
    )
    if len(shown) < len(recall):
        caption += f" Drawn are the {len(shown)} classes of least recall; metrics.json has all."
    return Figure(
        title="The student's recall by class",
        picture=_draw([_recall_bar(each, name(each.number)) for each in shown], step=30).svg(
            f"Recall of {len(recall)} classes; the least is {name(weakest.number)}: {weakest.text}."
        ),
        caption=caption,
        header=("class", "recall", *(["foretold"] if foretold else [])),
        rows=tuple(
            (
                name(each.number),
                accuracy_text(each.share, each.count),
                *([foretold.get(each.number, "-")] if foretold else []),
            )
            for each in shown
        ),
    )


def _recall_bar(recall: Recall, name: str) -> _Bar:
    cut = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return _Bar(
        name=cut,
        share=recall.share,
        count=recall.count,
        interval=recall.interval,
        strong=True,
        counted_below=_MANY,  # all classes alike, and their numbers differ
    )


def _draw(bars: list[_Bar], *, step: float = 44, intervals: bool = False) -> Canvas:
    """Horizontal bars from 0 to 1, with intervals as lines across their ends and, if wanted, in figures."""
    thick = step * 0.64
    left = 16 + 7.6 * max(4, *(len(bar.name) + 2 * bar.private for bar in bars))
    canvas = Canvas(step * len(bars) + 30)
    # Figures stand in a column of their own: behind its bar a long interval would run out of the picture.
    right = WIDTH - 4 - 8.4 * max(len(bar.short) for bar in bars)
    x = Scale(0, 1, left, right - 12)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        canvas.line(x(value), 6, x(value), canvas.height - 24, "grid")
        canvas.text(x(value), canvas.height - 6, f"{value:.0%}", anchor="middle")
    for place, bar in enumerate(bars):
        y, middle = 10 + step * place, 10 + step * place + thick / 2
        canvas.text(left - 8, middle + 4.5, bar.name + (" ◆" if bar.private else ""), "t ink", anchor="end")
        tip = f"{bar.name}: {accuracy_text(bar.share, bar.count, majority=bar.majority)}"
        canvas.rect(x(0), y, x(bar.share) - x(0), thick, f"fill {'c1' if bar.strong else 'soft'}", tip=tip)
        if bar.majority is not None:
            canvas.line(x(bar.majority), y - 3, x(bar.majority), y + thick + 3, "mark")
        if bar.interval is not None:
            _whisker(canvas, x(bar.interval[0]), x(bar.interval[1]), middle, thick / 5)
        below = bar.ends if intervals else ""
        canvas.text(right, middle + (-2.5 if below else 4.5), bar.short, "t strong")
        if below:
            canvas.text(right, middle + 13.5, below)
    return canvas


def calibration_curve(result: RunResult) -> Figure | None:
    """How often the student is right when it is so sure; None where its probabilities are not known."""
    found = result.outcome.accuracy.calibration
    if found is None:
        return None
    tenths = [place / 5 for place in range(6)]
    chart = Chart(tenths, tenths, x_label="how sure it is", y_label="how often right", y_text=_percent)
    chart.line(chart.x(0), chart.y(0), chart.x(1), chart.y(1), "mark")
    most = max(count for count, _, _ in found.bins)
    rows = []
    for count, right, mean in found.bins:
        low, high = wilson_interval(right / count, count)
        x, share = chart.x(mean), right / count
        chart.line(x, chart.y(low), x, chart.y(high), "line thin c1")
        tip = f"{share_text(mean)} sure: {accuracy_text(share, count)}"
        chart.dot(x, chart.y(share), "dot c1", tip=tip, radius=3.5 + 4 * (count / most) ** 0.5)
        rows.append((share_text(mean, count), f"{count:,}", accuracy_text(share, count)))
    caption = (
        f"{found.sure_of} ({found.count:,} test inputs). On the dashed line both are the same; above it the "
        f"student is right more often than it is sure. Expected calibration error {found.error:.3f}. A "
        f"larger dot has more inputs; lines are 95 % intervals.{_foretold_worst(result)}"
    )
    return Figure(
        title="The student's calibration",
        picture=chart.svg(f"Reliability diagram: {found.sure_of}."),
        caption=caption,
        legend=(("mark", "as sure as right"),),
        header=("mean probability", "inputs", "right"),
        rows=tuple(rows),
    )


def _foretold(result: RunResult) -> dict[int, str]:
    """For each class the sum of the probabilities that the student gives it, and how many inputs have it."""
    found = result.outcome.accuracy.calibration
    pairs = () if found is None else found.by_class
    return {place: f"{total:,.0f} for {there:,}" for place, (total, there) in enumerate(pairs)}


def _foretold_worst(result: RunResult) -> str:
    """A sentence on the class whose number the student's probabilities miss most; empty where none is far."""
    found = result.outcome.accuracy.calibration
    if found is None or len(found.by_class) < 2:
        return ""
    place = max(range(len(found.by_class)), key=lambda at: abs(found.by_class[at][0] - found.by_class[at][1]))
    total, there = found.by_class[place]
    return (
        f" By class its probabilities are farthest off for {result.study.class_name(place)}: they add up to "
        f"{total:,.0f} inputs, and there are {there:,}."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _whisker(canvas: Canvas, low: float, high: float, y: float, half: float) -> None:
    lines = [(low, y, high, y), *((end, y - half, end, y + half) for end in (low, high))]
    for kind in ("under", "interval"):  # a light rim below, or the line is lost on its bar
        for line in lines:
            canvas.line(*line, kind)
