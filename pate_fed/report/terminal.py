"""What a person sees while a study runs: bars on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from pate_fed.format import delta_text, duration_text, epsilon_text, printable
from pate_fed.report.result import RunResult
from pate_fed.report.text import fewer_labels

__all__ = [
    "Phase",
    "Progress",
    "Step",
    "accuracy_rows",
    "counted_phase",
    "make_progress",
    "print_summary",
    "tell_progress",
]

_LINE_EVERY_S = 10.0
_LINE_EVERY_SHARE = 0.1


class Phase(Protocol):
    """A part of the run with a known number of steps."""

    def advance(self, n: int = 1, note: str = "") -> None:
        """So many more steps are done; the note, if any, replaces the one before. Safe from any thread."""


class Progress(Protocol):
    """What the coordinator tells about its work; never a name together with private data."""

    def phase(self, name: str, total: int) -> AbstractContextManager[Phase]:
        """A part of the run with `total` steps, shown until the block ends."""

    def log(self, text: str) -> None:
        """A line between the bars, such as a warning."""


def make_progress(quiet: bool, stream: TextIO | None = None) -> Progress:
    """Bars where `stream` (default: standard error) is a terminal, else plain lines; silent when quiet."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return _Silent()
    return _Bars(stream) if stream.isatty() else _Lines(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a callback hears of a run: a phase's steps so far and in all, or a line such as a warning."""

    phase: str = ""
    done: int = 0
    total: int = 0
    note: str = ""


def tell_progress(heard: Callable[[Step], None]) -> Progress:
    """Progress that calls a function, from whichever thread works; one call at a time."""
    return _Told(heard)


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


class _Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        yield self

    def advance(self, n: int = 1, note: str = "") -> None:
        """Nothing to show."""

    def log(self, text: str) -> None:
        """Nothing to show."""


class _Told:
    """Calls a function with every step."""

    def __init__(self, heard: Callable[[Step], None]) -> None:
        self._heard, self._lock = heard, threading.RLock()

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        counted = _Counted(name, total, self._tell)
        counted.advance(0)
        yield counted

    def log(self, text: str) -> None:
        self._tell(Step(note=text))

    def _tell(self, step: Step) -> None:
        with self._lock:
            self._heard(step)


class _Counted:
    def __init__(self, name: str, total: int, tell: Callable[[Step], None]) -> None:
        self._name, self._total, self._tell = name, total, tell
        self._lock = threading.Lock()
        self._done = 0

    def advance(self, n: int = 1, note: str = "") -> None:
        with self._lock:
            self._done += n
            done = self._done
        self._tell(Step(phase=self._name, done=done, total=self._total, note=note))


class _Lines:
    """Plain lines: one when a phase ends, and on the way one for a tenth done, at most every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        line = _Line(name, total, self.log, self._clock)
        try:
            yield line
        finally:
            line.end()

    def log(self, text: str) -> None:
        with self._lock:
            print(printable(text), file=self._stream, flush=True)


class _Line:
    def __init__(self, name: str, total: int, log: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._name, self._total, self._log, self._clock = name, total, log, clock
        self._lock = threading.Lock()
        self._done, self._note = 0, ""
        self._began = self._said_at = clock()
        self._said_share = 0.0

    def advance(self, n: int = 1, note: str = "") -> None:
        with self._lock:
            self._done += n
            self._note = note or self._note
            now, share = self._clock(), self._done / max(self._total, 1)
            due = now - self._said_at >= _LINE_EVERY_S and share - self._said_share >= _LINE_EVERY_SHARE
            if not due or share >= 1:
                return
            self._said_at, self._said_share = now, share
            left = (now - self._began) * (1 - share) / share
            text = f", about {duration_text(left)} left"
        self._tell(text)

    def end(self) -> None:
        self._tell(f" in {duration_text(self._clock() - self._began)}")

    def _tell(self, text: str) -> None:
        note = f" ({self._note})" if self._note else ""
        self._log(f"{self._name}: {self._done}/{self._total}{text}{note}")


class _Bars:
    """Rich's bars. One display at a time: it starts with the first open phase and stops with the last."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._lock = threading.RLock()
        self._display: Any = None
        self._open = 0

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        with self._lock:
            if self._display is None:
                self._display = _display(self._console)
                self._display.start()
            self._open += 1
            bar = _Bar(self._display, printable(name), total)
        try:
            yield bar
        finally:
            with self._lock:
                bar.end()
                self._open -= 1
                if not self._open:
                    self._display.stop()
                    self._display = None

    def log(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)


class _Bar:
    def __init__(self, display: Any, name: str, total: int) -> None:
        self._display = display
        self._task = display.add_task(name, total=total, note="")

    def advance(self, n: int = 1, note: str = "") -> None:
        extra = {"note": printable(note)} if note else {}
        self._display.update(self._task, advance=n, **extra)

    def end(self) -> None:
        self._display.stop_task(self._task)
        self._display.refresh()


def _display(console: Any) -> Any:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description:<10}", markup=False),
        progress.BarColumn(bar_width=30),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False, style="dim"),
        console=console,
        refresh_per_second=5,
    )


def print_summary(result: RunResult, stream: TextIO | None = None) -> None:
    """A short table of the run's figures on `stream` (default: standard error); plain text off a terminal."""
    stream = sys.stderr if stream is None else stream
    rows = _summary(result)
    if not stream.isatty():
        print("\n".join(f"{name:<24}{printable(value)}" for name, value in rows), file=stream, flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(printable(value)))
    Console(file=stream).print(table)


def _summary(result: RunResult) -> list[tuple[str, str]]:
    study, terms, outcome = result.study, result.study.terms, result.outcome
    accuracy, privacy = outcome.accuracy, outcome.privacy
    teachers = f", {terms.num_teachers} teachers" if terms.num_teachers else ""
    parties = f"{terms.num_clients} hospitals{teachers}"
    if result.left_out:
        parties += f"; {len({left.party for left in result.left_out})} left out at least once"
    private = f"◆ {accuracy.votes_text} (from private votes: do not publish)"
    unit = f"δ={delta_text(terms.delta)}, {terms.privacy.unit}, {terms.privacy.adjacency}"
    public = _epsilon(privacy.student, privacy.student_reason)
    fixed = privacy.spent is not None and result.queries_asked > 0  # else it is what nothing cost
    rows = [
        ("study", f"{terms.study} ({study.dataset}, {terms.num_classes} classes)"),
        ("parties", parties),
        ("queries", f"{result.queries_asked} asked, {result.queries_answered} answered"),
        *([("warning", fewer)] if (fewer := fewer_labels(result)) else []),
        ("accuracy", f"labels {accuracy.labels_text}"),
        *accuracy_rows(result),
        *(("warning", text) for text in outcome.cautions),
        *([("", private)] if (accuracy.teacher_mean, accuracy.ensemble) != (None, None) else []),
        ("ε against the public", f"{public} at {unit}"),
        *([("", f"fixed beforehand; {_epsilon(privacy.spent)} was spent")] if fixed else []),
        ("ε against coordinator", f"{_epsilon(privacy.coordinator)}: it sees {study.coordinator_sees}"),
    ]
    if study.claim is not None:
        rows.append(("claimed", study.claim.warning))
    if not study.noise_private:
        rows.append(("noise", f"not private: {study.noise.removeprefix('not private: ')}"))
    if outcome.seconds.total is not None:
        rows.append(("time", duration_text(outcome.seconds.total)))
    if outcome.reason:
        rows.append((outcome.status, outcome.reason))
    return rows


def accuracy_rows(result: RunResult) -> list[tuple[str, str]]:
    """The student's accuracy, also by class, how it was tested, and what it does not say."""
    accuracy, name = result.outcome.accuracy, result.study.class_name
    rows, weakest = [("", f"student {accuracy.student_text}")], accuracy.weakest
    if weakest is not None and len(accuracy.recall) > 1:
        least = f"least recall: {name(weakest.number)}, {weakest.text}"
        rows.append(("", f"balanced accuracy {accuracy.balanced_text}; {least}"))
    tested = accuracy.how_tested(result.study.inputs)
    if accuracy.tested.not_asked or accuracy.tested.left_out or accuracy.tested.seen_unlabelled:
        rows.append(("", tested))
    return rows + [("warning", text) for text in accuracy.warnings(name)]


def _epsilon(value: float | None, reason: str | None = None) -> str:
    return epsilon_text(value, unbounded=f"unknown ({reason})" if reason else "unbounded")
