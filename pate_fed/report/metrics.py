"""`metrics.json` and the outcome line: the run's figures for a program, and in one line for a person.

An unknown or inapplicable figure is null, never 0. An ε is rounded up, never down; without a bound it is null
with the reason in words beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pate_fed.disk import write_result
from pate_fed.format import VERSION, delta_text, epsilon_json, epsilon_text, printable, wilson_interval
from pate_fed.kinds.terms import Terms
from pate_fed.privacy.protection import PATIENT_UNIT
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import LabelStudyRecord, RunResult

_DIGITS = 6
_VERSIONED = ("pate_fed", "flwr", "torch")


def make_metrics(result: RunResult) -> dict[str, Any]:
    """The content of `metrics.json`, by the keys of the design."""
    study, outcome = result.study, result.outcome
    number = bool(study.words.target) and not study.words.several
    return {
        "status": outcome.status,
        "study": study.terms.study,
        "num_clients": study.terms.num_clients,
        "num_teachers": study.terms.num_teachers,
        "num_classes": None if number else study.terms.num_classes,
        "seed": study.terms.seed,
        "queries_asked": result.queries_asked,
        "queries_answered": result.queries_answered,
        "accuracy": _accuracy(result),
        **_own_records(result),
        **_target(result),
        "accuracy_do_not_publish": _accuracy_of_votes(outcome.accuracy),
        "privacy": _privacy(result),
        "seconds": {name: _finite(value) for name, value in asdict(outcome.seconds).items()},
        "peak_memory_mb": outcome.peak_memory_mb,
        "versions": {**dict.fromkeys(_VERSIONED), **study.versions},
    }


def without_private(metrics: dict[str, Any]) -> dict[str, Any]:
    """The same without what was computed from private votes: all keys that say `do_not_publish`."""
    return {
        key: without_private(value) if isinstance(value, dict) else value
        for key, value in metrics.items()
        if "do_not_publish" not in key
    }


def flatten(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Values of tables in tables by their dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _privacy(result: RunResult) -> dict[str, Any]:
    study, figures = result.study, result.outcome.privacy
    student: dict[str, Any] = {
        "data_independent": epsilon_json(figures.student),
        "data_dependent_do_not_publish": epsilon_json(figures.data_dependent_do_not_publish),
        "sanitised": epsilon_json(figures.sanitised),
    }
    if student["data_independent"] is None:
        student["reason"] = figures.unbounded_because
    return {
        "delta": study.terms.delta,
        "unit": study.terms.privacy.unit,
        "adjacency": study.terms.privacy.adjacency,
        "student": student,
        "coordinator": {"epsilon": epsilon_json(figures.coordinator), "sees": study.coordinator_sees},
        **_unit(study.terms),
        **_claimed(result),
    }


def _unit(terms: Terms | LabelStudyRecord) -> dict[str, Any]:
    """What the unit means where patients are named, and at how many parties one is."""
    if not isinstance(terms, Terms):
        return {}
    privacy, named = terms.privacy, terms.table is not None and terms.table.patient is not None
    if privacy.unit == PATIENT_UNIT:
        return {"unit_means": terms.words.unit, "hospitals_per_patient": privacy.hospitals_per_patient}
    return {"unit_means": terms.words.unit} if named else {}


def _claimed(result: RunResult) -> dict[str, Any]:
    """Whose word every ε rests on, where code is none of ours."""
    assumed = result.study.assumptions
    return {"claimed_by": assumed.sources, "claim": assumed.warning} if assumed else {}


def _accuracy(result: RunResult) -> dict[str, Any]:
    """What follows from released labels and public inputs alone; every interval is of 95 %."""
    found = result.outcome.accuracy
    return {
        "labels": _finite(found.labels),
        "labels_n": found.labels_n,
        "labels_interval": _ends(found.labels_interval),
        "labels_majority": _finite(found.labels_majority),
        "student": _finite(found.student),
        "student_n": found.student_n,
        "student_interval": _ends(found.student_interval),
        "majority": _finite(found.majority),
        "balanced_accuracy": _finite(found.balanced_accuracy),
        "balanced_accuracy_interval": _ends(found.balanced_interval),
        **_ranking(found),
        "recall": _recall(result),
        "tested": asdict(found.tested) if found.student_interval or found.no_class else None,
    }


def _own_records(result: RunResult) -> dict[str, Any]:
    """Figures on hospitals' held-out records, of noisy counts, where a study asks for these."""
    own = result.outcome.accuracy.own_records
    if own is None:
        return {}
    found = asdict(own)
    names = map(result.study.class_name, range(len(own.recall)))
    found["recall"] = dict(zip(names, found["recall"], strict=True))
    found["calibration"] = [{"sure": sure, **right} for sure, right in found["calibration"]]
    found["operating_point"] = found.pop("at")
    return {"own_records": found}


def _target(result: RunResult) -> dict[str, Any]:
    """How near the student comes, where a number or several labels are learnt."""
    if not (told := result.study.words.target):
        return {}
    found, key = result.outcome.accuracy.no_class, "by_label" if result.study.words.several else "target"
    return {key: {"what": told, **({} if found is None else asdict(found))}}


def _ranking(found: Accuracy) -> dict[str, Any]:
    """By the published student's probabilities: of two classes ROC and calibration; of a table subgroups."""
    own = found.ranking
    sensitivity, ends = (None, None) if own is None else own.at()
    told: dict[str, Any] = {
        "auc": None if own is None else _finite(own.auc),
        "auc_interval": None if own is None else _ends(own.interval),
        "sensitivity_at_90_specificity": _finite(sensitivity),
        "sensitivity_interval": _ends(ends),
    }
    if own is not None:
        told["sensitivity_at_specificity"] = {f"{100 - at}": share for at, share in enumerate(own.roc)}
    if found.line is not None:
        values = asdict(found.line).items()
        told["calibration"] = {
            name: _ends(each) if isinstance(each, tuple) else _finite(each) for name, each in values
        }
    if found.groups:
        told["subgroups"] = {
            each.name: {
                "accuracy": _finite(each.share),
                "n": each.count,
                "interval": _ends(wilson_interval(each.share, each.count)),
                "auc": _finite(each.auc),
                "auc_interval": _ends(each.auc_interval),
            }
            for each in found.groups
        }
    return told


def _recall(result: RunResult) -> dict[str, dict[str, Any]] | None:
    """Each class by its name, an unnamed one by its number; a class that was not tested has null."""
    found = {each.number: each for each in result.outcome.accuracy.recall}
    if not found:
        return None
    classes = max(result.study.terms.num_classes, *(number + 1 for number in found))
    recall: dict[str, dict[str, Any]] = {}
    for number in range(classes):
        own = found.get(number)
        name = result.study.class_name(number)
        recall[name if name not in recall else f"{name} ({number})"] = {
            "recall": None if own is None else _finite(own.share),
            "n": 0 if own is None else own.count,
            "interval": None if own is None else _ends(own.interval),
        }
    return recall


def _accuracy_of_votes(found: Accuracy) -> dict[str, Any]:
    """What was computed from private votes."""
    return {
        "teacher_mean": _finite(found.teacher_mean),
        "ensemble": _finite(found.ensemble),
        "n": found.votes_n,
        "ensemble_interval": _ends(found.ensemble_interval),
        "majority": _finite(found.votes_majority),
    }


def _ends(interval: tuple[float, float] | None) -> list[float | None] | None:
    return None if interval is None else [_finite(end) for end in interval]


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), _DIGITS)


def write_metrics(
    result: RunResult,
    path: Path,
    *,
    add: Callable[[dict[str, Any], RunResult], None] = lambda metrics, result: None,
    before: Callable[[bytes], None] = lambda content: None,
) -> None:
    """Write `metrics.json` at once: a reader sees the old file or the new one, never half of it.

    `add` puts more into it; `before` is given what will be written.

    Raises:
        InputError: the file cannot be written.
    """
    metrics = make_metrics(result)
    add(metrics, result)
    content = (json.dumps(metrics, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    before(content)
    write_result(path, content)


def outcome_line(result: RunResult, report: Path | None = None) -> str:
    """The one line that a run ends with: `SUCCESS  ε=… δ=… unit=… labels=… accuracy=… report=PATH`.

    Where the accuracy is known, its number of test inputs (n), its 95 % interval and the share of the most
    frequent class stand behind it. ε is the one that holds against anyone who gets the student; "unbounded"
    where a whole run has no bound, "-" for what is unknown. Behind an ε that rests on the
    word of others' code stands `claimed-by=` and its name, or names with commas. `noise=seeded` says that the
    noise can be repeated, so that ε protects nobody.
    """
    study, outcome = result.study, result.outcome
    none = "unbounded" if outcome.status == "success" else "-"
    parts = (
        f"ε={epsilon_text(outcome.privacy.student, unbounded=none)}",
        *((f"claimed-by={','.join(study.assumptions.names)}",) if study.assumptions else ()),
        f"δ={delta_text(study.terms.delta)}",
        f"unit={study.terms.privacy.unit}",
        f"labels={result.queries_answered}",
        _accuracy_on_the_line(outcome.accuracy, study.words.score.replace("²", "2").replace(" ", "_")),
        *(("noise=seeded",) if study.terms.seed is not None else ()),
        f"report={'-' if report is None else printable(str(report), '?')}",
    )
    return f"{outcome.status.upper()}  {' '.join(parts)}"


def _accuracy_on_the_line(found: Accuracy, unknown: str) -> str:
    if found.no_class is not None:
        return found.no_class.on_the_line
    share, interval, count = _finite(found.student), found.student_interval, found.student_n
    if share is None:
        return f"{unknown}=-"
    if interval is None or not count:
        return f"accuracy={share:.2f}"
    digits = 3 if count >= 1000 else 2
    low, high = interval
    known = f"accuracy={share:.{digits}f} n={count} interval={low:.{digits}f}-{high:.{digits}f}"
    return known if found.majority is None else f"{known} majority={found.majority:.{digits}f}"


def outcome_json(result: RunResult, report: Path | None = None) -> str:
    """The outcome line's fields as one line of JSON, with the reason where the run did not succeed."""
    outcome = result.outcome
    values = {
        "status": outcome.status,
        "reason": outcome.reason,
        "epsilon": epsilon_json(outcome.privacy.student),
        "delta": result.study.terms.delta,
        "unit": result.study.terms.privacy.unit,
        "labels": result.queries_answered,
        "accuracy": _finite(outcome.accuracy.student),
        **_target(result),
        "accuracy_n": outcome.accuracy.student_n,
        "accuracy_interval": _ends(outcome.accuracy.student_interval),
        "majority": _finite(outcome.accuracy.majority),
        "balanced_accuracy": _finite(outcome.accuracy.balanced_accuracy),
        **_claimed(result),
        **({} if result.study.terms.seed is None else {"noise": "seeded"}),
        "ledger_head": outcome.ledger_head,
        "sealed_by": outcome.sealed_by,
        "report": None if report is None else str(report),
    }
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def collect_versions() -> dict[str, str]:
    """Versions of this package, Flower and torch where installed, without importing them."""
    return dict(_versions())


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Looked up once: a distribution's whole description is read for its number."""
    found = [("pate_fed", VERSION)]
    for name in ("flwr", "torch"):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)
