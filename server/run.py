"""A study's run: hospitals join; question by question they are asked, and it is released; a student learns.

`Run.run` is all of it, in order, for every kind of question. What an auditor should find: whether a question
fits the budget is decided before it is asked; who answers is fixed before anything is unmasked; what was
asked is charged, also where it comes to nothing; a release is on the ledger's disk before anyone uses or sees
it. A process that takes over asks the very question again that was open, and no other in its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from flwr.serverapp import Grid

from pate_fed.config.backend import CLUSTER, INLINE
from pate_fed.errors import IntegrityError, PateFedError, QuorumError
from pate_fed.privacy import Ledger, NoiseSource
from pate_fed.protocol.heads import LEDGER, Head, heads_text, ledger_head
from pate_fed.protocol.messages import JoinRequest, Question, Record, Refusal, RefusalReply
from pate_fed.report.log import Taught, Voted
from pate_fed.report.result import LeftOut
from server.base import Charges
from server.federation import Channel, Federation, Invitation
from server.kinds import COURSES, Figures, RunContext, Setup
from server.release import Release, ReleaseFailedError
from server.state import Totals

STAYS_OPEN = (
    "the sum stays open, and nothing is charged for it yet: once all hospitals are there, the same command "
    "goes on with it"
)
"""Of a masked sum that failed, and that another process may still come to."""
_SMALL = 4 * 1024**2  # bytes that every hospital is sent at once, as a round trip takes seconds
_AT_ONCE = 32  # requests under way where each holds a larger public file, or all lie in one process


class Run:
    """One study, from the first message to the trained student."""

    def __init__(self, setup: Setup, ledger: Ledger, context: RunContext, *, noise: NoiseSource) -> None:
        self._setup, self._terms, self._ledger, self._context = setup, setup.terms, ledger, context
        self._state, self._log, self._progress = context.state, context.log, context.progress
        self.figures = Figures()
        self.left_open = False  # a masked sum, with which the same command goes on
        self.all_asked = self.unlearnt = False  # unlearnt: labels are paid for, and their student failed
        self._charges = Charges(ledger, context.log, context.progress, setup.run_dir)
        last = self._state.last_batch
        self.figures.asked = bool(ledger.entries()) or (last is not None and last.asked)
        self.course = COURSES[self._terms.asks.kind](setup, ledger, context, self.figures, noise=noise)
        self._open = self._cut_off()
        self._next_number = self._first_number()

    def run(self, grid: Grid) -> None:
        """Go through all phases.

        Raises:
            QuorumError: too few hospitals are left.
            BudgetError: what is asked would pass the budget, or was asked before and never comes.
            InputError: nothing can be learnt from what was released.
            Stopped: the user asked to stop; what was released is on the ledger.
        """
        if not self._state.all_asked:
            self._ask_all(grid)
            self._state.note_all_asked()
        self.all_asked = True
        with self._learning():
            self.course.measure()
            self.course.learn()

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Note where a student fails whose labels are paid for."""
        try:
            yield
        except BaseException:
            self.unlearnt = self._ledger.answered > 0
            raise

    def _ask_all(self, grid: Grid) -> None:
        """All that hospitals take part in; who takes part is fixed before the first question."""
        federation: Federation | None = None
        while (question := self._next()) is not None:
            # What an earlier process got of hospitals that give it once. Others are asked again, as one that
            # was revoked since does not count.
            totals = self._state.totals(question.digest) if self.course.once else None
            self.figures.kept = totals is not None
            if totals is None:
                federation = federation or self._join(grid)
                if self._setup.apart and question is not self._open:
                    question = replace(question, heads=federation.heads({LEDGER: self._ledger_head()}))
                totals = self._collect(federation, question)
            if totals is None:  # charged: it never comes
                continue
            self.figures.hospitals, self.figures.asked = totals.voters, True
            asked = len(question.released)
            self._release(question, totals.rows(slice(asked)))
            if question.measured:
                self.course.measured(totals.rows(slice(asked, None)))

    def _ledger_head(self) -> Head:
        """How far the ledger is, for hospitals to remember."""
        rows, head = len(self._ledger.entries()), self._ledger.head
        return ledger_head(self._state.identity(), rows=rows, head=head)

    def _next(self) -> Question | None:
        """The question that was open first, as it was asked: the ledger is what it was then."""
        if (opened := self._open) is not None and opened.digest not in self._charged():
            return opened
        with self._learning():  # interactive rounds learn before they ask
            question = self.course.next_question(self._next_number)
        self._next_number += question is not None
        return question

    def _join(self, grid: Grid) -> Federation:
        """Have every hospital agree to the terms and get ready; who is in then takes part to the end."""
        setup, terms = self._setup, self._terms
        engine, file, reads = setup.engine, setup.file(), setup.apart and terms.asks.reads_inputs
        channel = Channel(
            grid=grid,
            stop=self._context.stop,
            progress=self._progress,
            backend=engine.backend,
            answer_s=engine.vote_timeout_s,
            window=_AT_ONCE if len(file) > _SMALL or engine.backend == INLINE else None,
            cluster=engine.played_on == CLUSTER,
        )
        self._context.gather()
        federation = Federation(
            terms,
            channel,
            self._state,
            keys=self._context.keys,
            left_out=self._note_left_out,
            waiting=self._log.write,
        )
        request = later = JoinRequest(terms=terms.to_json(), enrol=federation.enrol_request, file=file)
        if setup.apart:  # later the ledger is further
            heads, run = heads_text({LEDGER: self._ledger_head()}), self._state.identity().public
            request = replace(request, heads=heads, coordinator=run, hospitals=federation.admitted)
        with_pool = replace(request, pool=setup.pool() if reads else b"")

        def again(refusal: RefusalReply) -> Record | None:
            return with_pool.to_record() if reads and refusal.refusal is Refusal.NO_POOL else None

        invitation = Invitation(
            request=(with_pool if len(with_pool.pool) <= _SMALL else request).to_record(),
            again=again,
            answer_s=engine.teach_timeout_s,
            phase="teach",
            task="teaching" if terms.asks.trains else "getting ready",
            done="trained their teachers" if terms.asks.trains else "are ready to answer",
        )
        self._charges.show_epsilon()
        with self.figures.timed("teach"):
            try:
                federation.admit(invitation)
            finally:
                self.figures.hospitals = len(federation.participants)
        if setup.apart and self._context.keys is None:
            federation.follow_restarts(later.to_record())
        self._context.audience.joins(federation.participants.values())
        ready = len(federation.participants)
        self._log.write(Taught(clients=ready, seconds=self.figures.seconds.teach or 0.0))
        return federation

    def _note_left_out(self, event: LeftOut) -> None:
        self._log.write(event)
        if self._setup.apart:
            self._progress.log(f"left out: {event.party}, {event.reason} ({event.phase})")
        if event.reason == Refusal.LEFT.sentence:
            self._context.audience.leaves(event.party)

    # Ask.

    def _collect(self, federation: Federation, question: Question) -> Totals | None:
        """The totals of one question; one that can never come is charged, once masked answers were asked for.

        One that failed for another reason, or at which the user stopped, is gone on with, as after a crash;
        in a simulation nobody can. None where a question under masks that a dead process left open can never
        come to a sum: its number is never used again, and the study goes on with the next.
        """
        start = time.perf_counter()
        self.figures.asked = self.figures.asked or not self._terms.secure_sum
        try:
            with self.figures.timed("vote"):
                try:
                    totals = federation.collect(question, task=self.course.task(question))
                finally:
                    self.figures.asked = self.figures.asked or federation.spent
        except Exception as error:
            if self._stays_open(federation):
                if isinstance(error, PateFedError):
                    raise type(error)(f"{error}; {STAYS_OPEN}") from error
                raise
            if federation.spent:
                self._charge(question, self.course.void(question))
                if self.course.once and isinstance(error, PateFedError):
                    raise type(error)(f"{error}; {self.course.lost}") from error
            given_up = isinstance(error, QuorumError | IntegrityError) and self._terms.secure_sum
            if question is self._open and given_up:
                self._open = None
                return None
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
        if self.course.once or not self._terms.adds_noise:  # exact totals also serve figures after the fact
            self._state.keep_totals(question.digest, totals)
        return totals

    def _stays_open(self, federation: Federation) -> bool:
        """Whether a masked sum that failed is gone on with by the next process, as after a crash."""
        self.left_open = federation.open and self._setup.apart
        return self.left_open

    def _cut_off(self) -> Question | None:
        """The question that a dead process left open, to be asked again as it was; None: there is none."""
        last = self._state.last_batch
        if last is None or last.digest in self._charged():
            return None
        question = replace(last.question, terms_digest=self._terms.digest)
        if question.digest == last.digest:
            return question
        if last.asked and self._terms.secure_sum:  # not ours to ask again, and answers may be on their way
            self._charge(question, self.course.void(question), digest=last.digest)
        return None

    def _first_number(self) -> int:
        """The number of the first new question; under masks no number is used twice, charged or not."""
        last = self._state.last_batch
        if last is not None and (self._terms.secure_sum or self._open is not None):
            return last.question.batch + 1
        return len(self._charged())

    # Release.

    def _release(self, question: Question, totals: Totals) -> None:
        """Add noise and release; on return the row is on the disk, and nothing of it was anywhere before."""
        with self.figures.timed("aggregate"):
            try:
                drawn = self.course.release(question, totals)
            except ReleaseFailedError:
                self._charge(question, self.course.void(question))
                raise
            self._charge(question, drawn)
        self.course.released(question, totals)

    def _charge(self, question: Question, drawn: Release, *, digest: str | None = None) -> None:
        self._charges.charge(
            drawn,
            batch=question.batch,
            batch_digest=digest or question.digest,
            charged=self._state.forget_answers,  # until then a process that takes over needs them
        )

    def _charged(self) -> list[str]:
        return [entry.batch_digest for entry in self._ledger.entries()]
