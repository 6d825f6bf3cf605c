"""The study's course: teach, vote and release batch by batch, evaluate, learn.

Everything that happened is an event in the run's log; labels are in the ledger before anyone uses them.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.config.study import PROCESSES, Study
from pate_fed.data import Dataset, repeated_inputs
from pate_fed.errors import InputError
from pate_fed.privacy import Ledger
from pate_fed.protocol.cost import make_interactive
from pate_fed.protocol.make_terms import encoder_file
from pate_fed.protocol.messages import EVALUATION, RELEASE, Record, TeachRequest, Terms, VoteRequest
from pate_fed.report import (
    Accuracy,
    Evaluation,
    LeftOut,
    Progress,
    ReleasedBatch,
    RunLog,
    Seconds,
    Taught,
    Voted,
    count_confusion,
    count_top_votes,
)
from server.exchange import Answer, exchange, patience_for, wait_for_nodes, window_for
from server.inflight import InFlight
from server.kept import KeptTotals
from server.learning import Learner
from server.masked import ROUNDS, MaskedRounds
from server.masked_state import MaskedState
from server.query_rounds import QueryRounds, StudentPredictions
from server.release import LabelReleaser
from server.returning import Returning
from server.rounds import Member, collect_votes, teach

if TYPE_CHECKING:
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

__all__ = ["RunState", "StudyRun"]


@dataclass(slots=True, repr=False)
class RunState:
    """What the course has found so far. Totals are private: they stay in this process.

    `checked` is what an interactive study's check looked at, batch by batch; private too.
    """

    index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    label: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    reinforced: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    totals: list[NDArray[np.int64]] = field(default_factory=list)
    checked: list[NDArray[np.int64]] = field(default_factory=list)
    voted: list[NDArray[np.int64]] = field(default_factory=list)
    accuracy: Accuracy = field(default_factory=Accuracy)
    seconds: Seconds = field(default_factory=Seconds)
    student: Student | Forest | None = None
    earlier: int = 0  # queries that an earlier process released and whose totals are not known any more

    @property
    def asked_totals(self) -> NDArray[np.int64]:
        """Totals of the queries that this process asked, in order: int64 (asked, classes). Private."""
        asked = len(self.index) - self.earlier
        return np.concatenate(self.totals)[:asked] if self.totals else np.empty((0, 0), dtype=np.int64)


class StudyRun:
    """One study over one Grid, from the first message to the trained student."""

    def __init__(
        self,
        study: Study,
        dataset: Dataset,
        terms: Terms,
        desk: LabelReleaser,
        *,
        ledger: Ledger,
        log: RunLog,
        progress: Progress,
        stop: threading.Event,
        student_path: Path,
        names: Mapping[int, str] | None = None,
        sum_identities: Mapping[str, bytes] | None = None,
    ) -> None:
        self._study, self._dataset, self._terms, self._desk = study, dataset, terms, desk
        self._ledger, self._log, self._progress, self._stop = ledger, log, progress, stop
        self._student_path, self._names = student_path, names
        self._window = window_for(study.engine.backend)
        # A simulation begins anew; only where processes are apart is one worth going on with.
        apart, folder = study.engine.backend == PROCESSES, student_path.parent
        self._inflight = InFlight(folder / "inflight") if apart else None
        self._kept = KeptTotals(folder / "totals") if apart and not terms.adds_noise else None
        state = MaskedState(folder / "secure_sum") if apart else None
        self._masked = MaskedRounds(terms, expected=sum_identities, state=state) if terms.secure_sum else None
        self._returning: Returning | None = None
        self._next_batch = self._after_the_last()
        self._learner = Learner(study, dataset, log=log, progress=progress, stop=stop, path=student_path)
        self._stages = QueryRounds(
            study.queries,
            ledger,
            folder,
            pool=dataset.num_queries,
            against=make_interactive(terms),
            learn=self._learn_of_pool,
            repeated=repeated_inputs(dataset)[: dataset.num_queries],
            order=_asking_order(study, dataset.num_queries),
        )
        self.found = self._found_before()

    def run(self, grid: Grid) -> None:
        """Go through all phases.

        Raises:
            QuorumError: too few parties are left.
            BudgetError: a batch would pass the budget (the filter asks for none that could).
            Stopped: the user asked to stop; what was released is in the ledger.
        """
        members = self._teach(grid)
        self._ask(grid, members)
        # A vote under hospitals' noise costs whether or not anything is released.
        if self._study.queries.evaluate and not self._terms.adds_noise:
            self._evaluate(grid, members)
        self._measure()
        self._learn()

    def _teach(self, grid: Grid) -> dict[int, Member]:
        clients, masked = self._terms.num_clients, self._masked
        encoder = encoder_file(self._study, self._dataset)
        with self._timed("teach"), self._progress.phase("teaching", clients) as bar:
            patience = patience_for(self._study.engine.backend)
            nodes = wait_for_nodes(grid, count=clients, timeout_s=patience, stop=self._stop)
            members = teach(
                grid,
                nodes,
                self._terms,
                timeout_s=self._study.engine.teach_timeout_s,
                window=self._window,
                stop=self._stop,
                arrived=bar.advance,
                trouble=lambda who, why: self._leave_out(who, "teach", why),
                enrol=masked.enrol_request if masked else b"",
                encoder=encoder,
                pool=self._pool_file if self._study.engine.backend == PROCESSES else None,
                names=self._names,
                admitted=masked.admit if masked else None,
            )
            if masked:
                masked.close()
        if self._study.engine.backend == PROCESSES and self._names is None:
            request = TeachRequest(
                terms=self._terms.to_json(),
                enrol=masked.enrol_request if masked else b"",
                encoder=encoder,
            )
            parties = {node: member.party for node, member in members.items()}
            self._returning = Returning(grid, parties, request.to_record())
        self._log.write(Taught(clients=len(members), seconds=self.found.seconds.teach or 0.0))
        return members

    def _pool_file(self) -> bytes:
        """The public inputs as a .npy file; no label of theirs is in it."""
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(self._dataset.public_images), allow_pickle=False)
        return buffer.getvalue()

    def _ask(self, grid: Grid, members: dict[int, Member]) -> None:
        """Vote and release until labels, queries or the budget are used up."""
        batch = self._next_batch
        while size := self._stages.limit(self._desk.room(self._batch_size())):
            index = self._stages.choose(size)
            question = self._question(batch, RELEASE, index)
            try:
                totals, voters = self._vote(grid, members, question)
            except Exception:
                if self._masked and self._masked.spent:
                    self._desk.void(question.digest, index)
                    self._log_release(batch, asked=len(index), answered=0)
                raise
            said = self._stages.predictions(index)
            checked = self._checked(totals, said)
            if self._kept is not None:
                self._kept.keep(question.digest, index=index, totals=totals, checked=checked)
            with self._timed("aggregate"):
                provenance = self._stages.current().provenance
                released = self._desk.release(
                    question.digest, index, totals, voters=voters, provenance=provenance, predictions=said
                )
            if self._inflight is not None:
                self._inflight.end()
            self._keep(index, totals, released.label, checked)
            self._log_release(batch, asked=released.asked, answered=int(released.answered.sum()))
            batch += 1

    def _after_the_last(self) -> int:
        """The next batch's number. One under masks that a coordinator left open, dying, is void first."""
        charged = {entry.batch_digest for entry in self._ledger.entries()}
        begun = None if self._masked is None else self._masked.begun
        if begun is None:
            return len(charged)
        if begun.asked and begun.digest not in charged:
            self._desk.void(begun.digest, begun.index)
            self._log_release(begun.batch, asked=len(begun.index), answered=0)
        return begun.batch + 1

    def _found_before(self) -> RunState:
        """What was released before this process started, with its totals where they were kept."""
        index, _, label = self._ledger.released()
        found = RunState(index=index, label=label, reinforced=self._stages.reinforced(), earlier=len(index))
        entries = self._ledger.entries()
        kept = None if self._kept is None else self._kept.read([entry.batch_digest for entry in entries])
        if kept:
            found.earlier = 0
            found.voted, found.totals = ([batch[name] for batch in kept] for name in ("index", "totals"))
            parts = zip(entries, kept, strict=True)
            if make_interactive(self._terms) is not None:
                found.checked = [batch["checked"][: entry.event.asked] for entry, batch in parts]
        return found

    def _checked(self, totals: NDArray[np.int64], said: NDArray[np.float32] | None) -> NDArray[np.int64]:
        """What an interactive study's check looks at: int64 (queries,); the most votes without a student."""
        against = make_interactive(self._terms)
        most: NDArray[np.int64] = totals.max(axis=1)
        return most if against is None or said is None else against.contradiction(totals, said)

    def _log_release(self, batch: int, *, asked: int, answered: int) -> None:
        epsilon = self._ledger.epsilon()
        self._log.write(ReleasedBatch(batch=batch, asked=asked, answered=answered, epsilon=epsilon))

    def _batch_size(self) -> int:
        repeated = int(repeated_inputs(self._dataset)[: self._dataset.num_queries].sum())
        left = self._dataset.num_queries - repeated - self._desk.asked
        return min(self._study.queries.batch_size, left)

    def _keep(
        self,
        index: NDArray[np.int64],
        totals: NDArray[np.int64],
        label: NDArray[np.int64],
        checked: NDArray[np.int64],
    ) -> None:
        found = self.found
        if make_interactive(self._terms) is not None:
            found.checked.append(checked[: len(label)])
        found.voted.append(index)
        found.totals.append(totals)
        found.index = np.concatenate([found.index, index[: len(label)]])
        found.label = np.concatenate([found.label, label])
        found.reinforced = self._stages.reinforced()

    def _question(self, batch: int, purpose: str, index: NDArray[np.int64]) -> VoteRequest:
        return VoteRequest(terms_digest=self._terms.digest, batch=batch, purpose=purpose, index=index)

    def _vote(
        self, grid: Grid, members: dict[int, Member], question: VoteRequest
    ) -> tuple[NDArray[np.int64], int]:
        """Totals of one batch, masked on their way where the terms say so, and how many parties voted."""
        batch, rounds = question.batch, ROUNDS if self._masked else 1
        name = f"voting, batch {batch + 1}" if question.purpose == RELEASE else "voting, to evaluate"
        start = time.perf_counter()
        with self._timed("vote"), self._progress.phase(name, rounds * len(members)) as bar:

            def ask(message_type: str, sent: Mapping[int, Record]) -> Iterator[Answer]:
                timeout_s = self._study.engine.vote_timeout_s
                for answer in exchange(
                    grid,
                    sent,
                    message_type=message_type,
                    timeout_s=timeout_s,
                    stop=self._stop,
                    window=self._window,
                    returning=self._returning,
                ):
                    bar.advance()
                    yield answer

            def trouble(who: str, why: str) -> None:
                self._leave_out(who, "vote", why)

            if self._masked:
                totals, voters = self._masked.collect(members, question, ask=ask, trouble=trouble)
            else:
                keep = self._inflight if question.purpose == RELEASE else None
                totals, voters = collect_votes(
                    members, self._terms, question, ask=ask, trouble=trouble, inflight=keep
                )
        seconds = time.perf_counter() - start
        self._log.write(Voted(batch=batch, clients=voters, queries=len(question.index), seconds=seconds))
        return totals, voters

    def _evaluate(self, grid: Grid, members: dict[int, Member]) -> None:
        """Votes on the test inputs too, for the two accuracy figures alone; nothing is released."""
        rest = np.arange(self._dataset.num_queries, len(self._dataset.public_labels), dtype=np.int64)
        if len(rest):
            totals, _ = self._vote(grid, members, self._question(len(self.found.voted), EVALUATION, rest))
            self.found.voted.append(rest)
            self.found.totals.append(totals)

    def _measure(self) -> None:
        """Accuracy of teachers, ensemble and labels, where the public inputs' true labels are known."""
        found, truth = self.found, self._dataset.public_labels
        if not len(found.index) or (truth < 0).any():
            return
        answered = found.label >= 0
        asked_truth = truth[found.index]
        labels = np.mean(found.label[answered] == asked_truth[answered]) if answered.any() else None
        if found.totals and not self._terms.adds_noise:  # noisy totals tell neither
            totals, right = np.concatenate(found.totals), truth[np.concatenate(found.voted)]
            rows = np.arange(len(right))
            found.accuracy = replace(
                found.accuracy,
                teacher_mean=float(totals[rows, right].sum() / totals.sum()),
                ensemble=float(np.mean(totals.argmax(axis=1) == right)),
            )
        found.accuracy = replace(
            found.accuracy,
            labels=None if labels is None else float(labels),
        )
        teachers = self._study.parties.num_teachers
        top = (
            count_top_votes(found.asked_totals, answered[found.earlier :], num_teachers=teachers)
            if found.totals
            else {}
        )
        confusion = count_confusion(asked_truth, found.label, num_classes=self._terms.num_classes)
        self._log.write(Evaluation(confusion=confusion, **top))

    def _learn(self) -> None:
        found, dataset = self.found, self._dataset
        answered = found.label >= 0
        if not answered.any():
            raise InputError(
                f"none of {len(found.label)} queries was answered, so nothing can be learnt: the "
                f"threshold of {self._terms.aggregation.threshold:g} votes is out of these teachers' reach "
                "(--threshold)"
            )
        pool = dataset.num_queries
        with self._timed("student"):
            student = self._learner.learn(*self._stages.labels())
        student.save(self._student_path)
        right = student.predict(dataset.public_images[pool:]) == dataset.public_labels[pool:]
        known = bool((dataset.public_labels[pool:] >= 0).all()) and len(right) > 0
        found.accuracy = replace(found.accuracy, student=float(right.mean()) if known else None)
        found.student = student

    def _learn_of_pool(
        self, number: int, index: NDArray[np.int64], label: NDArray[np.int64]
    ) -> StudentPredictions:
        with self._timed("student"):
            return self._learner.of_pool(number, index, label)

    def _leave_out(self, party: str, phase: str, reason: str) -> None:
        self._log.write(LeftOut(party=party, phase=phase, reason=reason))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = getattr(self.found.seconds, phase) or 0.0
            self.found.seconds = replace(self.found.seconds, **{phase: spent + time.perf_counter() - start})


def _asking_order(study: Study, pool: int) -> NDArray[np.int64] | None:
    """A file of one's own may be sorted by anything, so it is asked about at random; fixed with the study."""
    if not study.data.from_files:
        return None
    return np.random.default_rng(study.seed_for("queries")).permutation(pool)
