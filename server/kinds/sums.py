"""Class sums at the coordinator: one question, one release, labels and a student of it.

What an auditor should find: noise is drawn once and is on the disk before the charge, so that no second copy
of the same sums gets other noise; the row of the one release, with the labels that follow from it, is on the
ledger's disk before anything is learnt from it, written or shown. Sums that were asked for and did not come
are charged too: hospitals give them once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.errors import BudgetError, IntegrityError
from pate_fed.kinds.make import public_features
from pate_fed.kinds.sums import sum_mechanism
from pate_fed.learning import RIDGE
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.mechanisms.class_sums import ClassSums
from pate_fed.protocol.messages import Question
from server.figures import measure
from server.kinds.base import StudyCourse
from server.release import Release
from server.state import CoordinatorState, Totals

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]


class SumCourse(StudyCourse):
    """The course of a study with class sums."""

    once = True
    lost = (
        "ε counts as spent at every hospital that was asked (its own log says whether it answered), and none "
        "of them gives its sums again in this study"
    )

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._mechanism = sum_mechanism(self._terms)
        self._features = public_features(self._study, self._dataset)
        self._ridge: SumsStudent | None = None
        self._noisy: Totals | None = None

    def next_question(self, number: int) -> Question | None:
        """All features, once."""
        if not self._ledger.entries():
            return self._question(number, np.arange(self._features.dimension, dtype=np.int64))
        if not self._ledger.answered:
            raise BudgetError(
                f"hospitals were asked for their sums before, and there was no sum; {self.lost}"
            )
        return None

    def task(self, question: Question) -> str:
        """It is summed under masks."""
        return "summing under masks"

    def release(self, question: Question, totals: Totals) -> Release:
        """The noisy sums, and a label of each public input by them."""
        with self._progress.phase("fitting the sums", 1) as bar:
            self._noisy = self._with_noise(question.digest, totals)
            self._ridge = self._fit(self._noisy.value)
            label = self._ridge.predict(self._pool)
            bar.advance()
        return self._as_charged(label)

    def void(self, question: Question) -> Release:
        """No label of any input."""
        return self._as_charged(np.full(self._terms.max_queries, -1, dtype=np.int64))

    def _as_charged(self, label: Ints) -> Release:
        index = np.arange(len(label), dtype=np.int64)
        return Release.of(self._ledger.terms, self._mechanism, index, label)

    def _with_noise(self, digest: str, totals: Totals) -> Totals:
        """The sums with noise: as drawn by an earlier process, else drawn now and kept before any use."""
        if not isinstance(self._mechanism, ClassSums):
            return self._checked(totals)  # the hospitals' own noise is in them
        name = _noisy_name(digest)
        kept = self._state.totals(name)
        if kept is None:
            kept = replace(totals, value=self._mechanism.noisy(totals.value, self._noise))
            self._state.keep_totals(name, kept)
        return self._checked(kept)

    def _released(self) -> Ints:
        """The noisy sums, int64 (dimension, classes), of this process or of the one that released them.

        Raises:
            IntegrityError: they are gone or damaged.
        """
        if self._noisy is None:
            kept = self._state.totals(self._kept_name)
            if kept is None:
                raise IntegrityError(
                    f"{self._setup.run_dir}: the release is on the ledger, but the noisy sums are gone from "
                    "the folder private, so nothing can be learnt from them"
                )
            self._noisy = self._checked(kept)
        return self._noisy.value

    @property
    def _kept_name(self) -> str:
        """By which the noisy sums of the one release are kept."""
        digest = self._ledger.entries()[0].batch_digest
        return _noisy_name(digest) if isinstance(self._mechanism, ClassSums) else digest

    def keep_for_learning(self, state: CoordinatorState) -> None:
        """Keep the noisy sums, which are released."""
        if self._noisy is not None:
            state.keep_totals(self._kept_name, self._noisy)

    def _checked(self, totals: Totals) -> Totals:
        if totals.value.shape != (self._features.dimension, self._terms.num_classes):
            raise IntegrityError("the kept sums are of another study")
        return totals

    @property
    def _pool(self) -> NDArray[np.uint8]:
        return self._dataset.public_images[: self._dataset.num_queries]

    def _fit(self, noisy: Ints) -> SumsStudent:
        student: SumsStudent = find_part(RIDGE, "student")(
            noisy, self._features, self._pool, sigma=self._mechanism.sigma, balanced=self._study.sums.balanced
        )
        student.class_names = self._dataset.class_names
        return student

    def measure(self) -> None:
        """Accuracy of the labels, where the public inputs' true ones are known."""
        truth = self._dataset.public_labels
        found = measure(self._ledger, {}, None, truth=truth, num_teachers=0, exact=False)
        if found is not None:
            self.figures.accuracy, evaluation = found
            self._log.write(evaluation)

    def learn(self) -> None:
        """The student of the sums themselves, or one of what they say of the public inputs."""
        noisy = self._released()
        with self.figures.timed("student"):
            asked, _, label = self._ledger.released()
            index, shares = asked, None
            ridge = self._ridge or self._fit(noisy)
            student: SumsStudent | Student | Forest | FittedStudent = ridge
            if self._study.student.name == RIDGE:
                asked = asked[:0]  # no public input's label taught it
            else:
                shares = ridge.predict_proba(self._pool[index])
                student = self._learner.learn(index, label, shares)
        student.save(self._setup.student_path)
        self.figures.student = student
        self._measure_student(student, asked=asked, index=index, label=label, probabilities=shares)


def _noisy_name(digest: str) -> str:
    """By which noisy sums are kept beside the exact ones."""
    return hashlib.sha256(f"{digest}/noisy".encode()).hexdigest()
