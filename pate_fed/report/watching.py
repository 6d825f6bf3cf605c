"""A run as it stands, from its log: phases, who was left out and why, ε spent, labels by class, the curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.format import counted, delta_text, duration_text, epsilon_text, share_text
from pate_fed.report.log import CONNECT, Taught, Voted, Waiting, read_log, read_result
from pate_fed.report.metrics import outcome_line
from pate_fed.report.result import (
    Epoch,
    LabelStudyRecord,
    LeftOut,
    Outcome,
    ReleasedBatch,
    RunResult,
    StudyRecord,
    reservations,
)
from pate_fed.report.run import Run
from pate_fed.runtime.run_dir import LOG_NAME

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30
_MOST_LEFT_OUT = 5
_MOST_CLASSES = 20

_Study = StudyRecord | LabelStudyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment. `told` are its events in order; `over` says that its outcome is among them."""

    path: Path
    result: RunResult
    told: tuple[object, ...]
    over: bool

    def last(self, kind: type) -> Any:
        """The latest event of a kind; None where there is none yet."""
        return next((event for event in reversed(self.told) if isinstance(event, kind)), None)


def read_snapshot(run_dir: Path) -> Snapshot | None:
    """The run in a directory; None while its log holds no study. Raises as `read_log`, or if none comes."""
    log = run_dir / LOG_NAME
    if not log.is_file():
        return None
    lines = [event for _, event in read_log(log)]
    told = tuple(event for event in lines if event is not None)
    begun = [place for place, event in enumerate(told) if isinstance(event, _Study)]
    if not begun and None in (lines if log.read_bytes().endswith(b"\n") else lines[:-1]):
        raise IntegrityError(f"{log}: is damaged: the study, with which it begins, cannot be read")
    if not begun:
        return None
    # A coordinator that goes on after a failure writes its study again, behind the outcome of before.
    over = any(isinstance(event, Outcome) for event in told[begun[-1] :])
    return Snapshot(path=run_dir, result=read_result(run_dir), told=told, over=over)


def snapshot_rows(now: Snapshot) -> list[tuple[str, str]]:
    """What is known, as names and texts in reading order; nothing in it comes from private votes."""
    study = now.result.study
    terms = study.terms
    parties = f"{study.words.mechanism}, {counted(terms.num_clients, 'hospital')}"
    return [
        ("study", f"{terms.study} ({study.dataset}, {study.words.outcomes}, {parties})"),
        ("phases", _phase(now)),
        ("run", heard_of(now)),
        *_parties(now),
        ("privacy", _privacy(now)),
        *_labels(now),
        *_student(now),
        *([("outcome", _outcome(now))] if now.over else []),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPhase:
    """A part of the study's course: `state` is done, now, or to come; `text` is what is known of it."""

    name: str
    state: str
    text: str = ""


def stages_of(now: Snapshot) -> list[WatchedPhase]:
    """The study's course, in order; all but one of its parts are behind it or to come."""
    names = _course(now)
    place = _current(now, names)
    texts = _stage_texts(now)
    return [
        WatchedPhase(
            name=name,
            state="done" if number < place else "now" if number == place else "to come",
            text=texts.get(name, "") if number <= place else "",
        )
        for number, name in enumerate(names)
    ]


_BEFORE = (CONNECT, "teach")  # phases before the first answer
_READY, _ANSWER, _RELEASE, _LEARN = "get ready", "answer", "release", "learn"


def _course(now: Snapshot) -> list[str]:
    course = [_READY, _ANSWER, _RELEASE, _LEARN]
    return course if now.result.study.words.prepares else course[1:]


def _current(now: Snapshot, names: Sequence[str]) -> int:
    """The place of what goes on; behind the last one where the run is over, and came so far."""
    result, terms = now.result, now.result.study.terms
    if now.over and result.outcome.status == "success":
        return len(names)
    last = next((event for event in reversed(now.told) if isinstance(event, _MILESTONES)), None)
    if isinstance(last, Epoch):
        return names.index(_LEARN)
    if isinstance(last, ReleasedBatch):
        full = result.queries_answered >= terms.labels or result.queries_asked >= terms.max_queries
        return names.index(_LEARN if full else _ANSWER)
    if isinstance(last, Voted):
        return names.index(_LEARN if result.releases else _RELEASE)
    if isinstance(last, Taught) or (isinstance(last, Waiting) and last.phase not in _BEFORE):
        return names.index(_ANSWER)
    return 0


_MILESTONES = (StudyRecord, LabelStudyRecord, Taught, Waiting, Voted, ReleasedBatch, Epoch)


def _stage_texts(now: Snapshot) -> dict[str, str]:
    """What is known of each stage, in a few words."""
    result, taught, voted = now.result, now.last(Taught), now.last(Voted)
    texts: dict[str, str] = {}
    if taught is not None:
        texts[_READY] = f"{taught.clients:,} in {duration_text(taught.seconds)}"
    if voted is not None:
        texts[_ANSWER] = counted(voted.clients, "hospital")
    if result.releases:
        texts[_RELEASE] = counted(result.queries_answered, "label")
    if result.epochs:
        texts[_LEARN] = f"epoch {result.epochs[-1].epoch}"
    if (open_ := waited_for(now)) is not None:
        name = _READY if open_.phase in _BEFORE and _READY in _course(now) else _ANSWER
        texts[name] = f"{open_.answered:,} of {open_.asked:,}"
    return texts


def waited_for(now: Snapshot) -> Waiting | None:
    """The question that is not answered by all yet; None where nothing is waited for."""
    last = next((event for event in reversed(now.told) if isinstance(event, (*_MILESTONES, Outcome))), None)
    return last if isinstance(last, Waiting) else None


def heard_of(now: Snapshot) -> str:
    """When the study began, and when it was last heard of; a killed one never says that it is over."""
    result = now.result
    if now.over:
        return f"{result.outcome.status} after {duration_text(result.outcome.seconds.total)}"
    return f"begun {_ago(result.started)} ago, last heard of {_ago(result.ended)} ago"


_SIGNS = {"done": "✓", "now": "▶", "to come": "·"}


def _phase(now: Snapshot) -> str:
    return "   ".join(
        f"{_SIGNS[stage.state]} {stage.name}" + (f" ({stage.text})" if stage.text else "")
        for stage in stages_of(now)
    )


def _ago(time: str) -> str:
    try:
        return duration_text(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()))
    except (ValueError, TypeError):  # a time without its zone: not one that a log of ours has
        return "-"


def _parties(now: Snapshot) -> Iterator[tuple[str, str]]:
    of, taught = now.result.study.terms.num_clients, now.last(Taught)
    if taught is not None:
        yield "ready", f"{taught.clients:,} of {of:,} hospitals in {duration_text(taught.seconds)}"
    for batch in [event for event in now.told if isinstance(event, Voted)][-3:]:
        yield "answered", f"{_voted(batch, now.result.study)}, of {of:,}"
    if (open_ := waited_for(now)) is not None:
        yield "waits for", _waiting(open_)
    left = left_out(now)
    for event in left[-_MOST_LEFT_OUT:]:
        yield "left out", _left_out(event)
    if len(left) > _MOST_LEFT_OUT:
        yield "", f"and {len(left) - _MOST_LEFT_OUT} before, in {LOG_NAME}"


def left_out(now: Snapshot) -> list[LeftOut]:
    """Hospitals whose answers did not count, and why, in order."""
    return [event for event in now.told if isinstance(event, LeftOut)]


def last_epsilon(now: Snapshot) -> float:
    """The ε that is spent so far, data-independent; 0 before the first release."""
    result = now.result
    spent = next((each.epsilon for each in reversed(result.releases) if each.epsilon is not None), 0.0)
    if not result.releases and now.over and result.outcome.privacy.spent is not None:
        spent = result.outcome.privacy.spent
    return spent


def _privacy(now: Snapshot) -> str:
    study, spent = now.result.study, last_epsilon(now)
    delta, cap = delta_text(study.terms.delta), study.guaranteed
    seeded = "".join(f"; {each}" for each in reservations(study))
    if cap is None:
        return f"ε {epsilon_text(spent)} spent at δ = {delta}, without a bound beforehand{seeded}"
    full = round(_WIDTH * (min(1.0, spent / cap) if cap > 0 else 1.0))
    told = f"ε {epsilon_text(spent)} spent, never above {epsilon_text(cap)}, at δ = {delta}{seeded}"
    return f"{'█' * full}{'░' * (_WIDTH - full)} {told}"


def _labels(now: Snapshot) -> Iterator[tuple[str, str]]:
    result = now.result
    if not result.releases:
        return
    asked, answered = result.queries_asked, result.queries_answered
    yield "labels", result.study.words.so_far(asked=asked, answered=answered)
    counts = labels_by_class(now)
    if counts and len(counts) <= _MOST_CLASSES:
        name = result.study.class_name
        yield "by class", ", ".join(f"{name(place)} {count:,}" for place, count in enumerate(counts))
    elif counts:
        empty = sum(not count for count in counts)
        yield "by class", f"{min(counts):,} to {max(counts):,} each; {empty} of {len(counts)} have none"


def labels_by_class(now: Snapshot) -> list[int]:
    """Released labels of each class; empty while there are none."""
    result = now.result
    if not result.study.words.labels_on_ledger or result.study.words.target or not result.releases:
        return []
    try:
        held = Run(now.path).labels
    except InputError:
        return list(_in_ledger(now.path, len(result.releases), result.study.terms.num_classes))
    return _count(held.label[held.answered], result.study.terms.num_classes)


@lru_cache(maxsize=1)
def _in_ledger(path: Path, releases: int, classes: int) -> tuple[int, ...]:
    """The same from the ledger, which has them before labels.npz; read once for each release."""
    try:
        _, answered, label = Run(path).ledger.released()
    except PateFedError:
        return ()  # it is not there yet, or being written; whoever asks for its check is told of faults
    return tuple(_count(label[answered], classes))


def _count(label: NDArray[np.int64], classes: int) -> list[int]:
    return [int(each) for each in np.bincount(label, minlength=classes)]


def _student(now: Snapshot) -> Iterator[tuple[str, str]]:
    result = now.result
    if points := [accuracy for _, accuracy in result.test_curve]:
        last = share_text(points[-1], result.study.test_size)
        yield "student", f"{sparkline(points)} {last} right after {counted(len(points), 'epoch')}"
    accuracy = result.outcome.accuracy
    if now.over and (accuracy.student is not None or accuracy.no_class is not None):
        yield ("student" if not points else ""), accuracy.student_text


def sparkline(values: Sequence[float], *, most: int = 40) -> str:
    """Values from 0 to 1 as bars, at most so many, the later ones of each stretch."""
    count = min(most, len(values))
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def describe_event(event: object, now: Snapshot) -> str | None:
    """One event as a line; None for those that are for the report."""
    terms = now.result.study.terms
    if isinstance(event, _Study):
        cap = event.guaranteed
        told = "no ε is fixed beforehand" if cap is None else f"ε never above {epsilon_text(cap)}"
        return "; ".join([f"study: {snapshot_rows(now)[0][1]}", told, *reservations(event)])
    if isinstance(event, Taught):
        return (
            f"ready: {event.clients:,} of {terms.num_clients:,} hospitals in {duration_text(event.seconds)}"
        )
    if isinstance(event, Voted):
        return f"answered: {_voted(event, now.result.study)}"
    if isinstance(event, Waiting):
        # As a line each of these would bury the others; who is late in the end is left out by name.
        news = event.phase == CONNECT or (event.missing and event.answered)
        return f"waiting: {_waiting(event)}" if news else None
    if isinstance(event, LeftOut):
        return f"left out: {_left_out(event)}"
    if isinstance(event, ReleasedBatch):
        assumed = now.result.study.assumptions
        cost = "" if event.epsilon is None else f"; ε {epsilon_text(event.epsilon)} spent so far"
        cost += f" ({assumed.short})" if assumed and cost else ""
        return f"released: {event.answered:,} labels of {counted(event.asked, 'query')}{cost}"
    if isinstance(event, Epoch):
        if event.test_accuracy is None:
            return f"epoch {event.epoch}"
        return f"epoch {event.epoch}: {share_text(event.test_accuracy, now.result.study.test_size)} right"
    return _outcome(now) if isinstance(event, Outcome) else None


def _outcome(now: Snapshot) -> str:
    report = now.path / "report.html"
    return outcome_line(now.result, report if report.is_file() else None)


def _voted(event: Voted, study: _Study) -> str:
    asked = study.words.question(event.queries)
    return (
        f"batch {event.batch}: {counted(event.clients, 'hospital')}, {asked}, {duration_text(event.seconds)}"
    )


def _waiting(event: Waiting) -> str:
    rest = f"; they have {duration_text(event.patience_s)}" if event.answered < event.asked else ""
    return event.text + rest


def _left_out(event: LeftOut) -> str:
    return f"{event.party} ({event.phase}): {event.reason}"
