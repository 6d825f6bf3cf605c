"""The four numbers of a run that a reader looks for first, as large figures."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.config.sections import EPSILON_ALARM
from pate_fed.format import FEW_TRIALS, counted, delta_text, epsilon_text, share_text
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord
from pate_fed.report.terms_text import IN_ONE_PLACE


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A large number with its name and what belongs to it; `kind` is empty or danger."""

    name: str
    value: str
    details: tuple[str, ...]
    kind: str = ""


def key_figures(result: RunResult) -> list[KeyFigure]:
    """The four numbers a reader looks for first."""
    study, terms, outcome = result.study, result.study.terms, result.outcome
    epsilon = outcome.privacy.student
    asked, answered = result.queries_asked, result.queries_answered
    delta, privacy = delta_text(terms.delta), terms.privacy
    details: tuple[str, ...] = (f"δ = {delta}", privacy.unit, privacy.adjacency)
    if outcome.privacy.spent is not None and epsilon:
        details += (f"spent {epsilon_text(outcome.privacy.spent)}",)
    if study.assumptions:
        details += (study.assumptions.short,)
    if not study.noise_private:
        details += ("not private: seeded noise",)
    bad = not study.noise_private or epsilon is None or epsilon > EPSILON_ALARM or bool(study.assumptions)
    none = "unbounded" if outcome.status == "success" else "unknown"
    share = f"of {asked:,} queries asked" + (f" ({answered / asked:.0%})" if asked else "")
    return [
        KeyFigure(
            "ε against the public",
            none if epsilon is None else epsilon_text(epsilon),
            details,
            "danger" if bad else "",
        ),
        KeyFigure(
            "student's accuracy",
            _student_share(outcome.accuracy),
            _tested(study, outcome.accuracy),
        ),
        KeyFigure("labels released", f"{answered:,}", (share, *_right(outcome.accuracy))),
        KeyFigure("hospitals", f"{terms.num_clients:,}", _hospitals(study)),
    ]


def _hospitals(study: StudyRecord | LabelStudyRecord) -> tuple[str, ...]:
    teachers, quorum = study.terms.num_teachers, f"quorum {study.terms.least_clients:,}"
    told = (counted(teachers, "teacher"),) if teachers else ()
    return (*told, "labels in one place" if study.coordinator == IN_ONE_PLACE else quorum)


def _right(accuracy: Accuracy) -> tuple[str, ...]:
    """How many of the released labels are right, where the public inputs' true ones are known."""
    interval, count = accuracy.labels_interval, accuracy.labels_n
    if interval is None or not count:
        return ()
    low, high = (share_text(end, count) for end in interval)
    return f"{share_text(accuracy.labels, count)} right", f"95 % interval {low.removesuffix(' %')} to {high}"


def _student_share(accuracy: Accuracy) -> str:
    count = accuracy.student_n
    if accuracy.student is None or not count or count >= FEW_TRIALS:
        return share_text(accuracy.student, count)
    return f"{round(accuracy.student * count)} of {count}"


def _tested(study: StudyRecord | LabelStudyRecord, accuracy: Accuracy) -> tuple[str, ...]:
    """What belongs to the student's accuracy, for its card."""
    interval, count = accuracy.student_interval, accuracy.student_n
    if interval is None or not count:
        return (f"no public {study.inputs} with true labels tested it",)
    low, high = (share_text(end, count) for end in interval)
    found = [f"on {count:,} public {study.inputs}", f"95 % interval {low.removesuffix(' %')} to {high}"]
    if accuracy.majority is not None:
        found.append(f"majority {share_text(accuracy.majority, count)}")
    return (*found, f"balanced {accuracy.balanced_text}")
