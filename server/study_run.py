"""The road of a study with votes: admit and teach; then batch by batch ask, sum and release; then learn.

`StudyRun.run` is all of it, in order. What an auditor should find: whether a batch fits the budget is decided
before it is asked; who votes is fixed before anything is unmasked; a batch that was asked is charged, also
where it comes to nothing; a label is on the ledger's disk before anyone uses or sees it. A process that takes
over asks the very question again that was open, and no other in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.config.study import Study
from pate_fed.data import repeated_inputs
from pate_fed.errors import InputError, IntegrityError, QuorumError
from pate_fed.learning.students.own_strategy import OwnStrategy, PublicView
from pate_fed.protocol.cost import make_interactive
from pate_fed.protocol.messages import VoteRequest
from pate_fed.structure.parts import is_part_name, load_part
from server.base_run import BaseRun, RunContext, StudySetup
from server.federation import Federation
from server.figures import measure
from server.query_rounds import QueryRound, QueryRounds
from server.refused_classes import refusal_warnings
from server.release import LabelReleaser
from server.state import StudentPredictions, Totals

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]


class StudyRun(BaseRun):
    """One study with votes, from the first message to the trained student.

    `totals` are private, by their batches' digests.
    """

    def __init__(self, setup: StudySetup, releaser: LabelReleaser, context: RunContext) -> None:
        super().__init__(setup, releaser.ledger, context)
        self._releaser = releaser
        self._open = self._cut_off()
        self._next_batch = self._first_number()
        pool = self._dataset.num_queries
        self._repeated = repeated_inputs(self._dataset)[:pool]
        self.rounds = QueryRounds(
            self._study.queries,
            self._ledger,
            self._state,
            order=_asking_order(self._study, pool, self._repeated),
            against=make_interactive(self._terms),
            learn=self._learn_predictions,
            own=self._choose_by_own if is_part_name(self._study.queries.strategy) else None,
        )
        self.rounds.reinforced()  # a damaged file of an earlier round is found before anything is asked
        self.totals = self._kept_totals()

    def run(self, grid: Grid) -> None:
        """Go through all phases; no batch is asked that could pass the budget."""
        self._measure(None if self._state.all_asked else self._ask(grid))
        self._learn()

    def _ask(self, grid: Grid) -> Totals | None:
        """All that hospitals take part in; the votes on the test inputs, where they are asked for."""
        evaluated: Totals | None = None
        federation = self._teach(grid)  # who takes part is fixed before the first question
        for question in self._questions():  # the budget holds what is asked, whatever the votes will be
            totals = self._collect(federation, question)  # charged even where it fails, once votes may come
            if totals is None:
                continue
            asked = len(question.released)
            self._release(question, totals.rows(slice(asked)))  # on the disk before a label is used or shown
            if question.measured:
                evaluated = totals.rows(slice(asked, None))
        self._state.note_all_asked()
        return evaluated

    # Ask, sum, release.

    def _questions(self) -> Iterator[VoteRequest]:
        """One batch after another, until labels, queries or the budget are used up.

        Each is chosen from the ledger alone. A batch's size is what the budget holds for certain, before it
        is asked: a stop afterwards would tell something about the votes. The one that was open comes first,
        as it was asked: the ledger, and so the budget, is what it was then. The first new one names the test
        inputs too: a message more to each party, and under masks a sum more, would cost far more than rows.
        """
        if self._open is not None:
            yield self._open
        beside = self._test_inputs()
        while size := self.rounds.limit(self._releaser.room(self._batch_size())):
            self._next_batch += 1
            index = np.concatenate([self.rounds.choose(size), beside])
            yield self._question(self._next_batch - 1, index, measured=len(beside))
            beside = beside[:0]

    def _test_inputs(self) -> Ints:
        """Places of the test inputs where teachers are measured on them: two accuracies, nothing released."""
        pool, inputs = self._dataset.num_queries, len(self._dataset.public_labels)
        # A vote under hospitals' noise costs whether or not anything is released.
        wanted = self._study.queries.evaluate and not self._terms.adds_noise
        return np.arange(pool, inputs if wanted else pool, dtype=np.int64)

    def _choose_by_own(self, left: Ints, wanted: int, index: Ints, label: Ints, present: QueryRound) -> Ints:
        """The next questions by a strategy of the user's own, which is shown nothing but what is public."""
        name, dataset, told = self._study.queries.strategy, self._dataset, present.predictions
        seen = PublicView(
            inputs=dataset.public_images[: dataset.num_queries],
            left=left,
            index=index,
            labels=label,
            probabilities=None if told is None else told.probabilities.copy(),
            num_classes=dataset.num_classes,
            wanted=wanted,
            seed=self._study.seed_for("strategy", present.number, dataset.num_queries - len(left)),
        )
        return OwnStrategy(part=load_part(name, "query strategy"), name=name).choose(seen)

    def _batch_size(self) -> int:
        left = self._dataset.num_queries - int(self._repeated.sum()) - self._releaser.asked
        return min(self._study.queries.batch_size, left)

    def _collect(self, federation: Federation, question: VoteRequest) -> Totals | None:
        """The totals of one batch; one that can never come, once masked votes were asked for, is charged.

        One that failed for another reason, or at which the user stopped, is gone on with, as after a crash;
        in a simulation nobody can. None where a batch under masks that a dead process left open can never
        come to a sum: its number is never used again, and the study goes on with the next.
        """
        try:
            return self._sum(federation, question, task=f"voting, batch {question.batch + 1}")
        except Exception as error:
            if self._stays_open(federation):
                raise
            if federation.spent:
                self._void(question.batch, question.digest, question.released)
            given_up = isinstance(error, QuorumError | IntegrityError) and self._terms.secure_sum
            if question is self._open and given_up:
                return None
            raise

    def _release(self, question: VoteRequest, totals: Totals) -> None:
        """Add noise and release one batch's labels, once they are on the ledger."""
        if not self._terms.adds_noise:  # exact totals, for figures after the fact
            self._state.keep_totals(question.digest, totals)
        with self._timed("aggregate"):
            # On return the row and its labels are on the disk; no label exists anywhere before.
            released = self._releaser.release(
                question.digest,
                totals,
                provenance=self.rounds.current().provenance,
                predictions=self.rounds.predictions(question.released),
            )
        self._state.forget_answers()  # only now: until the charge a process that takes over needs them
        self.totals[question.digest] = totals
        self._log_release(question.batch, asked=released.asked, answered=int(released.answered.sum()))

    def _void(self, number: int, digest: str, index: Ints) -> None:
        self._releaser.void(digest, index)
        self._state.forget_answers()
        self._log_release(number, asked=len(index), answered=0)

    def _cut_off(self) -> VoteRequest | None:
        """The question that a dead process left open, to be asked again as it was; None: there is none."""
        last = self._state.last_batch
        if last is None or last.digest in self._charged():
            return None
        question = self._question(last.number, last.index, measured=last.measured)
        if question.digest == last.digest:
            return question
        if last.asked and self._terms.secure_sum:  # not this study's to ask again; votes may be on their way
            self._void(last.number, last.digest, question.released)
        return None

    def _first_number(self) -> int:
        """The number of the first new batch; under masks no number is used twice, charged or not."""
        last = self._state.last_batch
        if last is not None and (self._terms.secure_sum or self._open is not None):
            return last.number + 1
        return len(self._charged())

    def _kept_totals(self) -> dict[str, Totals]:
        """Totals of what an earlier process released; where they are damaged, figures do without."""
        found: dict[str, Totals] = {}
        for digest in self._charged():
            with suppress(IntegrityError):
                totals = self._state.totals(digest)
                found |= {} if totals is None else {digest: totals}
        return found

    # Measure and learn.

    def _measure(self, evaluated: Totals | None) -> None:
        """Accuracy of teachers, ensemble and labels, where the public inputs' true labels are known."""
        measured = measure(
            self._ledger,
            self.totals,
            evaluated,
            truth=self._dataset.public_labels,
            num_teachers=self._study.parties.num_teachers,
            exact=not self._terms.adds_noise,
        )
        if measured is not None:
            self.accuracy, evaluation = measured
            self._log.write(evaluation)

    def _learn(self) -> None:
        """Train the student on released labels and all public inputs; test it by the rule of `testing`."""
        asked, answered, _ = self._ledger.released()
        if not answered.any():
            raise InputError(
                f"none of {len(answered)} queries was answered, so nothing can be learnt: the "
                f"threshold of {self._terms.aggregation.threshold:g} votes is out of these teachers' reach "
                "(--threshold)"
            )
        with self._timed("student"):
            index, label = self.rounds.labels()
            student = self._learner.learn(index, label)
        student.save(self._setup.student_path)
        self.student = student
        self.cautions = self._cautions(student)
        self._measure_student(student, asked=asked, index=index, label=label)

    def _cautions(self, student: Student | Forest | FittedStudent) -> tuple[str, ...]:
        index, answered, label = self._ledger.released()
        return refusal_warnings(
            answered=answered,
            label=label,
            said=student.predict(self._dataset.public_images[index]),
            class_names=self._dataset.class_names,
        )

    def _learn_predictions(self, number: int, index: Ints, label: Ints) -> StudentPredictions:
        with self._timed("student"):
            return self._learner.of_pool(number, index, label)


def _asking_order(study: Study, pool: int, repeated: NDArray[np.bool_]) -> Ints:
    """Places in the order in which they are asked about, but for inputs that are the same as an earlier one.

    Data of one's own may be sorted by anything, so they are asked about at random, fixed by the study.
    """
    order = np.arange(pool, dtype=np.int64)
    if study.data.from_files or study.data.own:
        order = np.random.default_rng(study.seed_for("queries")).permutation(pool)
    return order[~repeated[order]]
