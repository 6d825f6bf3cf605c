"""The student's curves over its epochs: losses, shares, counts, accuracy on the test part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pate_fed.format import accuracy_text, share_text
from pate_fed.report.plots import Figure
from pate_fed.report.result import RunResult
from pate_fed.report.svg import Chart, compact, nice_ticks

_SERIES = ("c1", "c2", "c3", "c4", "c5", "c6")

Series = dict[str, list[tuple[int, float]]]


def test_accuracy_curve(result: RunResult) -> Figure | None:
    """The student's accuracy on public images that were never asked about, over epochs."""
    points = [
        (epoch.epoch, epoch.test_accuracy) for epoch in result.epochs if epoch.test_accuracy is not None
    ]
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
        points = [
            (each.epoch, each.test_accuracy) for each in result.epochs if each.test_accuracy is not None
        ]
        if points and len(series) < len(_SERIES):
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
