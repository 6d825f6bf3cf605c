"""A run directory against its ledger: released labels and told ε must be the ledger's own.

What lies beside a ledger is what people read and hand on. Noticed are labels that no row has charged for, a
ledger of another run, and figures that promise more than the ledger does. The student and the report cannot
be held against it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy.ledger.describe import LedgerReport, verify
from pate_fed.privacy.ledger.guarantee import guaranteed_coordinator_epsilon, guaranteed_epsilon

__all__ = ["verify_run"]

_COLUMNS = ("index", "answered", "label")
# An ε may differ from ours by the last digits of another platform's logarithm.
_SLACK = 1e-9


def verify_run(run_dir: Path, *, public_key: str | None = None, head: str | None = None) -> LedgerReport:
    """Check a run's ledger as `verify` does, and hold `labels.npz` and `metrics.json` against it.

    Raises:
        InputError: the directory holds no ledger.
        IntegrityError: the ledger is not as it was written, or what lies beside it is not from it.
    """
    path = run_dir / "ledger.sqlite"
    if not path.is_file():
        raise InputError(f"{run_dir}: holds no ledger.sqlite; give the --run-dir of a run")
    report = verify(path, public_key=public_key, head=head)
    found = []
    if (labels := run_dir / "labels.npz").exists():
        found.append(_labels(labels, report))
    if (metrics := run_dir / "metrics.json").exists():
        found.append(_metrics(metrics, report))
    return replace(report, beside=tuple(found))


def _labels(path: Path, report: LedgerReport) -> str:
    """Each label must be on the ledger, in order; a process that was cut off wrote fewer."""
    private_labels = report.chain.terms.protection.unit == "label"
    try:
        with np.load(path, allow_pickle=False) as held:
            if private_labels:  # in the records' order; PATE-FM's are beside the student's labels of all
                return _private_labels(path, held["released" if "released" in held else "label"], report)
            columns = [np.asarray(held[name]) for name in _COLUMNS]
        count = len(columns[0])
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        raise IntegrityError(f"{path}: the labels are damaged") from error
    for name, column in zip(_COLUMNS, columns, strict=True):
        charged = [getattr(part, name) for part in report.chain.outputs]
        released = np.concatenate([np.empty(0, dtype=np.int64), *charged])[:count]
        if not np.array_equal(column, released):
            raise IntegrityError(f"{path}: {name}: not what this ledger released and charged for")
    return f"{path.name}: {count} of {report.asked} queries, each as on the ledger"


def _private_labels(path: Path, label: NDArray[Any], report: LedgerReport) -> str:
    """Labels int64 (records,), -1 where none was released, must be those on the ledger."""
    released = np.full(len(label), -1, dtype=np.int64)
    for part in report.chain.outputs:
        if part.index.max(initial=-1) >= len(released):
            raise IntegrityError(f"{path}: fewer labels than this ledger released and charged for")
        released[part.index] = part.label
    if not np.array_equal(label, released):
        raise IntegrityError(f"{path}: label: not what this ledger released and charged for")
    return f"{path.name}: {len(label)} records, each label as on the ledger"


def _metrics(path: Path, report: LedgerReport) -> str:
    """No figure may promise more than the terms do."""
    terms, released = report.chain.terms, bool(report.chain.entries)
    try:
        metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        privacy, status = metrics["privacy"], metrics["status"]
        figures = privacy["student"]["data_independent"], privacy["coordinator"]["epsilon"]
        told = [None if value is None else float(value) for value in figures]
        facts = {
            "δ": (privacy["delta"], terms.delta),
            "unit and adjacency": (
                (privacy["unit"], privacy["adjacency"]),
                (terms.protection.unit, terms.protection.adjacency),
            ),
            "teachers": (metrics["num_teachers"], terms.mechanisms[0].num_teachers),
            "classes": (metrics["num_classes"], terms.mechanisms[0].num_classes),
            "whether the noise protects": (metrics["seed"] is None, terms.private),
        }
        more = metrics["queries_answered"] > report.answered
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: a figure is missing or none") from error
    for name, (given, meant) in facts.items():
        if given != meant:
            raise IntegrityError(f"{path}: {name}: {given!r}, by the ledger {meant!r}")
    if more:
        raise IntegrityError(f"{path}: more labels than the {report.answered} on the ledger")
    if status != "success":
        return f"{path.name}: of a process that did not come to the study's end"
    bounds = guaranteed_epsilon(terms) if released else 0.0, guaranteed_coordinator_epsilon(terms)
    for who, value, bound in zip(("the public", "the coordinator"), told, bounds, strict=True):
        if value is not None and (bound is None or not value >= bound * (1 - _SLACK)):
            raise IntegrityError(f"{path}: ε against {who} is {value!r}, by the ledger {bound!r}")
    return f"{path.name}: no ε below the ledger's, and of the same terms"
