"""`log.jsonl`: what happened, one JSON object a line, and the run's result read back from it.

A line is `{"event": NAME, "time": UTC in ISO 8601, "publish": bool, ...}` with the fields of the value that
was written. `publish` is false where figures were computed from private votes: they are for the analyst. Only
the values in `EVENTS` can be written, none of which can hold a vote vector or a total.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate_fed.disk import MOST_TABLE, read_file
from pate_fed.errors import InputError, IntegrityError, naming_refusal
from pate_fed.report.result import (
    Epoch,
    Evaluation,
    LabelStudyRecord,
    LeftOut,
    Outcome,
    PrivacyFigures,
    ReleasedBatch,
    RunResult,
    Samples,
    Spending,
    StudyRecord,
)
from pate_fed.runtime.run_dir import LOG_NAME
from pate_fed.structure import from_plain, to_plain
from pate_fed.structure.faults import Fault

CONNECT = "connect"
"""The phase in which hospitals' processes are waited for."""
MOST_NAMED = 20
"""Of more parties that are waited for the number alone is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """Parties agreed to the terms and have their teachers ready."""

    clients: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """Parties answered a batch of `queries`; in a simulation on `measured` test inputs as well.

    With class sums `queries` is the number of features that were summed.
    """

    batch: int
    clients: int
    queries: int
    seconds: float
    measured: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many of `asked` parties have answered by now, and which are waited for, if they are few.

    They have `patience_s` seconds from the question on. It is told now and then, for whoever watches. In the
    phase `CONNECT` those who answered are connected: `present` names them, and `not_admitted` counts the
    seats that nobody was admitted to yet.
    """

    phase: str
    asked: int
    answered: int
    present: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    not_admitted: int = 0
    patience_s: float

    @property
    def text(self) -> str:
        """It in words, names among them."""
        if self.phase == CONNECT:
            told = f"{self.answered:,} of {self.asked:,} connected"
            told += f" ({', '.join(self.present)})" if self.present else ""
        else:
            told = f"{self.answered:,} of {self.asked:,} hospitals answered ({self.phase})"
        told += f"; not yet: {', '.join(self.missing)}" if self.missing else ""
        return told + (f"; not admitted yet: {self.not_admitted:,}" if self.not_admitted else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyWork:
    """Simulated parties' own work in seconds a process: teaching and voting without the engine.

    `engine_seconds` is what Flower, Ray and messages took, from the engine's start to its end.
    """

    seconds: float
    engine_seconds: float


Event = (
    StudyRecord
    | LabelStudyRecord
    | Taught
    | Voted
    | Waiting
    | PartyWork
    | ReleasedBatch
    | Spending
    | LeftOut
    | Epoch
    | Evaluation
    | Samples
    | Fault
    | Outcome
)

EVENTS: dict[str, type[Any]] = {
    "study": StudyRecord,
    "label_study": LabelStudyRecord,
    "teach": Taught,
    "vote": Voted,
    "waiting": Waiting,
    "party_work": PartyWork,
    "release": ReleasedBatch,
    "spending": Spending,
    "left_out": LeftOut,
    "epoch": Epoch,
    "evaluation": Evaluation,
    "samples": Samples,
    "fault": Fault,
    "outcome": Outcome,
}
_NAMES = {kind: name for name, kind in EVENTS.items()}
_ANALYST_ONLY = frozenset({"evaluation", "fault", "outcome"})


class RunLog(AbstractContextManager["RunLog"]):
    """Appends events to a log that only its owner can read; safe to use from several threads.

    Each event is one `write` of one whole line, so a killed process leaves at most one half line.

    Raises:
        InputError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._lock = threading.Lock()
        with naming_refusal(f"{path}: cannot be written"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # Where a run goes on after a crash the half line stays, but ends, so the next one is whole.
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            _write_all(self._file, b"\n")

    def write(self, event: Event) -> None:
        """Append one event; an InputError where the log was closed."""
        name = _NAMES[type(event)]
        head = {"event": name, "time": self._now().isoformat(timespec="milliseconds")}
        values = {**head, "publish": name not in _ANALYST_ONLY, **to_plain(event)}
        line = json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"
        with self._lock:
            if self._file < 0:
                raise InputError("the run's log was closed")
            _write_all(self._file, line.encode())

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __exit__(self, *error: object) -> None:
        self.close()


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def read_log(path: Path) -> Iterator[tuple[str, Event | None]]:
    """Time and event of every line, in order; the event is None where the line was cut off.

    Events of a kind that this version does not know are left aside.

    Raises:
        InputError: the file cannot be read.
        IntegrityError: a whole line holds an event with missing or wrong fields; the error names the line.
    """
    try:
        lines = read_file(path, most=MOST_TABLE).split(b"\n")
    except FileNotFoundError as error:
        raise InputError(f"{path.parent}: holds no run; give the --run-dir of one") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            yield "", None
            continue
        kind = EVENTS.get(values.get("event", "")) if isinstance(values, dict) else None
        if kind is not None:
            where = f"{path}, line {number}"
            event = from_plain(kind, values, where=where, error=IntegrityError, aside=True)
            yield str(values.get("time", "")), event


def read_result(run_dir: Path) -> RunResult:
    """The result of the run in a directory, from its log alone; also of a run that was killed.

    Raises:
        InputError: no log, or no study in it.
        IntegrityError: an event with missing or wrong fields.
    """
    path = run_dir / LOG_NAME
    found: dict[type, list[Any]] = {kind: [] for kind in EVENTS.values()}
    times, torn = [], 0
    for time, event in read_log(path):
        if event is None:
            torn += 1
        else:
            found[type(event)].append(event)
            times.append(time)
    studies = found[StudyRecord] + found[LabelStudyRecord]
    if not studies:
        raise InputError(f"{path}: holds no study, so there is nothing to report")
    return RunResult(
        study=studies[-1],
        outcome=_last(found[Outcome]) or _cut_off(studies[-1]),
        releases=tuple(found[ReleasedBatch]),
        epochs=tuple(found[Epoch]),
        evaluation=_last(found[Evaluation]) or Evaluation(),
        samples=_last(found[Samples]),
        engine_seconds=getattr(_last(found[PartyWork]), "engine_seconds", None),
        spending=_last(found[Spending]),
        left_out=tuple(found[LeftOut]),
        started=times[0],
        ended=times[-1],
        torn_lines=torn,
    )


def _last(values: list[Any]) -> Any:
    return values[-1] if values else None


def _cut_off(study: StudyRecord | LabelStudyRecord) -> Outcome:
    # The ledger is written before the log, so after a kill it may hold more than the log knows.
    reason = "the run was cut off before its end; the ledger says what was spent (pate-fed ledger show)"
    privacy = PrivacyFigures(student=study.guaranteed, student_reason=reason)
    return Outcome(status="aborted", reason=reason, privacy=privacy)
