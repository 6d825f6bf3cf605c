"""A run under way as a page on loopback that updates itself: `pate-fed watch RUN_DIR --web`.

What keeps others out. It listens on loopback alone. The address has a random token, compared in constant
time; whoever does not have it gets 404 for everything. The Host header must name loopback, so that no page of
another site that resolves to 127.0.0.1 (DNS rebinding) reads it. It takes GET alone, and its policy forbids
the page to load or send anything elsewhere. At most 16 connections are open, and who is silent is let go.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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


MOST_CONNECTIONS = 16
_REQUEST_S = 10.0  # to say what is wanted, and to take what is sent
_ALIVE_S = 5.0  # a comment now and then finds out who has gone
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


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


class WatchServer(ThreadingHTTPServer):
    """Serves the page, its style and script, and its news, below a random token.

    `page` gives the whole page as it is; `files` are texts by name with their type.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CONNECTIONS  # those that are turned away are told so at once

    def __init__(self, news: News, page: Callable[[], str], files: Mapping[str, tuple[str, str]]) -> None:
        self.news, self.page, self.files = news, page, files
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take the connection, unless as many as are meant are open."""
        if not self._free.acquire(blocking=False):
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def _turn_away(self, request: socket.socket) -> None:
        request.setblocking(False)  # who does not read must not keep the others waiting
        with suppress(OSError):  # it may be gone already
            request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that leaves in the middle is no fault."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "pate-fed", ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        """The page, what belongs to it, or its news."""
        host = self.headers.get_all("Host") or []
        if len(host) != 1 or not _LOOPBACK.fullmatch(host[0]):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        token, slash, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not known or not slash:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif name == "":
            self._send(self.server.page(), "text/html")
        elif name == "events":
            self._stream()
        elif name in self.server.files:
            self._send(*self.server.files[name])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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

    def end_headers(self) -> None:
        """Every answer says what the page may do, and that the connection ends."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A status without a word of what was asked for; another method than GET is not allowed."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address has the token."""
