"""What studies of hospitals' own records have in common: admit them, ask one question, learn from labels.

What is asked and released between is `server.study_run` (votes, batch by batch) or `server.sum_run` (sums of
features by class, once).
"""

from __future__ import annotations

import io
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.config.backend import CLUSTER, PROCESSES
from pate_fed.config.study import Study
from pate_fed.data import Dataset
from pate_fed.errors import PateFedError
from pate_fed.format import epsilon_text
from pate_fed.learning import RIDGE, TABLE_STUDENTS
from pate_fed.privacy import Ledger
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.make_terms import encoder_file, features_file
from pate_fed.protocol.messages import (
    SUM,
    SUMS,
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
from server.base import STAYS_OPEN
from server.federation import AdmittedKeys, Channel, Federation, Invitation
from server.learning import Learner
from server.release import releases_told
from server.state import CoordinatorState, Totals
from server.testing import measure_student

if TYPE_CHECKING:
    from pate_fed.learning.students.class_sums import SumsStudent
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

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
        plain = self.study.student.name in (*TABLE_STUDENTS, RIDGE)
        return self.run_dir / ("student.npz" if plain else "student.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a run works with: its state, the hospitals' keys where they have some, log, progress and stop."""

    state: CoordinatorState
    keys: AdmittedKeys | None
    log: RunLog
    progress: Progress
    stop: threading.Event


class BaseRun(ABC):
    """One study, from the first message to the trained student."""

    def __init__(self, setup: StudySetup, ledger: Ledger, context: RunContext) -> None:
        self._study, self._dataset, self._terms = setup.study, setup.dataset, setup.terms
        self._setup, self._ledger = setup, ledger
        self._state, self._keys, self._log = context.state, context.keys, context.log
        self._progress, self._stop = context.progress, context.stop
        self._tell_charged()
        self._learner = Learner(
            self._study,
            self._dataset,
            log=context.log,
            progress=context.progress,
            stop=context.stop,
            path=setup.student_path,
            state=context.state,
        )
        self.accuracy, self.seconds = Accuracy(), Seconds()
        self.student: Any = None  # once it is trained
        self.left_open = False  # a masked sum, with which the same command goes on
        self.cautions: tuple[str, ...] = ()  # sentences on what released figures show

    @abstractmethod
    def run(self, grid: Grid) -> None:
        """Go through all phases.

        Raises:
            QuorumError: too few hospitals are left.
            BudgetError: what is asked would pass the budget, or was asked before and never comes.
            Stopped: the user asked to stop; what was released is on the ledger.
        """

    # Admit and teach.

    def _teach(self, grid: Grid) -> Federation:
        """Have every hospital agree to the terms and get ready; who is in then takes part to the end."""
        engine, apart = self._study.engine, self._setup.apart
        channel = Channel(
            grid=grid,
            stop=self._stop,
            progress=self._progress,
            backend=engine.backend,
            answer_s=engine.vote_timeout_s,
            cluster=engine.played_on == CLUSTER,
        )
        federation = Federation(
            self._terms,
            channel,
            self._state,
            sum_type=SUM if self._terms.sums is None else SUMS,
            keys=self._keys,
            left_out=self._log.write,
            waiting=self._log.write,
        )
        request = TeachRequest(
            terms=self._terms.to_json(),
            enrol=federation.enrol_request,
            encoder=encoder_file(self._study, self._dataset),
            features=features_file(self._study, self._dataset),
        )
        with_pool = replace(request, pool=self._pool_file() if apart else b"")

        def again(refusal: RefusalReply) -> Record | None:
            return with_pool.to_record() if apart and refusal.refusal is Refusal.NO_POOL else None

        self._tell_epsilon()
        with self._timed("teach"):
            federation.admit(
                Invitation(
                    message_type=TEACH,
                    request=(with_pool if len(with_pool.pool) <= _SMALL_POOL else request).to_record(),
                    reply=TeachReply,
                    again=again,
                    answer_s=engine.teach_timeout_s,
                    phase="teach",
                    task="getting ready" if self._terms.sums is not None else "teaching",
                    done="are ready to sum" if self._terms.sums is not None else "trained their teachers",
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

    # Ask.

    def _sum(self, federation: Federation, question: VoteRequest, *, task: str) -> Totals:
        start = time.perf_counter()
        try:
            with self._timed("vote"):
                totals = federation.collect(question, task=task)
        except Exception as error:
            if self._stays_open(federation) and isinstance(error, PateFedError):
                raise type(error)(f"{error}; {STAYS_OPEN}") from error
            raise
        self._log.write(
            Voted(
                batch=question.batch,
                clients=totals.voters,
                queries=len(question.released),
                measured=question.measured,
                seconds=time.perf_counter() - start,
            )
        )
        return totals

    def _stays_open(self, federation: Federation) -> bool:
        """Whether a masked sum that failed is gone on with by the next process, as after a crash."""
        self.left_open = federation.open and self._setup.apart
        return self.left_open

    def _question(self, number: int, index: Ints, *, measured: int = 0) -> VoteRequest:
        return VoteRequest(terms_digest=self._terms.digest, batch=number, index=index, measured=measured)

    # The ledger, and what the log tells of it.

    def _charged(self) -> list[str]:
        return [entry.batch_digest for entry in self._ledger.entries()]

    def _tell_charged(self) -> None:
        """Have the log tell of what a process charged that died before it told."""
        told = len(releases_told(self._setup.run_dir))
        for number, entry in enumerate(self._ledger.entries()[told:], told):
            event, epsilon = entry.event, entry.epsilon
            self._log.write(
                ReleasedBatch(batch=number, asked=event.asked, answered=event.answered, epsilon=epsilon)
            )

    def _log_release(self, batch: int, *, asked: int, answered: int) -> None:
        epsilon = self._ledger.epsilon()
        self._log.write(ReleasedBatch(batch=batch, asked=asked, answered=answered, epsilon=epsilon))
        self._tell_epsilon()

    def _tell_epsilon(self) -> None:
        """Show what is spent so far beside what never is passed."""
        most = guaranteed_epsilon(self._ledger.terms)
        self._progress.status(f"ε {epsilon_text(self._ledger.epsilon())} of {epsilon_text(most)}")

    # Learn.

    def _measure_student(
        self,
        student: Student | Forest | FittedStudent | SumsStudent,
        *,
        asked: Ints,
        index: Ints,
        label: Ints,
        probabilities: NDArray[np.float32] | None = None,
    ) -> None:
        """The student's accuracy by the rule of `server.testing`.

        `asked` are the places of whose inputs it may know a label; it learnt
        from `label` of `index`, all int64 (n,), or their `probabilities` (n, classes).
        """
        tested = measure_student(
            self._study,
            self._dataset,
            asked=asked,
            predict=student.predict,
            predict_proba=student.predict_proba,
            predict_left_out=lambda parts: self._learner.predict_left_out(index, label, parts, probabilities),
        )
        self.accuracy = self.accuracy.with_student(tested)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = getattr(self.seconds, phase) or 0.0
            self.seconds = replace(self.seconds, **{phase: spent + time.perf_counter() - start})
