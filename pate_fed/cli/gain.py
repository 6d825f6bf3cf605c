"""What a hospital would gain from a study: its own model alone, beside what to expect of all together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.doctor.records import QUICK, WantedRecords, predict_by_teacher
from pate_fed.data import Rows, split_by_patient
from pate_fed.format import accuracy_text, share_text, wilson_interval
from pate_fed.kinds.terms import Terms

Ints = NDArray[np.int64]

_FOLDS = 5
_MOST_TRIED = 5  # teachers


def gain_lines(terms: Terms, rows: Rows, parts: list[Ints]) -> Iterator[str]:
    """The hospital's own model, one of its teachers where it trains several, and what all together give.

    `parts` are the teachers' own records, int64 indices.
    """
    wanted = WantedRecords.by_terms(terms)
    everyone = np.arange(len(rows.labels), dtype=np.int64)
    patients = len(np.unique(rows.patients))
    if patients < _FOLDS:
        yield f"  not tried: {patients} patients are too few to leave a part of them out"
        return
    folds = split_by_patient(everyone, rows.patients, num_teachers=_FOLDS, seed=0)
    alone = _tested(rows, wanted, [(np.setdiff1d(everyone, part), part) for part in folds])
    majority = float(np.bincount(rows.labels).max() / len(rows.labels))
    kind = "one model" if wanted.spec.schema is not None else f"one {QUICK} model, as a quick stand-in,"
    told = accuracy_text(alone[0] / alone[1], alone[1], majority=majority)
    yield f"  alone       {told}: {kind} of all your records, each fifth left out once"
    yield "              The majority's share is right for whoever always says the most frequent class."
    if wilson_interval(alone[0] / alone[1], alone[1])[0] <= majority:
        yield "              Your records alone may teach no more than that guess."
    single = alone
    if len(parts) > 1:
        single = _tested(rows, wanted, [(part, np.setdiff1d(everyone, part)) for part in parts[:_MOST_TRIED]])
        # Without an interval: several teachers told the same records, which are no independent trials.
        share = share_text(single[0] / single[1], len(rows.labels))
        yield (
            f"  a teacher   {share} right of {len(rows.labels):,}: it learnt from its part alone (mean of "
            f"{min(len(parts), _MOST_TRIED)})"
        )
    first, *more = terms.words.together(single[0] / single[1])
    yield f"  together    {first}"
    yield from (f"              {line}" for line in more)


def _tested(rows: Rows, wanted: WantedRecords, pairs: list[tuple[Ints, Ints]]) -> tuple[int, int]:
    """How many records were told right by models that had not seen them, and of how many."""
    right = count = 0
    for own, asked in pairs:
        right += int((predict_by_teacher(rows, own, asked, wanted) == rows.labels[asked]).sum())
        count += len(asked)
    return right, count
