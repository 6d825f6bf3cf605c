"""Which public inputs test a student, and how: the one rule of it (docs/explanation/student.md).

A part of the pool that is named to test (a known data set's own, or what `data.num_queries` leaves) tests
alone. Else, until there are 1,000: the inputs that are kept, those that were not asked about, and those that
were, each told by a student that had not learnt from its label. True labels of public inputs and released
labels are all that is looked at, so nothing here costs privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pate_fed.config.study import Study
from pate_fed.data import Dataset, first_equal
from pate_fed.learning import TABLE_STUDENTS
from pate_fed.report.accuracy import Accuracy, HowTested
from pate_fed.report.calibration import Calibration

Ints = NDArray[np.int64]

ENOUGH = 1000  # test inputs, whose interval is within three points: no others are needed
SPLITS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TestPart:
    """Places in the public pool, int64 each, no place twice, all with a true label.

    `kept` and `not_asked` are for the published student, each of the parts `left_out` for one that has not
    learnt from its labels.
    """

    __test__ = False  # no test of pytest's

    kept: Ints
    not_asked: Ints
    left_out: tuple[Ints, ...] = ()


def choose_test_part(study: Study, dataset: Dataset, *, asked: Ints) -> TestPart:
    """The inputs that test the student of a study that asked about `asked`, int64 (asked,).

    An input that equals one that was asked about, or is the same patient's, counts as asked about: the
    student may know its label.
    """
    known, kin = dataset.public_labels >= 0, _kin(dataset)
    touched = np.isin(kin, kin[asked])
    kept_place = np.arange(len(known)) >= dataset.num_queries
    none = np.empty(0, dtype=np.int64)
    kept = np.flatnonzero(kept_place & known & ~touched)
    named = not study.data.from_files or study.data.num_queries is not None
    if len(kept) >= ENOUGH or (named and len(kept)):
        return TestPart(kept=kept, not_asked=none)
    not_asked = np.flatnonzero(~kept_place & known & ~touched)
    # What a student chose to ask leaves other inputs, the easier ones, behind.
    at_random = study.queries.strategy == "random"
    if at_random and len(kept) + len(not_asked) >= ENOUGH:
        return TestPart(kept=kept, not_asked=not_asked)
    if not study.cross_validates:
        return TestPart(kept=kept, not_asked=not_asked if at_random else none)
    parts = _split(np.flatnonzero(known & touched), kin, seed=study.seed_for("cross-validation"))
    return TestPart(kept=kept, not_asked=not_asked, left_out=parts)


def _kin(dataset: Dataset) -> Ints:
    """Equal numbers for equal public inputs and for those of one patient: int64 (public,)."""
    first, patients = first_equal(dataset), dataset.public_patients
    if patients is None:
        return first
    rows, (_, patient) = np.arange(len(first)), np.unique(patients, return_inverse=True)
    ends = np.concatenate([first, len(first) + patient])
    graph = coo_array((np.ones(len(ends)), (np.tile(rows, 2), ends)), shape=(2 * len(first), 2 * len(first)))
    return np.asarray(connected_components(graph, directed=False)[1][: len(first)], dtype=np.int64)


def _split(places: Ints, kin: Ints, *, seed: int) -> tuple[Ints, ...]:
    """At random in parts of nearly equal size; what is kin is in the same one."""
    different = np.unique(kin[places])
    if len(different) < 2:
        return ()
    dealt = np.array_split(np.random.default_rng(seed).permutation(different), min(SPLITS, len(different)))
    return tuple(places[np.isin(kin[places], part)] for part in dealt)


def measure_student(
    study: Study,
    dataset: Dataset,
    *,
    asked: Ints,
    predict: Callable[[NDArray[Any]], Ints],
    predict_proba: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    predict_left_out: Callable[[tuple[Ints, ...]], tuple[Ints, ...]],
) -> Accuracy:
    """The student's accuracy, by the rule above; nothing is known where no public input has a true label.

    `predict` gives the published student's classes of inputs, `predict_proba` their probabilities, where it
    knows any, float (n, classes); `predict_left_out` classes of the inputs in
    each part by a student of the labels outside it, -1 where there is none.
    """
    part = choose_test_part(study, dataset, asked=asked)
    own = np.concatenate([part.kept, part.not_asked])
    places = np.concatenate([own, *part.left_out])
    if not len(places):
        return Accuracy()
    found = [predict(dataset.public_images[own])] if len(own) else []
    found += predict_left_out(part.left_out) if part.left_out else ()
    classes = np.concatenate(found)
    told = classes >= 0
    # A forest learns from labelled rows alone; other students have seen all inputs that may be asked about.
    sees = study.student.name not in TABLE_STUDENTS
    tested = HowTested(
        kept=len(part.kept),
        not_asked=len(part.not_asked),
        left_out=int(told[len(own) :].sum()),
        splits=len(part.left_out),
        seen_unlabelled=int((told & (places < dataset.num_queries)).sum()) if sees else 0,
    )
    accuracy = Accuracy.of_student(classes, dataset.public_labels[places], tested=tested)
    if predict_proba is None or not len(own):
        return accuracy
    sure = Calibration.of(predict_proba(dataset.public_images[own]), dataset.public_labels[own])
    return replace(accuracy, calibration=sure)
