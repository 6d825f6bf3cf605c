"""Runs side by side as a page in the report's look: accuracy against ε, curves, figures, what differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from pate_fed.format import delta_text, epsilon_text, share_text, wilson_interval
from pate_fed.report.comparison import Comparison, RunToCompare
from pate_fed.report.curves import compare_curves
from pate_fed.report.page import in_columns, render_page
from pate_fed.report.plots import Figure
from pate_fed.report.svg import Chart, nice_ticks

_MOST_NAMES = 8  # with more points, names stand in the table alone
_SHIFT = 13.0  # between points of the same ε, which would lie on each other


def render_comparison(comparison: Comparison, *, title: str) -> str:
    """The page's text; equal comparisons give equal text."""
    runs = comparison.runs
    named = [(run.name, run.result) for run in runs]
    figures = [accuracy_against_epsilon(runs), compare_curves(named)]
    return render_page(
        "comparison.html.jinja",
        {
            "title": title,
            "analyst": comparison.analyst,
            "count": len(runs),
            "notes": comparison.notes,
            "header": comparison.header,
            "rows": comparison.rows,
            "differing": comparison.differing_table,
            "columns": in_columns(figures),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    name: str
    epsilon: float
    accuracy: float
    low: float
    high: float
    repeats: int
    each: tuple[float, ...]


def accuracy_against_epsilon(runs: Sequence[RunToCompare]) -> Figure | None:
    """The students' accuracy against ε, with 95 % intervals; None where fewer than two runs have both.

    Repeats with other seeds are one point, their mean, with the wider of Student's interval over the repeats
    and Wilson's of the inputs that tested them.
    """
    points = [point for point in map(_point, _groups(runs)) if point]
    if sum(point.repeats for point in points) < 2:
        return None
    deltas = {delta_text(run.result.study.terms.delta) for run in runs}
    top = max(point.epsilon for point in points)
    low = max(0.0, min(point.low for point in points) - 0.02)
    chart = Chart(
        nice_ticks(0, top * 1.05),
        [tick for tick in nice_ticks(low, max(point.high for point in points)) if tick <= 1.0],
        x_label=f"ε at δ = {deltas.pop()}" if len(deltas) == 1 else "ε (δ differs)",
        y_label="the student's accuracy",
        y_text=lambda value: f"{100 * value:.3g}%",
    )
    named = len(points) <= _MOST_NAMES
    for number, (point, shift) in enumerate(zip(points, _shifts(points), strict=True), 1):
        _draw(chart, point, shift=shift, number=f"{number}" if named else "")
    left_out = len(runs) - sum(point.repeats for point in points)
    caption = "ε against the public, whatever the data are. Lines are 95 % intervals: " + (
        "the wider of Student's t over repeats and Wilson's of the test inputs; pale dots are the repeats."
        if any(point.repeats > 1 for point in points)
        else "Wilson's, of the inputs that tested the student."
    )
    if left_out:
        caption += f" Without {left_out} of {len(runs)} runs: ε or accuracy is not known there."
    words = ", ".join(f"{share_text(point.accuracy)} at ε {epsilon_text(point.epsilon)}" for point in points)
    return Figure(
        title="Accuracy against ε",
        picture=chart.svg(f"Accuracy against ε: {words}."),
        caption=caption,
        legend=tuple(("c1", f"{at}: {point.name}") for at, point in enumerate(points, 1)) if named else (),
        header=("run", "ε", "accuracy", "95 %", "repeats"),
        rows=tuple(_row(point) for point in points),
    )


def _groups(runs: Sequence[RunToCompare]) -> list[list[RunToCompare]]:
    ordered = sorted(runs, key=lambda run: run.group)
    return [list(group) for _, group in groupby(ordered, key=lambda run: run.group)]


def _point(group: Sequence[RunToCompare]) -> _Point | None:
    known = [
        (epsilon, found.student, found.student_n)
        for epsilon, found in (
            (run.result.outcome.privacy.student, run.result.outcome.accuracy) for run in group
        )
        if epsilon is not None and found.student is not None and found.student_n
    ]
    if not known:
        return None
    shares = tuple(accuracy for _, accuracy, _ in known)
    mean = fmean(shares)
    low, high = wilson_interval(mean, min(count for *_, count in known))
    if len(shares) > 1:
        half = _student_t(len(shares) - 1) * stdev(shares) / math.sqrt(len(shares))
        # The repeats share their test inputs, so that their spread alone says nothing of how few these are.
        low, high = max(0.0, min(low, mean - half)), min(1.0, max(high, mean + half))
    return _Point(
        name=group[0].group,
        epsilon=max(epsilon for epsilon, _, _ in known),
        accuracy=mean,
        low=low,
        high=high,
        repeats=len(shares),
        each=shares if len(shares) > 1 else (),
    )


def _student_t(freedom: int) -> float:
    """The quantile of Student's t of a two-sided 95 % interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def _shifts(points: Sequence[_Point]) -> list[float]:
    """How far each point is drawn beside its place, so that those of one ε stand side by side."""
    before = [[other.epsilon for other in points[:place]] for place in range(len(points))]
    return [_SHIFT * others.count(point.epsilon) for others, point in zip(before, points, strict=True)]


def _draw(chart: Chart, point: _Point, *, shift: float, number: str) -> None:
    x = chart.x(point.epsilon) + shift
    for accuracy in point.each:
        chart.dot(x, chart.y(accuracy), "dot soft")
    chart.line(x, chart.y(point.low), x, chart.y(point.high), "line c1")
    tip = f"{point.name}: {share_text(point.accuracy)} at ε = {epsilon_text(point.epsilon)}"
    chart.dot(x, chart.y(point.accuracy), "dot c1", tip=tip)
    if number:  # the name itself, which is in the legend, would lie on what stands beside
        chart.text(x + 5.5, chart.y(point.accuracy) - 4, number, "t strong halo")


def _row(point: _Point) -> tuple[str, ...]:
    ends = f"{share_text(point.low).removesuffix(' %')} to {share_text(point.high)}"
    return (
        point.name,
        epsilon_text(point.epsilon),
        f"{100 * point.accuracy:.1f} %",
        ends,
        f"{point.repeats}",
    )
