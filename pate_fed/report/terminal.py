"""What a person sees while a study runs: bars on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, TextIO

from pate_fed.format import (
    delta_text,
    duration_text,
    epsilon_text,
    interval_text,
    printable,
    right_text,
    share_text,
)
from pate_fed.report.result import RunResult
from pate_fed.report.text import fewer_labels

_LINE_EVERY_S = 10.0
_LINE_EVERY_SHARE = 0.1


class Phase:
    """A part of the run: it counts the steps that are done, and gives them to a function that shows them.

    `show` is called with the steps so far, how many of these are new, and the note; one call at a time.
    """

    def __init__(self, show: Callable[[int, int, str], object] = lambda done, n, note: None) -> None:
        self._show, self._lock, self._done = show, threading.Lock(), 0

    def advance(self, n: int = 1, note: str = "") -> None:
        """So many more steps are done; the note, if any, replaces the one before. Safe from any thread."""
        with self._lock:
            self._done += n
            self._show(self._done, n, note)


class Progress:
    """What the coordinator tells about its work, never a name together with private data; this shows none."""

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        """A part of the run with `total` steps, shown until the block ends."""
        yield Phase()

    def log(self, text: str) -> None:
        """A line between the bars, such as a warning."""

    def status(self, text: str) -> None:
        """What holds of the run from now on, such as ε so far: beside every bar, or a line of its own."""
        self.log(text)


def make_progress(quiet: bool, stream: TextIO | None = None) -> Progress:
    """Bars where `stream` (default: standard error) can draw them, else plain lines; silent when quiet."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Progress()
    return _Bars(stream) if can_draw(stream) else _Lines(stream)


def can_draw(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which lines can be drawn again: not a file, and not TERM=dumb."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a callback hears of a run: a phase's steps so far and in all, or a line such as a warning."""

    phase: str = ""
    done: int = 0
    total: int = 0
    note: str = ""


def tell_progress(heard: Callable[[Step], None], beside: Progress) -> Progress:
    """Progress that also calls a function, from whichever thread works; one call at a time."""
    return _Told(heard, beside)


@contextmanager
def counted_phase(progress: Progress, name: str) -> Iterator[Callable[[int, int], None]]:
    """A phase for work that reports (done, total); it is shown only if such a report comes."""
    with ExitStack() as opened:
        shown: list[Phase] = []
        before = 0

        def report(done: int, total: int) -> None:
            nonlocal before
            if not shown:
                shown.append(opened.enter_context(progress.phase(name, total)))
            shown[0].advance(done - before)
            before = done

        yield report


class _Told(Progress):
    """Calls a function with every step, and shows it beside."""

    def __init__(self, heard: Callable[[Step], None], beside: Progress) -> None:
        self._heard, self._beside, self._lock = heard, beside, threading.RLock()

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        with self._beside.phase(name, total) as shown:

            def show(done: int, n: int, note: str) -> None:
                shown.advance(n, note)
                self._tell(Step(phase=name, done=done, total=total, note=note))

            counted = Phase(show)
            counted.advance(0)
            yield counted

    def log(self, text: str) -> None:
        self._beside.log(text)
        self._tell(Step(note=text))

    def status(self, text: str) -> None:
        self._beside.status(text)
        self._tell(Step(note=text))

    def _tell(self, step: Step) -> None:
        with self._lock:
            self._heard(step)


class _Lines(Progress):
    """Plain lines: one when a phase ends, and on the way one for a tenth done, at most every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._lock = stream, clock, threading.Lock()

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        began = said_at = self._clock()
        done, said, note = 0, 0.0, ""

        def tell(text: str) -> None:
            self.log(f"{name}: {done}/{total}{text}{f' ({note})' if note else ''}")

        def show(so_far: int, n: int, news: str) -> None:
            nonlocal done, note, said, said_at
            done, note = so_far, news or note
            now, share = self._clock(), done / max(total, 1)
            due = now - said_at >= _LINE_EVERY_S and share - said >= _LINE_EVERY_SHARE
            if due and share < 1:
                said_at, said = now, share
                tell(f", about {duration_text((now - began) * (1 - share) / share)} left")

        try:
            yield Phase(show)
        finally:
            tell(f" in {duration_text(self._clock() - began)}")

    def log(self, text: str) -> None:
        with self._lock:
            print(printable(text), file=self._stream, flush=True)


class _Bars(Progress):
    """Rich's bars. One display at a time: it starts with the first open phase and stops with the last."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console, self._lock = Console(file=stream), threading.RLock()
        self._display: Any = None
        self._open, self._status = 0, ""

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        with self._lock:
            if self._display is None:
                self._display = _display(self._console)
                self._display.start()
            self._open, display = self._open + 1, self._display
            first = {"note": "", "status": self._status, "count": f"0/{total:,}"}
            task = display.add_task(printable(name), total=total, **first)

        def show(done: int, n: int, note: str) -> None:
            extra = {"note": printable(note)} if note else {}
            display.update(task, advance=n, count=f"{done:,}/{total:,}", **extra)

        try:
            yield Phase(show)
        finally:
            with self._lock:
                display.stop_task(task)
                display.refresh()
                self._open -= 1
                if not self._open:
                    display.stop()
                    self._display = None

    def log(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)

    def status(self, text: str) -> None:
        with self._lock:
            self._status = printable(text)
            for task in () if self._display is None else self._display.tasks:
                if not task.finished:
                    self._display.update(task.id, status=self._status)


_NAME, _COUNT = 21, 13  # columns of a phase's name and count; every display has the same, so bars align
_NARROW = 100


def _display(console: Any) -> Any:
    """One line a phase: its name, bar, count, time so far and left, ε so far, and a note if there is one."""
    from rich import progress

    narrow = console.width < _NARROW
    times = [progress.TimeElapsedColumn(), progress.TimeRemainingColumn()]
    columns = [
        progress.TextColumn(f"{{task.description:<{_NAME}}}", markup=False),
        progress.BarColumn(bar_width=10 if narrow else 24),
        progress.TextColumn(f"{{task.fields[count]:>{_COUNT}}}", markup=False, style="progress.download"),
        *(times[:1] if narrow else times),
        progress.TextColumn("{task.fields[status]}", markup=False),
        progress.TextColumn("{task.fields[note]}", markup=False, style="dim"),
    ]
    return progress.Progress(*columns, console=console, refresh_per_second=5)


def print_summary(result: RunResult, stream: TextIO | None = None) -> None:
    """The run's figures as one table on `stream` (default: standard error), with n and 95 % intervals.

    Lines that are longer than a terminal is wide go on below their text, not below their name.
    """
    stream = sys.stderr if stream is None else stream
    width = get_terminal_size().columns if stream.isatty() else 0
    lines = [*_facts(result, width), "", *_figures(result, width), "", *_privacy(result, width)]
    print("\n".join(line.rstrip() for line in lines), file=stream, flush=True)


_FIRST = 23  # letters of the first column


def _row(name: str, text: str, width: int) -> list[str]:
    """A name and its text; folded below its text where the terminal has so few columns."""
    name, text = printable(name), printable(text)
    name = name if len(name) < _FIRST else f"{name[: _FIRST - 2]}… "
    folded = wrap(text, width - _FIRST) if width > 2 * _FIRST else [text]
    return [f"{name if not number else '':<{_FIRST}}{line}" for number, line in enumerate(folded or [""])]


def _facts(result: RunResult, width: int) -> list[str]:
    study, terms, outcome = result.study, result.study.terms, result.outcome
    parties = f"{terms.num_clients:,}"
    if terms.num_teachers:
        parties += f", with {terms.num_teachers:,} teachers"
    if result.left_out:
        parties += f"; {len({left.party for left in result.left_out})} left out at least once"
    asked, answered = result.queries_asked, result.queries_answered
    rows = [
        ("study", f"{terms.study} ({study.dataset}, {study.words.outcomes})"),
        *study.words.summary(parties, asked=asked, answered=answered, apart=bool(study.backend)),
    ]
    if outcome.seconds.total is not None:
        rows.append(("time", duration_text(outcome.seconds.total)))
    fewer = fewer_labels(result)
    warnings = [*([fewer] if fewer else []), *outcome.accuracy.warnings(study.class_name), *outcome.cautions]
    rows += [("warning", text) for text in warnings]
    if outcome.reason:
        rows.append((outcome.status, outcome.reason))
    return [line for name, text in rows for line in _row(name, text, width)]


def _figures(result: RunResult, width: int) -> list[str]:
    """Shares of right answers, each with its number and interval where it has them."""
    found = result.outcome.accuracy
    if found.no_class is not None:
        return [
            line
            for name, value, ends in found.no_class.rows
            for line in _row(name, f"{value:.4g} ({ends[0]:.4g} to {ends[1]:.4g})", width)
        ]
    rows = [("", "right", "n", "95 % interval", "majority")]
    known = [
        ("labels", found.labels, found.labels_n, found.labels_interval, found.labels_majority),
        ("student", found.student, found.student_n, found.student_interval, found.majority),
        ("teachers ◆", found.teacher_mean, found.votes_n, None, found.votes_majority),
        ("ensemble ◆", found.ensemble, found.votes_n, found.ensemble_interval, found.votes_majority),
    ]
    for name, share, count, interval, majority in known:
        if share is None:
            continue
        ends, guess = interval_text(interval, count), right_text(majority, count)
        rows.append((name, right_text(share, count), _number(count), ends, guess))
        if name == "student" and len(found.recall) > 1:
            rows += _by_class(result)
    if len(rows) == 1:
        own = found.own_records is not None and found.own_records.accuracy is not None
        return _row("accuracy", "on hospitals' own records alone, above" if own else "not known", width)
    lines = [f"{row[0]:<{_FIRST}}{row[1]:>10}{row[2]:>9}  {row[3]:<16}{row[4]}" for row in rows]
    tested = found.how_tested(result.study.inputs, made_of=result.study.words.made_of)
    marked = any("◆" in row[0] for row in rows)
    notes = ["◆ computed from private votes: for the analyst, do not publish"] if marked else []
    notes += [tested] if tested else []
    return [*lines, *(line for note in notes for line in _row("", note, width))]


def _by_class(result: RunResult) -> list[tuple[str, str, str, str, str]]:
    """The student's balanced accuracy, and the class that it knows least."""
    found, weakest = result.outcome.accuracy, result.outcome.accuracy.weakest
    if weakest is None:
        return []
    fewest = min(each.count for each in found.recall)
    ranking = found.ranking
    rows = []
    if ranking is not None:
        low, high = ranking.interval
        rows.append(("  AUC", f"{ranking.auc:.3f}", "", f"{low:.3f} to {high:.3f}", ""))
    name = printable(result.study.class_name(weakest.number))
    least = f"least recall: {name}"
    return [
        *rows,
        (
            "  balanced",
            share_text(found.balanced_accuracy, fewest),
            "",
            interval_text(found.balanced_interval, fewest),
            "",
        ),
        (
            f"  {least if len(least) < _FIRST - 2 else f'least: {name}'}"[: _FIRST - 1],
            right_text(weakest.share, weakest.count),
            _number(weakest.count),
            interval_text(weakest.interval, weakest.count),
            "",
        ),
    ]


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _privacy(result: RunResult, width: int) -> list[str]:
    study, terms, privacy = result.study, result.study.terms, result.outcome.privacy
    unit = f"δ={delta_text(terms.delta)}, {terms.privacy.unit}, {terms.privacy.adjacency}"
    fixed = privacy.spent is not None and result.queries_asked > 0  # else it is what nothing cost
    spent = f"; fixed beforehand, {_epsilon(privacy.spent)} was spent" if fixed else ""
    note = f"; {privacy.coordinator_note}" if privacy.coordinator_note else ""
    rows = [
        ("ε against the public", f"{_epsilon(privacy.student, privacy.student_reason)} at {unit}{spent}"),
        ("ε against coordinator", f"{_epsilon(privacy.coordinator)}: it sees {study.coordinator_sees}{note}"),
    ]
    rows += (("claimed", each.warning) for each in study.assumptions.each)
    if not study.noise_private:
        rows.append(("noise", f"not private: {study.noise.removeprefix('not private: ')}"))
    return [line for name, text in rows for line in _row(name, text, width)]


def _epsilon(value: float | None, reason: str | None = None) -> str:
    return epsilon_text(value, unbounded=f"unknown ({reason})" if reason else "unbounded")
