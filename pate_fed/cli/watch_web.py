"""A run under way as a page on loopback that updates itself: `pate-fed watch RUN_DIR --web`.

The address has a random token, compared in constant time; whoever does not have it gets 404 for everything.
It takes GET alone. What else keeps others out is every page's on loopback (`loopback`).
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pate_fed.cli.loopback import LoopbackHandler, LoopbackServer
from pate_fed.format import counted, delta_text, duration_text, epsilon_text, share_text
from pate_fed.report import figures, plots
from pate_fed.report.html import in_columns, render_page
from pate_fed.report.log import Taught, Voted
from pate_fed.report.plots import WIDTH, Canvas, Scale
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
    if not (points := result.test_curve):
        return "-", "not tested yet"
    return share_text(points[-1][1], result.study.test_size), f"after {counted(len(points), 'epoch')}"


def _figures(now: Snapshot, *, analyst: bool) -> list[plots.Figure | None]:
    result = now.result
    return [
        plots.epsilon_curve(result),
        _class_bars(now),
        figures.test_accuracy_curve(result),
        figures.accuracy_bars(result, publishable=not analyst) if now.over else None,
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


_ALIVE_S = 5.0  # a comment now and then finds out who has gone


class News:
    """The page's parts as they are, and who waits for others; safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parts: dict[str, str] = {}
        self._over = self._closed = False

    def tell(self, parts: Mapping[str, str], *, over: bool) -> None:
        """The parts as they are from now on; `over` says that nothing more comes."""
        with self._changed:
            self._parts, self._over = dict(parts), over
            self._changed.notify_all()

    def close(self) -> None:
        """Let all go who wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether nobody is told any more."""
        return self._closed

    def wait(self, known: Mapping[str, str], *, seconds: float) -> tuple[dict[str, str], bool]:
        """What differs from what is `known`, once anything does or the time is up; whether all is over."""

        def news() -> dict[str, str]:
            return {part: text for part, text in self._parts.items() if known.get(part) != text}

        with self._changed:
            self._changed.wait_for(lambda: bool(news()) or self._over or self._closed, timeout=seconds)
            return news(), self._over


class WatchServer(LoopbackServer):
    """Serves the page, its style and script, and its news, below a random token.

    `page` gives the whole page as it is; `files` are texts by name with their type.
    """

    def __init__(self, news: News, page: Callable[[], str], files: Mapping[str, tuple[str, str]]) -> None:
        self.news, self.page, self.files = news, page, files
        self.token = secrets.token_urlsafe(24)
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"{self.origin}/{self.token}/"


class _Handler(LoopbackHandler):
    server: WatchServer
    may = "script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'none'"

    def do_GET(self) -> None:
        """The page, what belongs to it, or its news."""
        token, slash, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not known or not slash:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif name == "":
            self.send_text(self.server.page())
        elif name == "events":
            self._stream()
        elif name in self.server.files:
            self.send_text(*self.server.files[name])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _stream(self) -> None:
        """Server-sent events: each tells the parts that are new; the last one is called over."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        known: dict[str, str] = {}
        while not self.server.news.closed:
            news, over = self.server.news.wait(known, seconds=_ALIVE_S)
            known |= news
            text = f"data: {json.dumps(news)}\n\n" if news else ": still here\n\n"
            self.wfile.write((text + ("event: over\ndata: \n\n" if over else "")).encode())
            if over:
                return
