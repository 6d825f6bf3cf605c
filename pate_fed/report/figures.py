"""A run's curves and its labels' and student's quality, as figures of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pate_fed.format import FEW_TRIALS, accuracy_text, interval_text, share_text, wilson_interval
from pate_fed.report.accuracy import Accuracy, Recall
from pate_fed.report.plots import WIDTH, Canvas, Chart, Figure, Scale, compact, nice_ticks
from pate_fed.report.result import RunResult

_SERIES = ("c1", "c2", "c3", "c4", "c5", "c6")

Series = dict[str, list[tuple[int, float]]]


def test_accuracy_curve(result: RunResult) -> Figure | None:
    """The student's accuracy on public images that were never asked about, over epochs."""
    points = result.test_curve
    return _curves(
        "The student's test accuracy",
        {"test accuracy": points},
        caption=_test_caption(result, points[-1][1]) if points else "",
        y_label="right",
        show=lambda value: share_text(value, result.study.test_size),
        share=True,
        again=_again(result),
    )


def compare_curves(runs: Sequence[tuple[str, RunResult]]) -> Figure | None:
    """Several students' accuracy on their test part over epochs, by the runs' names; six at most."""
    series: Series = {}
    for name, result in runs:
        if (points := result.test_curve) and len(series) < len(_SERIES):
            series[name] = points
    more = " Shown are the first six runs that have a curve." if len(runs) > len(_SERIES) else ""
    return _curves(
        "The students' test accuracy",
        series,
        caption="On public inputs that are kept for it; shown, never used to choose." + more,
        y_label="right",
        share=True,
        words=str,
    )


def _test_caption(result: RunResult, last: float) -> str:
    """On which inputs: those that are kept for it, as others may be asked about or learnt from."""
    found, kept = result.outcome.accuracy, result.study.test_size
    majority = found.majority if kept and found.student_n == kept else None
    return (
        f"On public {result.study.inputs} that are kept for it; shown, never used to choose. At the end "
        f"{accuracy_text(last, kept, majority=majority)}."
    )


def learning_curves(result: RunResult) -> list[Figure]:
    """The student's losses, the shares and the counts of its labels, each over epochs."""
    series: Series = {}
    for epoch in result.epochs:
        for name, value in epoch.values.items():
            series.setdefault(name, []).append((epoch.epoch, value))
    losses, shares, counts = (_of(kind, series) for kind in ("loss", "share", "count"))
    captions = _SHARES | (_DISPUTED if result.study.student in _BY_DISAGREEMENT else {})
    caption = " ".join(
        text for start, text in captions.items() if any(name.startswith(start) for name in shares)
    )
    again = _again(result)
    figures = [
        _curves("The student's losses", losses, caption=_LOSSES, y_label="loss", again=again),
        _curves(
            "The labels that it learns from",
            shares,
            caption=caption,
            y_label="share",
            share=True,
            again=again,
        ),
        _curves("The labels in dispute", counts, caption=_COUNTS, y_label="labels", again=again),
    ]
    return [figure for figure in figures if figure]


def _again(result: RunResult) -> int | None:
    """The epoch with which a student was trained anew; None: it never was."""
    return next((epoch.epoch for epoch in result.epochs if epoch.values.get("stage", 1) > 1), None)


_AGAIN = "At the dashed line labels that look wrong are taken off, and the student starts again from scratch."
_LOSSES = "Supervised parts learn from released labels, unsupervised ones from the other public images."
_SHARES = {
    "kept": "Kept: the share of the labelled images in a pass over the data; the rest look wrong and are "
    "passed over.",
    "disputed": "Disputed wrong: the share of wrong labels among those on which the two networks disagree, "
    "where the truth is known.",
    "held": "Held out: the share that the student meets of the labels that do not teach it.",
}
_BY_DISAGREEMENT = ("pate+", "pate++")
_DISPUTED = {
    "kept": "Kept: the share of the labelled images in a pass over the data that teach. The two networks "
    "disagree on them, and their labels do not look wrong; the rest are passed over.",
}
_COUNTS = (
    "Labelled images in a pass over the data on which the two networks disagree. A pass shows a labelled "
    "image again and again where there are more images without a label, and each time counts."
)


def _of(kind: str, series: Series) -> Series:
    return {name: points for name, points in series.items() if _kind(name, points) == kind}


def _kind(name: str, points: Sequence[tuple[int, float]]) -> str:
    if "loss" in name:
        return "loss"
    if name in ("stage", "noise_rate", "removal"):
        return "nothing to show"
    if name == "kept_share" and all(value == 1 for _, value in points):
        return "nothing to show"  # a student that keeps every label
    return "share" if name.endswith("share") else "count"


def _curves(
    title: str,
    series: Series,
    *,
    caption: str,
    y_label: str,
    share: bool = False,
    show: Callable[[float], str] | None = None,
    again: int | None = None,
    words: Callable[[str], str] | None = None,
) -> Figure | None:
    words = _words if words is None else words
    series = {name: points for name, points in series.items() if points}
    if max(map(len, series.values()), default=0) < 2:
        return None  # one pass alone is no curve
    if show is None:
        show = (lambda value: f"{value:.2%}") if share else _decimal
    epochs = sorted({epoch for points in series.values() for epoch, _ in points})
    chart = _epoch_chart(series, epochs, y_label, share=share)
    if again is not None:
        chart.mark_x(again - 0.5, "trained again")
    for place, (name, points) in enumerate(series.items()):
        kind = _SERIES[place % len(_SERIES)]
        chart.path([(chart.x(epoch), chart.y(value)) for epoch, value in points], f"line {kind}")
        epoch, value = points[-1]
        chart.dot(chart.x(epoch), chart.y(value), f"dot {kind}", tip=f"{words(name)}: {show(value)}")
    ends = ", ".join(f"{words(name)} {show(points[-1][1])}" for name, points in series.items())
    legend = tuple((_SERIES[place % len(_SERIES)], words(name)) for place, name in enumerate(series))
    lookup = {name: dict(points) for name, points in series.items()}
    return Figure(
        title=title,
        picture=chart.svg(f"{title} over {len(epochs)} epochs; at the end: {ends}."),
        caption=caption if again is None else f"{caption} {_AGAIN}",
        legend=legend if len(series) > 1 else (),
        header=("epoch", *map(words, series)),
        rows=tuple(
            (str(epoch), *(show(lookup[name][epoch]) if epoch in lookup[name] else "-" for name in series))
            for epoch in epochs
        ),
    )


def _epoch_chart(series: Series, epochs: Sequence[int], y_label: str, *, share: bool) -> Chart:
    values = [value for points in series.values() for _, value in points]
    low = max(0.0, min(values) - 0.05) if share else min(min(values), 0.0)
    ticks = nice_ticks(low, max(values))
    return Chart(
        [tick for tick in nice_ticks(0, epochs[-1]) if tick == int(tick)],
        [tick for tick in ticks if tick <= 1.0] if share else ticks,
        x_range=(min(epochs[0], 0), epochs[-1]),
        x_label="epoch",
        y_label=y_label,
        height=220,
        y_text=(lambda value: f"{100 * value:.3g}%") if share else compact,
    )


def _words(name: str) -> str:
    return name.replace("loss_", "").replace("_", " ")


def _decimal(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4f}"


_MOST_BARS = 20  # classes; of more those of least recall are drawn
_MANY = 10_000  # inputs of a class: more do not fit beside its bar
_LONGEST, _WIDEST = 16, 28  # letters of a class's name; of any bar's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One share with its number of trials, interval, and the majority's share, where these are known.

    `said` is how it stands there where it is no share of right answers.
    """

    name: str
    share: float
    count: int | None
    interval: tuple[float, float] | None = None
    majority: float | None = None
    private: bool = False
    strong: bool = False
    counted_below: int = FEW_TRIALS
    said: str = ""

    @property
    def counted(self) -> bool:
        """Whether few were tested, so that a count says it better than a percentage."""
        return self.count is not None and 0 < self.count < self.counted_below and self.interval is not None

    @property
    def short(self) -> str:
        """The share as it stands behind the bar, with its number."""
        if self.said:
            return self.said
        if self.counted and self.count is not None:
            return f"{round(self.share * self.count)} of {self.count}"
        share = share_text(self.share, self.count)
        return f"{share} of {self.count:,}" if self.count else share

    @property
    def tip(self) -> str:
        """All that is known of it, for whoever points at it."""
        if not self.said:
            return accuracy_text(self.share, self.count, majority=self.majority)
        ends = "" if self.interval is None else ", {:.3f} to {:.3f}".format(*self.interval)
        return f"{self.said} (n {self.count:,}{ends})"

    @property
    def ends(self) -> str:
        """The interval as it stands below the share; empty where there is none."""
        return "" if self.interval is None else interval_text(self.interval, self.count)

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


def of_no_class(result: RunResult) -> Figure | None:
    """How near the student comes where it tells a number or several labels; None where that is not known."""
    accuracy, study = result.outcome.accuracy, result.study
    if (found := accuracy.no_class) is None:
        return None
    bars = [
        _Bar(name=name, share=value, count=found.count, interval=ends, said=f"{value:.3f}")
        for name, value, ends in found.bars
    ]
    name, value, _ = found.rows[0]
    how = "near it comes" if accuracy.by_label is None else "well it tells"
    return Figure(
        title=f"How {how}: {study.words.target}",
        picture=_draw(bars, mark=None if accuracy.by_label is None else 0.5).svg(f"{name} {value:.3f}."),
        caption=f"{found.caption} {accuracy.how_tested(study.inputs, made_of=study.words.made_of)}",
        header=found.header,
        rows=found.table,
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


def _draw(
    bars: list[_Bar], *, step: float = 44, intervals: bool = False, mark: float | None = None
) -> Canvas:
    """Horizontal bars from 0 to 1, with intervals as lines across their ends and, if wanted, in figures.

    A dashed line stands at `mark`. A long name is cut, and whole where the bar is pointed at.
    """
    thick = step * 0.64
    left = 16 + 7.6 * max(4, *(min(_WIDEST, len(bar.name)) + 2 * bar.private for bar in bars))
    canvas = Canvas(step * len(bars) + 30)
    # Figures stand in a column of their own: behind its bar a long interval would run out of the picture.
    right = WIDTH - 4 - 8.4 * max(len(bar.short) for bar in bars)
    x = Scale(0, 1, left, right - 12)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        canvas.line(x(value), 6, x(value), canvas.height - 24, "grid")
        canvas.text(x(value), canvas.height - 6, f"{value:.0%}", anchor="middle")
    if mark is not None:
        canvas.line(x(mark), 6, x(mark), canvas.height - 24, "mark")
    for place, bar in enumerate(bars):
        y, middle = 10 + step * place, 10 + step * place + thick / 2
        shown = bar.name if len(bar.name) <= _WIDEST else bar.name[: _WIDEST - 1] + "…"
        canvas.text(left - 8, middle + 4.5, shown + (" ◆" if bar.private else ""), "t ink", anchor="end")
        tip = f"{bar.name}: {bar.tip}"
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


_OPERATING_POINTS = (0.8, 0.9, 0.95, 0.99)  # specificities
_PREVALENCES = (0.01, 0.05, 0.2, 0.5)


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
    line = "" if (told := result.outcome.accuracy.line) is None else f"{told.text}. "
    caption = (
        f"{found.sure_of} ({found.count:,} test inputs). On the dashed line both are the same; above it the "
        f"student is right more often than it is sure. Expected calibration error {found.error:.3f}. {line}A "
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


def roc_curve(result: RunResult) -> Figure | None:
    """Of two classes the ROC curve on public inputs, and operating points; None where it is not known."""
    if (found := result.outcome.accuracy.ranking) is None:
        return None
    first, second = map(result.study.class_name, (0, 1))
    tenths = [place / 5 for place in range(6)]
    x_label, y_label = f"{first} called {second}", f"{second} found"
    chart = Chart(tenths, tenths, x_label=x_label, y_label=y_label, y_text=_percent)
    points = [(place / (len(found.roc) - 1), share) for place, share in enumerate(found.roc)]
    chart.path([(chart.x(x), chart.y(y)) for x, y in points], "line c1")
    chart.line(chart.x(0), chart.y(0), chart.x(1), chart.y(1), "mark")
    rows = []
    for specificity in _OPERATING_POINTS:
        sensitivity, _ = found.at(specificity)
        values = [
            " / ".join(share_text(each) for each, _ in found.predictive(prevalence, specificity))
            for prevalence in _PREVALENCES
        ]
        rows.append((f"{specificity:.0%}", accuracy_text(sensitivity, found.positive), *values))
    return Figure(
        title="Telling two classes apart",
        picture=chart.svg(f"ROC curve: {found.text}."),
        caption=(
            f"{found.text}. {second} is what is found. PPV and NPV: of those called {second}, and of those "
            f"called {first}, how many are so, where that share of all are {second}."
        ),
        header=("specificity", "sensitivity", *(f"PPV / NPV at {each:.0%}" for each in _PREVALENCES)),
        rows=tuple(rows),
    )


def subgroup_bars(result: RunResult) -> Figure | None:
    """The student's accuracy by subgroups of the public rows; None where there are none."""
    if not (groups := result.outcome.accuracy.groups):
        return None
    parts = [Recall(place, each.right, each.count) for place, each in enumerate(groups)]
    bars = [_recall_bar(each, groups[each.number].name) for each in parts]
    return Figure(
        title="By subgroup",
        picture=_draw(bars, step=30).svg(f"Accuracy in {len(groups)} subgroups of the test rows."),
        caption="Of public rows that tested it, where 20 or more are in one. A line is the 95 % interval.",
        header=("subgroup", "right", "AUC"),
        rows=tuple(
            (group.name, each.text, group.auc_text) for group, each in zip(groups, parts, strict=True)
        ),
    )


def own_records(result: RunResult) -> Figure | None:
    """How good the student is on hospitals' held-out records; None where these were not counted."""
    own = result.outcome.accuracy.own_records
    if own is None:
        return None
    names = [f"of {result.study.class_name(each)}, called so" for each in range(len(own.recall))]
    figures = (("right", own.accuracy), *zip(names, own.recall, strict=True), ("balanced", own.balanced))
    rows = [(name, "not told" if each is None else each.text) for name, each in figures]
    tenths = [place / 5 for place in range(6)]
    if own.roc:
        called = " called ".join(result.study.class_name(each) for each in (0, 1))
        chart = Chart(tenths, tenths, x_label=called, y_label="found", y_text=_percent)
        chart.path([(chart.x(x), chart.y(y)) for x, y in own.roc], "line c1")
        rows.append(("area under the ROC curve", "not told" if own.auc is None else own.auc.text))
    else:
        chart = Chart(tenths, tenths, x_label="how sure it is", y_label="how often right", y_text=_percent)
        for sure, right in own.calibration:
            chart.line(chart.x(sure), chart.y(right.low), chart.x(sure), chart.y(right.high), "line thin c1")
            chart.dot(chart.x(sure), chart.y(right.share), "dot c1", tip=right.text)
    chart.line(chart.x(0), chart.y(0), chart.x(1), chart.y(1), "mark")
    rows += [(f"right, where it is {sure:.0%} sure", right.text) for sure, right in own.calibration]
    caption = (
        f"Of about {max(0.0, own.records):,.0f} records of the hospitals, give or take {2 * own.noise:,.0f}, "
        "which had no part in the sums. They were counted once, with noise. Intervals of 95 % are of chance "
        "and of that noise. How hospitals differ is not told."
    )
    if own.at is not None:
        second = result.study.class_name(1)
        caption += f" {second} is called from a chance of {own.at:.2g} on, which these same counts chose."
    return Figure(
        title="On hospitals' own records",
        picture=chart.svg("The student on hospitals' own held-out records, by counts with noise."),
        caption=caption,
        header=("share", "with its interval"),
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
