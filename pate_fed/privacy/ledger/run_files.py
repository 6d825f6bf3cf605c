"""What lies beside a run's ledger, held against it: what people read and hand on.

Labels that no row has charged for, a ledger of another run, figures that state less than the ledger
guarantees, and counts that it does not have are noticed. Accuracies, the student and the report cannot be
held against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import load_arrays, read_json
from pate_fed.errors import IntegrityError
from pate_fed.privacy.label_dp import LabelRelease, SharedClusterCounts
from pate_fed.privacy.ledger.chain import SLACK, Chain
from pate_fed.privacy.ledger.terms import LedgerTerms, guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import SharedClassSums
from pate_fed.privacy.mechanisms.data_dependent import public_part
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.structure import setting

STATUSES = ("success", "failed", "aborted")
"""How a run can have ended; figures of one that came to its end are held against the ledger."""

NOT_HELD = "not checked: accuracies, the student, report.html"
"""Of what lies beside a ledger without a seal, all that is on no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Student:
    data_independent: float | None
    sanitised: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coordinator:
    epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hospitals:
    """Of a study of private labels at hospitals."""

    coordinator: _HospitalsCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class _HospitalsCoordinator:
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Privacy:
    """`epsilon` is what private labels cost; None where a study has votes."""

    delta: float
    unit: str
    adjacency: str
    student: _Student
    coordinator: _Coordinator
    epsilon: float | None = None
    hospitals_per_patient: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    """What of a run's metrics.json is held against its ledger."""

    status: str = setting(choices=STATUSES)
    num_clients: int
    num_teachers: int
    num_classes: int | None  # None: the label is a number
    seed: int | None
    queries_asked: int
    queries_answered: int
    privacy: _Privacy
    hospitals: _Hospitals | None = setting(None, read=lambda value: value or None)  # noqa: RUF009


def check_labels(path: Path, chain: Chain) -> str:
    """Each label must be on the ledger, in order; a process that was cut off wrote fewer."""
    try:
        held = load_arrays(path)
        columns = {name: held[name] for name in ("index", "answered", "label")}
        released = held.get("released")
        count = len(columns["label"] if released is None else released)
        if any(each.dtype.kind not in "biuf" for each in (*columns.values(), released) if each is not None):
            raise TypeError("no numbers")  # which NumPy compares with none, or not at all
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: the labels are damaged") from error
    private_labels = chain.terms.protection.unit == "label"
    if released is not None:
        # Of PATE-FM alone: label has what the student says of every record, and that is on no ledger.
        if not private_labels or any(isinstance(each, LabelRelease) for each in chain.terms.mechanisms):
            raise IntegrityError(f"{path}: released: no such column; label is what this ledger released")
        columns["released"] = released
        del columns["label"]
    charged = _by_record(path, count, chain) if private_labels else _in_order(chain, count)
    for name, column in columns.items():
        if not np.array_equal(column, charged["label" if name == "released" else name]):
            raise IntegrityError(f"{path}: {name}: not what this ledger released and charged for")
    if released is not None:
        return f"{path.name}: {count} records, released labels as on the ledger; the student's are on none"
    if private_labels:
        return f"{path.name}: {count} records, each label as on the ledger"
    return f"{path.name}: {count} of {chain.asked} queries, each as on the ledger"


def _in_order(chain: Chain, count: int) -> dict[str, NDArray[Any]]:
    """The columns of the first `count` queries, as they were released."""
    names = ("index", "answered", "label")
    return {name: column[:count] for name, column in zip(names, chain.released(), strict=True)}


def _by_record(path: Path, count: int, chain: Chain) -> dict[str, NDArray[Any]]:
    """The columns of private labels, in the records' order; -1 where none was released."""
    label = np.full(count, -1, dtype=np.int64)  # no record was asked about until a row says so
    for part in chain.outputs:
        if part.index.max(initial=-1) >= count:
            raise IntegrityError(f"{path}: fewer labels than this ledger released and charged for")
        label[part.index] = part.label
    return {"index": np.arange(count), "answered": label >= 0, "label": label}


def check_metrics(path: Path, chain: Chain) -> str:
    """No figure may be below what the terms guarantee, and none of a run's end another than the rows'."""
    metrics = read_json(_Metrics, path, what="the metrics of a run", error=IntegrityError, aside=True)
    stated = _stated(path, metrics, chain.terms)
    _check_facts(path, metrics, chain.terms)
    counts = {
        "queries_asked": (metrics.queries_asked, chain.asked),
        "queries_answered": (metrics.queries_answered, chain.answered),
    }
    ended = metrics.status == "success"
    for name, (given, meant) in counts.items():
        if given != meant if ended else not 0 <= given <= meant:
            most = "" if ended else "at most "
            raise IntegrityError(f"{path}: {name}: {given!r}, by the ledger {most}{meant!r}")
    _check_sanitised(path, metrics.privacy.student.sanitised, chain)
    # An earlier process may have written them, before the rows that a later one added and died.
    of_these_rows = bool(chain.entries) and all(given == meant for given, meant in counts.values())
    if not ended and not of_these_rows:
        return (
            f"{path.name}: of a process that did not come to the study's end, and may be older than the "
            "ledger; its ε was NOT compared; what the ledger says holds"
        )
    _check_epsilons(path, stated, chain)
    reading = (
        "" if metrics.privacy.student.sanitised is None else "; the sanitised one is a reading, no bound"
    )
    end = "" if ended else "; of a process that did not come to the study's end"
    return f"{path.name}: no ε below the ledger's, queries as on it, and of the same terms{reading}{end}"


def _stated(path: Path, metrics: _Metrics, terms: LedgerTerms) -> list[float | None]:
    """Every ε that is stated: against the public, the coordinator, and of private labels again the public."""
    privacy = metrics.privacy
    stated = [privacy.student.data_independent, privacy.coordinator.epsilon]
    if terms.protection.unit == "label":
        if privacy.epsilon is None:
            raise IntegrityError(f"{path}: not the metrics of a run (privacy.epsilon is missing)")
        stated.append(privacy.epsilon)
        if metrics.hospitals is not None:
            stated.append(metrics.hospitals.coordinator.epsilon)
    elif privacy.epsilon is not None or metrics.hospitals is not None:
        raise IntegrityError(f"{path}: privacy.epsilon or hospitals: of private labels alone, not of votes")
    return stated


def _check_facts(path: Path, metrics: _Metrics, terms: LedgerTerms) -> None:
    """What the terms fix must be what they fix."""
    privacy, [first, *_] = metrics.privacy, terms.mechanisms
    # What a kind of one's own releases is no class, nor is a number.
    told = metrics.num_classes is not None and (first.num_teachers or not isinstance(first, OwnMechanism))
    facts = {
        "δ": (privacy.delta, terms.delta),
        "unit and adjacency": (
            (privacy.unit, privacy.adjacency),
            (terms.protection.unit, terms.protection.adjacency),
        ),
        "hospitals_per_patient": (privacy.hospitals_per_patient or 1, terms.protection.hospitals),
        "teachers": (metrics.num_teachers, first.num_teachers),
        "classes": (metrics.num_classes, first.num_classes) if told else (0, 0),
        "whether the noise protects": (metrics.seed is None, terms.private),
    }
    for name, (given, meant) in facts.items():
        if given != meant:
            raise IntegrityError(f"{path}: {name}: {given!r}, by the ledger {meant!r}")
    # A ledger does not name their number: only what each of them must add to is on it.
    clients, least = metrics.num_clients, max(1, _least_hospitals(terms))
    if clients < least:
        raise IntegrityError(f"{path}: num_clients: {clients!r}, by the ledger at least {least!r}")
    if first.num_teachers % clients:
        raise IntegrityError(
            f"{path}: num_clients: {clients!r}, which cannot share the {first.num_teachers} teachers of the "
            "ledger evenly"
        )


def _least_hospitals(terms: LedgerTerms) -> int:
    """The least number in a sum; 0 where the ledger names none."""
    shared = SharedClassSums | SharedClusterCounts
    named = [each.survivors for each in terms.mechanisms if isinstance(each, shared)]
    return max(named, default=terms.coordinator.survivors or 0)


def _check_epsilons(path: Path, stated: list[float | None], chain: Chain) -> None:
    terms = chain.terms
    bounds = guaranteed_epsilon(terms) if chain.entries else 0.0, guaranteed_coordinator_epsilon(terms)
    whose = ("the public", "the coordinator", *["the public"] * (len(stated) - 2))
    for who, value in zip(whose, stated, strict=True):
        bound = bounds[who == "the coordinator"]
        if value is not None and (bound is None or not value >= bound * (1 - SLACK)):
            raise IntegrityError(f"{path}: ε against {who} is {value!r}, by the ledger {bound!r}")


def _check_sanitised(path: Path, given: float | None, chain: Chain) -> None:
    """A sanitised ε may be below the guarantee, but not below its public part, nor where none was drawn."""
    if given is None:
        return
    terms = chain.terms
    if terms.sanitise is None or not chain.entries:
        raise IntegrityError(f"{path}: sanitised is {given!r}, and by the ledger none was released")
    able = [each for each in terms.mechanisms if isinstance(each, GNMax | ConfidentGNMax)]
    parts = [public_part(each, chain.asked, settings=terms.sanitise, delta=terms.delta) for each in able]
    least = min(parts, default=None)
    if least is None or not given >= least * (1 - SLACK):
        raise IntegrityError(f"{path}: sanitised is {given!r}, by the ledger at least {least!r}")
