"""A run under way as a page in the report's look: its parts, each by itself, so that only news are sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pate_fed.format import counted, delta_text, duration_text, epsilon_text, share_text
from pate_fed.report import curves, plots, quality
from pate_fed.report.log import Taught, Voted
from pate_fed.report.page import asset, in_columns, render_page
from pate_fed.report.svg import WIDTH, Canvas, Scale
from pate_fed.report.watching import (
    Snapshot,
    heard_of,
    labels_by_class,
    last_epsilon,
    left_out,
    stages_of,
    waited_for,
)

PARTS = ("head", "heard", "course", "numbers", "hospitals", "figures")
"""The page's parts by the ids of their elements, in reading order."""

_MOST_CLASSES = 20
_MOST_ROWS = 50
_MOST_BATCHES = 10


def render_watch_page(now: Snapshot | None, run_dir: Path, *, analyst: bool = False) -> str:
    """The whole page; it loads its style, its script and its news from the server that gave it."""
    parts = render_parts(now, run_dir, analyst=analyst)
    return render_page("watch.html.jinja", {"parts": parts, "run_dir": str(run_dir), "page": "whole"})


def render_parts(now: Snapshot | None, run_dir: Path, *, analyst: bool = False) -> dict[str, str]:
    """Each part's HTML by its id; equal moments of a run give equal text."""
    values = {"now": now, "run_dir": str(run_dir), "analyst": analyst}
    if now is not None:
        values |= _values(now, analyst=analyst)
    render = partial(render_page, "watch_parts.html.jinja")
    return {part: render({**values, "part": part}) for part in PARTS}


def watch_style() -> str:
    """The report's style sheet."""
    return asset("report.css")


def watch_script() -> str:
    """What puts news in their places."""
    return asset("watch.js")


def _values(now: Snapshot, *, analyst: bool) -> dict[str, Any]:
    result, terms = now.result, now.result.study.terms
    spent, cap = last_epsilon(now), result.study.guaranteed
    open_ = waited_for(now)
    return {
        "result": result,
        "study": result.study,
        "over": now.over,
        "status": result.outcome.status if now.over else "running",
        "heard": heard_of(now),
        "stages": stages_of(now),
        "spent": epsilon_text(spent),
        "cap": None if cap is None else epsilon_text(cap),
        "share": 0.0 if not cap else min(1.0, spent / cap),
        "delta": delta_text(terms.delta),
        "student": _student(now),
        "ready": now.last(Taught),
        "batches": [_batch(event) for event in now.told if isinstance(event, Voted)][-_MOST_BATCHES:],
        "open": open_,
        "patience": "" if open_ is None else duration_text(open_.patience_s),
        "left_out": left_out(now)[-_MOST_ROWS:],
        "columns": in_columns(_figures(now, analyst=analyst)),
        "private": _private(now) if analyst else [],
    }


def _batch(event: Voted) -> tuple[str, str, str, str]:
    queries = f"{event.queries:,}" if event.queries else "-"
    return f"{event.batch}", f"{event.clients:,}", queries, duration_text(event.seconds)


def _student(now: Snapshot) -> tuple[str, str]:
    """The student's accuracy as it stands, and what belongs to it."""
    result, accuracy = now.result, now.result.outcome.accuracy
    if now.over and accuracy.student is not None:
        return share_text(accuracy.student, accuracy.student_n), accuracy.student_text
    points = [each.test_accuracy for each in result.epochs if each.test_accuracy is not None]
    if not points:
        return "-", "not tested yet"
    return share_text(points[-1], result.study.test_size), f"after {counted(len(points), 'epoch')}"


def _figures(now: Snapshot, *, analyst: bool) -> list[plots.Figure | None]:
    result = now.result
    return [
        plots.epsilon_curve(result),
        _class_bars(now),
        curves.test_accuracy_curve(result),
        quality.accuracy_bars(result, publishable=not analyst) if now.over else None,
        plots.top_vote_histogram(result) if analyst else None,
    ]


def _class_bars(now: Snapshot) -> plots.Figure | None:
    """Released labels by class; of many classes the most frequent are drawn."""
    counts = labels_by_class(now)
    if not sum(counts):
        return None
    name = now.result.study.class_name
    most = sorted(range(len(counts)), key=lambda place: -counts[place])[:_MOST_CLASSES]
    shown = sorted(most)
    canvas = Canvas(24.0 * len(shown) + 8)
    left = 16 + 7.6 * max(4, *(len(name(place)[:16]) for place in shown))
    x = Scale(0, max(counts), left, WIDTH - 60)
    for row, place in enumerate(shown):
        y = 4 + 24 * row
        canvas.text(left - 8, y + 14, name(place)[:16], "t ink", anchor="end")
        canvas.rect(x(0), y, max(x(counts[place]) - x(0), 1), 18, "fill c1")
        canvas.text(x(counts[place]) + 7, y + 14, f"{counts[place]:,}", "t strong")
    text = ", ".join(f"{name(place)} {counts[place]:,}" for place in shown)
    empty = sum(not count for count in counts)
    return plots.Figure(
        title="Released labels by class",
        picture=canvas.svg(f"Released labels by class: {text}."),
        caption=f"{empty} of {len(counts)} classes have none yet." if empty else "",
        header=("class", "labels"),
        rows=tuple((name(place), f"{count:,}") for place, count in enumerate(counts)),
    )


def _private(now: Snapshot) -> list[tuple[str, str]]:
    """Figures from private votes, for the analyst."""
    outcome = now.result.outcome
    found = []
    if outcome.privacy.data_dependent_do_not_publish is not None:
        found.append(("data-dependent ε", epsilon_text(outcome.privacy.data_dependent_do_not_publish)))
    if outcome.accuracy.ensemble is not None:
        found.append(("accuracy of the votes", outcome.accuracy.votes_text))
    return found
