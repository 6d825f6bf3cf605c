"""A study of private labels at hospitals, checked from its run directory: its ε again from its terms.

Hospitals agreed to those terms by their digest, and each one's own log names it. That the noise was added is
the hospitals' word, as in a study with votes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import epsilon_text
from pate_fed.label_dp.release import NO_LABEL
from pate_fed.protocol.label_terms import LabelTerms

__all__ = ["LabelReport", "is_label_run", "verify_labels"]

_ROUNDING = 1e-9  # of ε: logarithms differ in their last digits from machine to machine


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReport:
    """A study that passed every check: `epsilon` as computed again, `labels` how many were released."""

    terms: LabelTerms
    epsilon: float
    answered: int
    labels: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.terms.delta,
            "mechanism": self.terms.mechanism,
            "terms_digest": self.terms.digest,
            "hospitals": self.answered,
            "labels": self.labels,
            "private": self.terms.seed is None,
        }

    def lines(self) -> list[str]:
        """In words."""
        terms = self.terms
        noise = "" if terms.seed is None else "; not private: seeded noise"
        return [
            f"terms {terms.digest}",
            f"{terms.mechanism}: ε={epsilon_text(self.epsilon)} δ={terms.delta:g} computed again, one "
            f"record's label replaced, against the coordinator and the public{noise}",
            f"{self.answered} of {terms.num_clients} hospitals, {terms.least_clients} were needed; "
            f"{self.labels} of {terms.pool_size} labels",
            "every figure follows from the terms; each hospital's own log names them where it answered",
        ]


def is_label_run(run_dir: Path) -> bool:
    """Whether a directory is of `pate-fed label-dp`."""
    path = run_dir / "metrics.json"
    try:
        return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["privacy"]["unit"] == "label"
    except (ValueError, KeyError, TypeError):
        return False


def verify_labels(run_dir: Path) -> LabelReport:
    """Compute ε again, and hold the directory's figures and labels against the terms.

    Raises:
        InputError: the labels were in one place, where nobody agreed to terms, or the study failed.
        IntegrityError: a figure is not what follows from the terms.
    """
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    if not metrics.get("hospitals"):
        raise InputError(
            f"{run_dir}: the labels were in one place; only a study with --hospitals has terms to check"
        )
    if metrics.get("status") != "success":
        raise InputError(f"{run_dir}: the study failed, and no label was released ({metrics.get('error')})")
    try:
        hospitals, privacy = metrics["hospitals"], metrics["privacy"]
        terms = LabelTerms.from_json(json.dumps(hospitals["terms"]))
        told = [float(privacy["epsilon"]), float(hospitals["coordinator"]["epsilon"])]
        answered = int(hospitals["answered"])
        facts = {
            "the terms' digest": (hospitals["terms_digest"], terms.digest),
            "δ": (privacy["delta"], terms.delta),
            "unit and adjacency": ((privacy["unit"], privacy["adjacency"]), ("label", "replace-one")),
            "whether the noise protects": (privacy["private"], terms.seed is None),
            "the hospitals that were asked": (hospitals["asked"], terms.num_clients),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{run_dir}/metrics.json: a figure is missing or none") from error
    for name, (found, meant) in facts.items():
        if found != meant:
            raise IntegrityError(f"{run_dir}/metrics.json: {name}: {found!r}, by the terms {meant!r}")
    if not min(told) >= terms.spent * (1 - _ROUNDING):
        raise IntegrityError(
            f"{run_dir}/metrics.json: ε is {min(told)!r}, by the terms {terms.spent!r}: more than was told"
        )
    if not terms.least_clients <= answered <= terms.num_clients:
        raise IntegrityError(
            f"{run_dir}/metrics.json: {answered} hospitals answered, {terms.least_clients} to "
            f"{terms.num_clients} are meant: of fewer too little noise is in a sum"
        )
    return LabelReport(
        terms=terms, epsilon=terms.spent, answered=answered, labels=_labels(run_dir / "labels.npz", terms)
    )


def _labels(path: Path, terms: LabelTerms) -> int:
    try:
        with np.load(path, allow_pickle=False) as held:
            label = held["label"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise IntegrityError(f"{path}: the labels are not there or damaged") from error
    if label.shape != (terms.pool_size,) or label.dtype.kind != "i":
        raise IntegrityError(f"{path}: {label.dtype} {label.shape}: int ({terms.pool_size},) by the terms")
    if label.min() < NO_LABEL or label.max() >= terms.num_classes:
        raise IntegrityError(f"{path}: a label is outside the {terms.num_classes} classes")
    return int((label != NO_LABEL).sum())
