"""The road of a study with votes: admit and teach; then batch by batch ask, sum and release; then learn.

`StudyRun.run` is all of it, in order. What an auditor should find: whether a batch fits the budget is decided
before it is asked; who votes is fixed before anything is unmasked; a batch that was asked is charged, also
where it comes to nothing; a label is on the ledger's disk before anyone uses or sees it. A process that takes
over asks the very question again that was open, and no other in its place.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.config.sections import PROCESSES
from pate_fed.config.study import Study
from pate_fed.data import Dataset, repeated_inputs
from pate_fed.errors import InputError, IntegrityError, QuorumError
from pate_fed.learning import TABLE_STUDENTS
from pate_fed.protocol.cost import make_interactive
from pate_fed.protocol.make_terms import encoder_file
from pate_fed.protocol.messages import (
    EVALUATION,
    RELEASE,
    SUM,
    TEACH,
    Record,
    RefusalReply,
    TeachReply,
    TeachRequest,
    VoteRequest,
)
from pate_fed.protocol.refusals import Refusal
from pate_fed.protocol.terms import Terms
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.log import RunLog, Taught, Voted
from pate_fed.report.result import ReleasedBatch, Seconds
from pate_fed.report.terminal import Progress
from server.federation import AdmittedKeys, Channel, Federation, Invitation
from server.figures import measure
from server.learning import Learner
from server.query_rounds import QueryRounds
from server.refused_classes import refusal_warnings
from server.release import LabelReleaser, releases_told
from server.state import CoordinatorState, StudentPredictions, Totals
from server.testing import measure_student

if TYPE_CHECKING:
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

__all__ = ["StudyRun", "StudySetup"]

Ints = NDArray[np.int64]

_SMALL_POOL = 4 * 1024**2  # bytes that every hospital is sent at once, as a round trip takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySetup:
    """What is fixed before the first message: settings, public data, terms, and where the run is written."""

    study: Study
    dataset: Dataset
    terms: Terms
    run_dir: Path

    @property
    def apart(self) -> bool:
        """Whether hospitals are processes of their own: only then is a study worth going on with."""
        return self.study.engine.backend == PROCESSES

    @property
    def student_path(self) -> Path:
        """The student's file."""
        return self.run_dir / ("student.npz" if self.study.student.name in TABLE_STUDENTS else "student.pt")


class StudyRun:
    """One study, from the first message to the trained student.

    `totals` are private, by their batches' digests. `keys` are the hospitals', where they have some.
    """

    def __init__(
        self,
        setup: StudySetup,
        releaser: LabelReleaser,
        state: CoordinatorState,
        *,
        keys: AdmittedKeys | None,
        log: RunLog,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._study, self._dataset, self._terms = setup.study, setup.dataset, setup.terms
        self._setup, self._releaser, self._state, self._keys = setup, releaser, state, keys
        self._log, self._progress, self._stop = log, progress, stop
        self._ledger = releaser.ledger
        self._tell_charged()
        self._open = self._cut_off()
        self._next_batch = self._first_number()
        pool = self._dataset.num_queries
        self._repeated = repeated_inputs(self._dataset)[:pool]
        self._learner = Learner(
            self._study,
            self._dataset,
            log=log,
            progress=progress,
            stop=stop,
            path=setup.student_path,
            state=state,
        )
        self.rounds = QueryRounds(
            self._study.queries,
            self._ledger,
            state,
            pool=pool,
            against=make_interactive(self._terms),
            learn=self._learn_predictions,
            repeated=self._repeated,
            order=_asking_order(self._study, pool),
        )
        self.rounds.reinforced()  # a damaged file of an earlier round is found before anything is asked
        self.totals = self._kept_totals()
        self.accuracy, self.seconds = Accuracy(), Seconds()
        self.cautions: tuple[str, ...] = ()

    def run(self, grid: Grid) -> None:
        """Go through all phases.

        Raises:
            QuorumError: too few hospitals are left.
            BudgetError: a batch would pass the budget (none is asked that could).
            Stopped: the user asked to stop; what was released is on the ledger.
        """
        self._measure(None if self._state.all_asked else self._ask(grid))
        self._learn()

    def _ask(self, grid: Grid) -> Totals | None:
        """All that hospitals take part in; the votes on the test inputs, where they are asked for."""
        federation = self._teach(grid)  # who takes part is fixed before the first question
        for question in self._questions():  # the budget holds what is asked, whatever the votes will be
            totals = self._collect(federation, question)  # charged even where it fails, once votes may come
            if totals is not None:
                self._release(question, totals)  # on the ledger's disk before a label is used or shown
        self._state.note_all_asked()
        return self._evaluate(federation)

    # Admit and teach.

    def _teach(self, grid: Grid) -> Federation:
        """Have every hospital agree to the terms and train; who is in then takes part to the end."""
        engine, apart = self._study.engine, self._setup.apart
        channel = Channel(
            grid=grid,
            stop=self._stop,
            progress=self._progress,
            backend=engine.backend,
            answer_s=engine.vote_timeout_s,
        )
        federation = Federation(
            self._terms, channel, self._state, sum_type=SUM, keys=self._keys, left_out=self._log.write
        )
        request = TeachRequest(
            terms=self._terms.to_json(),
            enrol=federation.enrol_request,
            encoder=encoder_file(self._study, self._dataset),
        )
        with_pool = replace(request, pool=self._pool_file() if apart else b"")

        def again(refusal: RefusalReply) -> Record | None:
            return with_pool.to_record() if apart and refusal.refusal is Refusal.NO_POOL else None

        with self._timed("teach"):
            federation.admit(
                Invitation(
                    message_type=TEACH,
                    request=(with_pool if len(with_pool.pool) <= _SMALL_POOL else request).to_record(),
                    reply=TeachReply,
                    again=again,
                    answer_s=engine.teach_timeout_s,
                    phase="teach",
                    task="teaching",
                    done="trained their teachers",
                )
            )
        if apart and self._keys is None:
            federation.follow_restarts(request.to_record())
        ready = len(federation.participants)
        self._log.write(Taught(clients=ready, seconds=self.seconds.teach or 0.0))
        return federation

    def _pool_file(self) -> bytes:
        """The public inputs as a .npy file; no label of theirs is in it."""
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(self._dataset.public_images), allow_pickle=False)
        return buffer.getvalue()

    # Ask, sum, release.

    def _questions(self) -> Iterator[VoteRequest]:
        """One batch after another, until labels, queries or the budget are used up.

        Each is chosen from the ledger alone. A batch's size is what the budget holds for certain, before it
        is asked: a stop afterwards would tell something about the votes. The one that was open comes first,
        as it was asked: the ledger, and so the budget, is what it was then.
        """
        if self._open is not None:
            yield self._open
        while size := self.rounds.limit(self._releaser.room(self._batch_size())):
            self._next_batch += 1
            yield self._question(self._next_batch - 1, RELEASE, self.rounds.choose(size))

    def _batch_size(self) -> int:
        left = self._dataset.num_queries - int(self._repeated.sum()) - self._releaser.asked
        return min(self._study.queries.batch_size, left)

    def _collect(self, federation: Federation, question: VoteRequest) -> Totals | None:
        """The totals of one batch; one that fails while masked votes may be on their way is charged.

        None where hospitals do not go on with a batch under masks that a dead process left open: it never
        comes to a sum, and its number is never used again, so the study goes on with the next.
        """
        try:
            return self._sum(federation, question, task=f"voting, batch {question.batch + 1}")
        except Exception as error:
            if federation.spent:
                self._void(question.batch, question.digest, question.index)
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
                predictions=self.rounds.predictions(question.index),
            )
        self._state.forget_answers()  # only now: until the charge a process that takes over needs them
        self.totals[question.digest] = totals
        self._log_release(question.batch, asked=released.asked, answered=int(released.answered.sum()))

    def _void(self, number: int, digest: str, index: Ints) -> None:
        self._releaser.void(digest, index)
        self._state.forget_answers()
        self._log_release(number, asked=len(index), answered=0)

    def _tell_charged(self) -> None:
        """Have the log tell of what a process charged that died before it told."""
        told = len(releases_told(self._setup.run_dir))
        for number, entry in enumerate(self._ledger.entries()[told:], told):
            event, epsilon = entry.event, entry.epsilon
            self._log.write(
                ReleasedBatch(batch=number, asked=event.asked, answered=event.answered, epsilon=epsilon)
            )

    def _cut_off(self) -> VoteRequest | None:
        """The question that a dead process left open, to be asked again as it was; None: there is none."""
        last = self._state.last_batch
        if last is None or last.digest in self._charged():
            return None
        question = self._question(last.number, RELEASE, last.index)
        if question.digest == last.digest:
            return question
        if last.asked and self._terms.secure_sum:  # not this study's to ask again; votes may be on their way
            self._void(last.number, last.digest, last.index)
        return None

    def _first_number(self) -> int:
        """The number of the first new batch; under masks no number is used twice, charged or not."""
        last = self._state.last_batch
        if last is not None and (self._terms.secure_sum or self._open is not None):
            return last.number + 1
        return len(self._charged())

    def _charged(self) -> list[str]:
        return [entry.batch_digest for entry in self._ledger.entries()]

    def _kept_totals(self) -> dict[str, Totals]:
        """Totals of what an earlier process released; where they are damaged, figures do without."""
        found: dict[str, Totals] = {}
        for digest in self._charged():
            with suppress(IntegrityError):
                totals = self._state.totals(digest)
                found |= {} if totals is None else {digest: totals}
        return found

    def _sum(self, federation: Federation, question: VoteRequest, *, task: str) -> Totals:
        start = time.perf_counter()
        with self._timed("vote"):
            totals = federation.collect(question, task=task)
        seconds, queries = time.perf_counter() - start, len(question.index)
        self._log.write(Voted(batch=question.batch, clients=totals.voters, queries=queries, seconds=seconds))
        return totals

    def _question(self, number: int, purpose: str, index: Ints) -> VoteRequest:
        return VoteRequest(terms_digest=self._terms.digest, batch=number, purpose=purpose, index=index)

    def _log_release(self, batch: int, *, asked: int, answered: int) -> None:
        epsilon = self._ledger.epsilon()
        self._log.write(ReleasedBatch(batch=batch, asked=asked, answered=answered, epsilon=epsilon))

    # Evaluate and learn.

    def _evaluate(self, federation: Federation) -> Totals | None:
        """Votes on the test inputs too, for two accuracy figures alone; nothing is released."""
        pool, inputs = self._dataset.num_queries, len(self._dataset.public_labels)
        # A vote under hospitals' noise costs whether or not anything is released.
        if not self._study.queries.evaluate or self._terms.adds_noise or pool == inputs:
            return None
        index = np.arange(pool, inputs, dtype=np.int64)
        question = self._question(len(self.totals), EVALUATION, index)
        return self._sum(federation, question, task="voting, to evaluate")

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
        self.cautions = self._cautions(student)
        tested = measure_student(
            self._study,
            self._dataset,
            asked=asked,
            predict=student.predict,
            predict_left_out=lambda parts: self._learner.predict_left_out(index, label, parts),
        )
        self.accuracy = self.accuracy.with_student(tested)

    def _cautions(self, student: Student | Forest) -> tuple[str, ...]:
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

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = getattr(self.seconds, phase) or 0.0
            self.seconds = replace(self.seconds, **{phase: spent + time.perf_counter() - start})


def _asking_order(study: Study, pool: int) -> Ints | None:
    """Data of one's own may be sorted by anything, so they are asked about at random, fixed by the study."""
    if not (study.data.from_files or study.data.own):
        return None
    return np.random.default_rng(study.seed_for("queries")).permutation(pool)
