"""The road of a study with class sums: admit, ask once, release once, learn.

What an auditor should find: who is in the sum is fixed before anything is unmasked; noise is drawn once and
is on the disk before the charge, so that no second copy of the same sums gets other noise; the row of the one
release, with the labels that follow from it, is on the ledger's disk before anything is learnt from it,
written or shown. Sums that were asked for and did not come are charged too: hospitals give them once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.errors import BudgetError, IntegrityError, PateFedError
from pate_fed.label_dp.class_sums import noisy_sums
from pate_fed.learning import RIDGE
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy import Ledger, NoiseSource
from pate_fed.privacy.mechanisms.class_sums import ClassSums
from pate_fed.protocol.make_terms import public_features
from pate_fed.protocol.messages import VoteRequest
from pate_fed.protocol.sum_cost import sum_mechanism
from server.base_run import BaseRun, RunContext, StudySetup
from server.figures import measure
from server.release import charge
from server.state import Totals

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]


class SumRun(BaseRun):
    """One study with class sums, from the first message to the trained student."""

    def __init__(self, setup: StudySetup, ledger: Ledger, context: RunContext, *, noise: NoiseSource) -> None:
        super().__init__(setup, ledger, context)
        self._noise, self._mechanism = noise, sum_mechanism(self._terms)
        self._features = public_features(self._study, self._dataset)
        self._all = self._all_features()
        self._ridge: SumsStudent | None = None

    def run(self, grid: Grid) -> None:
        """Go through all phases."""
        noisy = self._released()
        if noisy is None:
            noisy = self._release(self._kept_sum() or self._ask(grid))
        self._state.note_all_asked()
        self._measure()
        self._learn(noisy)

    # Ask, sum, release.

    def _all_features(self) -> VoteRequest:
        """The one question; one that a dead process opened keeps its number, and is gone on with."""
        last, every = self._state.last_batch, np.arange(self._features.dimension, dtype=np.int64)
        return self._question(0 if last is None else last.number, every)

    def _ask(self, grid: Grid) -> Totals:
        """The sums of all hospitals, exact or with their noise.

        Raises:
            QuorumError: too few hospitals are left.
            IntegrityError: what was revealed of the sum does not fit.
        """
        federation = self._teach(grid)
        try:
            totals = self._sum(federation, self._all, task="summing under masks")
        except PateFedError as error:  # whoever was stopped, or ran out of disk, goes on with it
            if federation.spent and not self.left_open:
                self._void()
                raise type(error)(f"{error}; {_LOST}") from error
            raise
        self._state.keep_totals(self._all.digest, totals)  # no hospital gives a second one
        return totals

    def _kept_sum(self) -> Totals | None:
        """The sums that an earlier process got and did not release."""
        kept = self._state.totals(self._all.digest)
        return None if kept is None else self._checked(kept)

    def _release(self, totals: Totals) -> Ints:
        """The noisy sums, int64 (dimension, classes), once they and their labels are charged for."""
        with self._timed("aggregate"), self._progress.phase("fitting the sums", 1) as bar:
            noisy = self._noisy(totals)
            # The labels exist in this process alone until the row is on the disk; if that fails, nowhere.
            self._ridge = self._fit(noisy)
            self._charge(self._ridge.predict(self._pool))
            bar.advance()
        return noisy

    def _noisy(self, totals: Totals) -> Ints:
        """The sums with noise: as drawn by an earlier process, else drawn now and kept before any use."""
        if not isinstance(self._mechanism, ClassSums):
            return totals.value  # the hospitals' own noise is in them
        kept = self._state.totals(self._noisy_name)
        if kept is None:
            kept = replace(totals, value=noisy_sums(self._mechanism, totals.value, self._noise))
            self._state.keep_totals(self._noisy_name, kept)
        return self._checked(kept).value

    @property
    def _noisy_name(self) -> str:
        """By which the noisy sums are kept beside the exact ones."""
        return hashlib.sha256(f"{self._all.digest}/noisy".encode()).hexdigest()

    def _released(self) -> Ints | None:
        """The noisy sums that an earlier process released; None where there was no release.

        Raises:
            BudgetError: hospitals were asked for sums that never came, which is charged.
            IntegrityError: the sums are gone or damaged.
        """
        if not self._ledger.entries():
            return None
        if not self._ledger.answered:
            raise BudgetError(f"hospitals were asked for their sums before, and there was no sum; {_LOST}")
        shared = not isinstance(self._mechanism, ClassSums)
        kept = self._state.totals(self._all.digest if shared else self._noisy_name)
        if kept is None:
            raise IntegrityError(
                f"{self._setup.run_dir}: the release is on the ledger, but the noisy sums are gone from the "
                "folder private, so nothing can be learnt from them"
            )
        return self._checked(kept).value

    def _checked(self, totals: Totals) -> Totals:
        if totals.value.shape != (self._features.dimension, self._terms.num_classes):
            raise IntegrityError("the kept sums are of another study")
        return totals

    def _void(self) -> None:
        """Charge sums that were asked for and did not come; they are never asked for again."""
        self._charge(np.full(self._terms.max_queries, -1, dtype=np.int64))

    def _charge(self, label: Ints) -> None:
        """Charge the one release, with a label int64 (max_queries,) of each public input, -1 for none."""
        index, digest = np.arange(len(label), dtype=np.int64), self._all.digest
        charge(self._ledger, self._mechanism, batch_digest=digest, index=index, label=label)
        self._state.forget_answers()  # only now: until the charge a process that takes over needs them
        self._log_release(0, asked=len(label), answered=int((label >= 0).sum()))

    # Evaluate and learn.

    @property
    def _pool(self) -> NDArray[np.uint8]:
        return self._dataset.public_images[: self._dataset.num_queries]

    def _fit(self, noisy: Ints) -> SumsStudent:
        student: SumsStudent = find_part(RIDGE, "student")(
            noisy,
            self._features,
            self._pool,
            sigma=self._mechanism.sigma,
            balanced=self._study.sums.balanced,
        )
        student.class_names = self._dataset.class_names
        return student

    def _measure(self) -> None:
        """Accuracy of the labels, where the public inputs' true ones are known."""
        truth = self._dataset.public_labels
        measured = measure(self._ledger, {}, None, truth=truth, num_teachers=0, exact=False)
        if measured is not None:
            self.accuracy, evaluation = measured
            self._log.write(evaluation)

    def _learn(self, noisy: Ints) -> None:
        """The student of the sums themselves, or one of what they say of the public inputs."""
        with self._timed("student"):
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
        self.student = student
        self._measure_student(student, asked=asked, index=index, label=label, probabilities=shares)


_LOST = (
    "ε counts as spent at every hospital that was asked (its own log says whether it answered), and none of "
    "them gives its sums again in this study"
)
