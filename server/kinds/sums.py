"""Class sums at the coordinator: one question or several in rounds, labels and a student of their releases.

What an auditor should find: noise is drawn once and is on the disk before the charge, so that no second copy
of the same sums gets other noise; the row of a release, with the labels that follow from it, is on the
ledger's disk before anything is learnt from it, written or shown. Sums that were asked for and did not come
are charged too: hospitals give them once. What a round is asked with follows from the rows before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.defaults import known_records
from pate_fed.config.registry import find_part
from pate_fed.errors import BudgetError, IntegrityError
from pate_fed.kinds.make import public_features
from pate_fed.kinds.rounds import RoundTerms, ScoredTerms
from pate_fed.kinds.sums import SumMechanism, sum_mechanism
from pate_fed.learning import RIDGE
from pate_fed.learning.features.build import drawn_alike
from pate_fed.learning.features.residuals import ScoreRows, pack_weights, unpack_weights
from pate_fed.learning.students.class_sums import RoundsFit, SumsStudent
from pate_fed.learning.students.targets import fit_labels_student, fit_target_student
from pate_fed.privacy.ledger.rows import Provenance
from pate_fed.privacy.mechanisms.class_sums import ClassSums
from pate_fed.protocol.messages import Question
from pate_fed.report.own_records import HeldOutCount, even_edges
from server.figures import measure
from server.kinds.base import StudyCourse
from server.learning import measure_labels, measure_target
from server.release import Release
from server.state import CoordinatorState, Totals

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    def _mechanism_of(self, place: int) -> SumMechanism:
        """That of the release on so-manieth row, from 0."""
        return self._mechanism

    def void(self, question: Question) -> Release:
        """No label of any input."""
        return self._as_charged(self._no_label())

    def _no_label(self) -> Ints:
        return np.full(self._terms.max_queries, -1, dtype=np.int64)

    def _as_charged(self, label: Ints, place: int = 0) -> Release:
        index = np.arange(len(label), dtype=np.int64)
        return Release.of(self._ledger.terms, self._mechanism_of(place), index, label)

    def _with_noise(self, digest: str, totals: Totals, place: int = 0) -> Totals:
        """The sums with noise: as drawn by an earlier process, else drawn now and kept before any use."""
        mechanism = self._mechanism_of(place)
        if not isinstance(mechanism, ClassSums):
            return self._checked(totals, place)  # the hospitals' own noise is in them
        name = _noisy_name(digest)
        kept = self._state.totals(name)
        if kept is None:
            kept = replace(totals, value=mechanism.noisy(totals.value, self._noise))
            self._state.keep_totals(name, kept)
        return self._checked(kept, place)

    def _released(self) -> Ints:
        """The noisy sums, int64 (dimension, classes), of this process or of the one that released them.

        Raises:
            IntegrityError: they are gone or damaged.
        """
        if self._noisy is None:
            kept = self._state.totals(self._kept_name())
            if kept is None:
                raise IntegrityError(
                    f"{self._setup.run_dir}: the release is on the ledger, but the noisy sums are gone from "
                    "the folder private, so nothing can be learnt from them"
                )
            self._noisy = self._checked(kept)
        return self._noisy.value

    def _kept_name(self, place: int = 0) -> str:
        """By which the noisy sums of a release are kept, the first if no other is meant."""
        digest = self._ledger.entries()[place].batch_digest
        return _noisy_name(digest) if isinstance(self._mechanism, ClassSums) else digest

    def keep_for_learning(self, state: CoordinatorState) -> None:
        """Keep the noisy sums, which are released."""
        if self._noisy is not None:
            state.keep_totals(self._kept_name(), self._noisy)

    def _checked(self, totals: Totals, place: int = 0) -> Totals:
        if totals.value.shape != (self._mechanism_of(place).dimension, self._terms.num_classes):
            raise IntegrityError("the kept sums are of another study")
        return totals

    @property
    def _pool(self) -> NDArray[np.uint8]:
        return self._dataset.public_images[: self._dataset.num_queries]

    def _alike(self, noisy: Ints) -> NDArray[Any]:
        """Inputs that are like the records: the pool's, or where there is none what the first sums tell."""
        return drawn_alike(self._features, noisy) if self._study.data.drawn else self._pool

    @property
    def _target_range(self) -> tuple[float, float] | None:
        return self._study.data.target_range

    def _fit(self, noisy: Ints) -> SumsStudent:
        known: dict[str, Any] = {"sigma": self._mechanism.sigma}
        if self._target_range is not None:
            how = {**known, "target_range": self._target_range}
            student = fit_target_student(noisy, self._features, self._alike(noisy), **how)
        elif several := self._study.data.several:
            student = fit_labels_student(noisy, self._features, self._pool, **known, several=several)
        else:
            known["balanced"] = self._study.sums.balanced
            student = find_part(RIDGE, "student")(noisy, self._features, self._alike(noisy), **known)
        student.class_names = self._dataset.class_names
        return student

    def _model(self) -> SumsStudent:
        """The student of the sums themselves."""
        return self._ridge or self._fit(self._released())

    def measure(self) -> None:
        """Accuracy of the labels, where the public inputs' true ones are known and are classes."""
        if self._study.data.no_class:
            return
        truth = self._dataset.public_labels
        found = measure(self._ledger, {}, None, truth=truth, num_teachers=0, exact=False)
        if found is not None:
            self.figures.accuracy, evaluation = found
            self._log.write(evaluation)

    def learn(self) -> None:
        """The student of the sums themselves, or one of what they say of the public inputs."""
        with self.figures.timed("student"):
            asked, answered, label = self._ledger.released()
            asked, label = asked[answered], label[answered]
            index, shares, ridge = asked, None, self._model()
            student: SumsStudent | Student | Forest | FittedStudent = ridge
            if self._study.student.name == RIDGE:
                asked = asked[:0]  # no public input's label taught it
            else:
                shares = ridge.predict_proba(self._pool[index])
                student = self._learner.learn(index, label, shares)
        student.save(self._setup.student_path)
        self.figures.student = student
        self.figures.cautions = tuple(self._of_rare(ridge))
        if self._study.data.no_class:
            if self._study.data.several:
                tested = measure_labels(self._study, self._dataset, ridge.predict_proba)
            else:
                tested = measure_target(self._study, self._dataset, ridge.numbers)
            self.figures.accuracy = self.figures.accuracy.with_student(tested)
            return
        self._measure_student(student, asked=asked, index=index, label=label, probabilities=shares)

    def _of_rare(self, student: SumsStudent) -> Iterator[str]:
        """A sentence on classes for whose sake all were counted alike."""
        shares = [
            f"{student.class_names[each]} ({100 * share:.0f} %)" for each, share in student.rare.items()
        ]
        if shares:
            yield (
                f"Few of the records are of class {', '.join(shares)}, so each class counts alike: more of "
                "the rare ones are found, and fewer answers are right in all. balanced = false under [sums] "
                "counts records alike."
            )


class RoundCourse(SumCourse):
    """The course of a study with sums in rounds: weights, the sums of what they leave unexplained, weights.

    Only the last round labels the public inputs; one that never comes does so by the rounds before it. So a
    study whose rounds end early has a row for each that was asked, and labels by those that were released.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._asks = RoundTerms.of(self._terms)
        self._known: dict[int, Totals] = {}  # noisy sums by round

    @cached_property
    def _rounds(self) -> RoundsFit:
        sigma, asks = self._mechanism.sigma, self._asks
        records = None
        if asks.most_units is not None:
            records = (known_records(self._study) or 1) * self._terms.num_clients
        more: dict[str, Any] = {"length": asks.first, "unit": asks.unit, "records": records}
        return RoundsFit(self._features, self._alike(self._noisy_of(0).value), sigma=sigma, **more)

    @cached_property
    def _first(self) -> Floats:
        """Weights by the sums of classes."""
        return self._rounds.begin(self._noisy_of(0).value)

    def next_question(self, number: int) -> Question | None:
        """All features once a round, after the first with the weights so far."""
        place = len(self._ledger.entries())
        if self._ledger.answered:
            return None
        features = np.arange(self._features.dimension, dtype=np.int64)
        places = features + place * self._features.dimension
        return self._question(number, places, given=self._given(place))

    def task(self, question: Question) -> str:
        """A round by its number."""
        return f"summing under masks, round {self._asks.round_of(question) + 1} of {self._asks.questions}"

    def release(self, question: Question, totals: Totals) -> Release:
        """The noisy sums and, in the last round, a label of each public input by all of them."""
        place = self._asks.round_of(question)
        with self._progress.phase("fitting the sums", 1) as bar:
            self._known[place] = self._with_noise(question.digest, totals, place)
            last = place == self._asks.questions - 1
            label = self._labels_by(self._student_after(place)) if last else self._no_label()
            bar.advance()
        return self._charged_in(place, label)

    def void(self, question: Question) -> Release:
        """Labels by the rounds before, if there were any."""
        place = self._asks.round_of(question)
        if not place:
            return self._as_charged(self._no_label())
        self.lost = (
            f"{SumCourse.lost}; what the rounds before released stands, and where hospitals are processes of "
            "their own the same command learns from it"
        )
        return self._charged_in(place, self._labels_by(self._asked_with(place)))

    def _labels_by(self, student: SumsStudent) -> Ints:
        """A label of each public input, by features that are at hand where the sums were fitted to these."""
        drawn = self._study.data.drawn
        return student.predict(self._pool) if drawn else student.predict_of(self._rounds.features)

    def _charged_in(self, place: int, label: Ints) -> Release:
        """As it is charged: with the row whose sums its weights follow from last, and the weights' digest."""
        found = self._as_charged(label, place)
        if not place:
            return found
        told = Provenance(
            round=place + 1,
            strategy=self._asks.kind,
            learnt_to=self._ledger.entries()[place - 1].hash,
            predictions=hashlib.sha256(self._given(place)).hexdigest(),
        )
        return replace(found, provenance=told)

    def _given(self, place: int) -> bytes:
        """What a round is asked with: as an earlier process did, else by the sums before it; then kept.

        Raises:
            IntegrityError: what was kept is not what the ledger names.
        """
        if not place:
            return b""
        kept, entries = self._state.weights(place + 1), self._ledger.entries()
        if kept is None and place == len(entries):
            kept = self._made(place)
            self._state.keep_weights(place + 1, kept)
        told = entries[place].provenance if place < len(entries) else None
        if kept is None or (told is not None and told.predictions != hashlib.sha256(kept).hexdigest()):
            path = self._state.predictions_path(place + 1)
            raise IntegrityError(f"{path}: not what the ledger names as the weights of this round")
        return kept

    def _made(self, place: int) -> bytes:
        """What a round is asked with, by the sums before it."""
        return pack_weights(self._after(place - 1))

    def _after(self, place: int) -> Floats:
        """Weights float64 (dimension, classes) by all rounds up to this one.

        Raises:
            BudgetError: hospitals were asked in it, and there was no sum.
        """
        if not place:
            return self._first
        before, noisy = unpack_weights(self._given(place), self._shape), self._noisy_of(place).value
        _ = self._first  # how many records there are
        return self._rounds.go_on(before, noisy, place)

    def _noisy_of(self, place: int) -> Totals:
        if place not in self._known:
            kept = self._state.totals(self._kept_name(place))
            if kept is None:
                raise BudgetError(
                    f"hospitals were asked for their sums before, and there was no sum; {self.lost}"
                )
            self._known[place] = self._checked(kept, place)
        return self._known[place]

    def keep_for_learning(self, state: CoordinatorState) -> None:
        """Keep the noisy sums of all rounds, which are released."""
        for place, noisy in self._known.items():
            if place < len(self._ledger.entries()):
                state.keep_totals(self._kept_name(place), noisy)

    def _model(self) -> SumsStudent:
        """The student of all rounds that were released; the last row may be of one that never came."""
        last = len(self._ledger.entries()) - 1
        return self._student_after(last) if self._came(last) else self._asked_with(last)

    def _asked_with(self, place: int) -> SumsStudent:
        """The student that hospitals were asked with, which stands where they gave nothing."""
        return self._student_of(unpack_weights(self._given(place), self._shape))

    def _came(self, place: int) -> bool:
        """Whether there was a sum."""
        return place in self._known or self._state.totals(self._kept_name(place)) is not None

    def _student_after(self, place: int) -> SumsStudent:
        """The student of all rounds up to this one, of which the next may have been asked."""
        return self._student_of(self._after(place))

    def _student_of(self, weights: Floats) -> SumsStudent:
        _ = self._first  # how many records each class has
        student = self._rounds.student(weights, balanced=self._study.sums.balanced)
        student.class_names = self._dataset.class_names
        return student

    @property
    def _shape(self) -> tuple[int, int]:
        return self._features.dimension, self._terms.num_classes


class ScoredCourse(RoundCourse):
    """The course of sums in rounds that counts held-out records once, by the weights of all sums.

    The counts are the last row, which labels the public inputs. Where they never come the sums stand.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._scores = ScoredTerms.of(self._terms)

    @property
    def _last(self) -> int:
        return self._scores.questions - 1

    def _mechanism_of(self, place: int) -> SumMechanism:
        return self._scores.counts(self._terms) if place == self._last else self._mechanism

    def next_question(self, number: int) -> Question | None:
        """A round, or the counts."""
        if self._ledger.answered or len(self._ledger.entries()) < self._last:
            return super().next_question(number)
        return self._question(number, self._scores.places(self._terms), given=self._given(self._last))

    def task(self, question: Question) -> str:
        """A round by its number, or the counts."""
        if self._asks.round_of(question) == self._last:
            return "counting held-out records under masks"
        return super().task(question)

    def _made(self, place: int) -> bytes:
        return super()._made(place) if place < self._last else self._rows().to_bytes()

    def _rows(self) -> ScoreRows:
        """By what held-out records are counted: the student, and bins that inputs like them fill alike."""
        student = super()._student_after(self._last - 1)
        shares = student.predict_proba_of(self._rounds.features).astype(np.float64)
        return ScoreRows(
            weights=student.weights,
            offset=student.offset,
            edges=even_edges(shares, self._scores.bins),
            squared_norm=self._scores.squared_norm,
        )

    def _student_after(self, place: int) -> SumsStudent:
        student = super()._student_after(min(place, self._last - 1))
        if place < self._last:
            return student
        found = self._counted()
        if self._balanced(student) and found.shift is not None:
            student.offset = student.offset + np.array([0.0, found.shift])
        return student

    def _balanced(self, student: SumsStudent) -> bool:
        return bool(self._study.sums.balanced or student.rare)

    def _asked_with(self, place: int) -> SumsStudent:
        return (
            super()._asked_with(place) if place < self._last else self._student_of(self._kept_rows().weights)
        )

    def _kept_rows(self) -> ScoreRows:
        asks = self._scores
        given = self._given(self._last)
        return ScoreRows.of_bytes(given, self._shape, bins=asks.bins, squared_norm=asks.squared_norm)

    def _counted(self) -> HeldOutCount:
        """The counts as they were released."""
        asks, terms = self._scores, self._terms
        share = terms.sigma_party
        sigma = self._mechanism.sigma if share is None else share * math.sqrt(terms.num_clients)
        table = self._noisy_of(self._last).value
        return HeldOutCount(table=table / asks.count, sigma=sigma / asks.count, edges=self._kept_rows().edges)

    def measure(self) -> None:
        """Accuracy of labels where true ones are known, and of the student on held-out records."""
        super().measure()
        last = len(self._ledger.entries()) - 1
        if last == self._last and self._came(last):
            own = self._counted().figures(at_threshold=self._balanced(super()._student_after(last - 1)))
            self.figures.accuracy = replace(self.figures.accuracy, own_records=own)


def _noisy_name(digest: str) -> str:
    """By which noisy sums are kept beside the exact ones."""
    return hashlib.sha256(f"{digest}/noisy".encode()).hexdigest()
