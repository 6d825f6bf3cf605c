"""Rounds of questions: a student of the labels so far is the reference of the next round, and chooses it.

A round is over when its part of the labels, of the queries or of the budget is used up; all three are public
counts, so where a study stands follows from its ledger, also after a crash. What a student says of the public
pool follows from released labels, so it is public too; it lies in the run directory, and the ledger names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.study import Queries
from pate_fed.disk import write_arrays
from pate_fed.errors import IntegrityError
from pate_fed.learning import choose_order
from pate_fed.privacy import InteractiveGNMax, Ledger
from pate_fed.privacy.ledger.rows import Provenance, digest_of

__all__ = ["QueryRound", "QueryRounds", "StudentPredictions"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

_FEW = 50  # queries that are always worth a batch of their own


@dataclass(frozen=True, slots=True, eq=False)
class StudentPredictions:
    """What was learnt of the public pool, float32 (pool, classes) each.

    `scores` are what the next questions are chosen by: the student's `probabilities`, or binary experts'.
    """

    probabilities: Floats
    scores: Floats

    @property
    def digest(self) -> str:
        """SHA-256 hex of both."""
        return digest_of(self.probabilities, self.scores)


@dataclass(frozen=True, slots=True, eq=False)
class QueryRound:
    """A round and what shapes its questions; nothing does in the first, and where no label is there yet."""

    number: int
    provenance: Provenance | None = None
    said: StudentPredictions | None = None


class QueryRounds:
    """Where a study with rounds stands. `learn` gives what is said by whoever learnt from some labels.

    Its arguments are the round, an index into the public pool and labels, int64 (m,) each. `against` is the
    mechanism of rounds in which the student is the reference, None where it only chooses. `repeated` says
    which of the pool's inputs are the same as an earlier one, bool (pool,): these are not asked about.
    `order` is in what order inputs are asked about between which nothing else decides; None: the pool's own.
    """

    def __init__(
        self,
        queries: Queries,
        ledger: Ledger,
        folder: Path,
        *,
        pool: int,
        against: InteractiveGNMax | None,
        learn: Callable[[int, Ints, Ints], StudentPredictions],
        repeated: Bools | None = None,
        order: Ints | None = None,
    ) -> None:
        self._queries, self._ledger, self._folder = queries, ledger, folder
        self._pool, self._against, self._learn = pool, against, learn
        self._rounds = queries.rounds or 1
        self._repeated = np.zeros(pool, dtype=np.bool_) if repeated is None else repeated
        self._order = np.arange(pool, dtype=np.int64) if order is None else order
        self._stages: dict[int, QueryRound] = {}

    @property
    def against(self) -> InteractiveGNMax | None:
        """The mechanism of the present round where a student is its reference."""
        return None if self.current().said is None else self._against

    def current(self) -> QueryRound:
        """The present round; its student learns when it is first asked for, and labels are there.

        Raises:
            IntegrityError: what an earlier process's student said is gone or damaged.
        """
        number = self._number()
        if number > 1 and number not in self._stages and self._ledger_answered():
            self._stages[number] = self._begin(number)
        return self._stages.get(number, QueryRound(number))

    def limit(self, room: int) -> int:
        """How many of `room` queries the next batch may hold, so that a round ends near its part."""
        number = self._number()
        if number == self._rounds or not room:
            return room
        asked, answered, spent = self._progress()
        terms, part = self._ledger.terms, number / self._rounds
        most, few = [room], _FEW
        if terms.most_answered is not None:
            few = min(_FEW, max(1, terms.most_answered // (4 * self._rounds)))
            most.append(max(few, math.ceil(part * terms.most_answered) - answered))
        if terms.most_asked is not None:
            most.append(math.ceil(part * terms.most_asked) - asked)
        if spent < 1:
            most.append(max(few, int(room * (part - spent) / (1 - spent))))
        return min(most)

    def choose(self, size: int) -> Ints:
        """The next `size` queries, places in the public pool; each input is asked about once in a study."""
        stage, strategy = self.current(), self._queries.strategy
        done, _, _ = self._ledger.released()
        order = self._order
        if stage.said is not None:
            order = order[choose_order(strategy, stage.said.scores[order])]
        chosen: Ints = order[~np.isin(order, done) & ~self._repeated[order]][:size]
        return chosen

    def predictions(self, index: Ints) -> Floats | None:
        """The present student's probabilities of some queries, where it is the reference."""
        said = self.current().said
        return None if said is None or self._against is None else said.probabilities[index]

    def reinforced(self) -> Ints:
        """The students' own labels that the teachers did not contradict: int64 (asked,), -1 where none is."""
        found = [np.empty(0, dtype=np.int64)]
        index, answered, _ = self._ledger.released()
        start = 0
        for entry in self._ledger.entries():
            part = slice(start, start + entry.event.asked)
            start = part.stop
            labels = np.full(entry.event.asked, -1, dtype=np.int64)
            if entry.provenance is not None and entry.event.mechanism == self._against:
                said = self._read(entry.provenance).probabilities[index[part]]
                labels = self._against.reinforced(answered[part], said)
            found.append(labels)
        return np.concatenate(found)

    def labels(self) -> tuple[Ints, Ints]:
        """Everything that a student may learn from: index and label, int64 (m,) each."""
        index, answered, label = self._ledger.released()
        label = np.where(answered, label, self.reinforced())
        return index[label >= 0], label[label >= 0]

    def _number(self) -> int:
        asked, answered, spent = self._progress()
        terms, rounds = self._ledger.terms, self._rounds
        for number in range(1, rounds):
            part = number / rounds
            over = spent >= part
            over = over or (
                terms.most_answered is not None and answered >= math.ceil(part * terms.most_answered)
            )
            if not over and (terms.most_asked is None or asked < math.ceil(part * terms.most_asked)):
                return number
        return rounds

    def _progress(self) -> tuple[int, int, float]:
        """Queries and labels so far, and the part of the budget that is spent."""
        events, budget = self._ledger.events(), self._ledger.terms.budget
        spent = 0.0 if budget is None else budget.share_spent(events)
        return sum(event.asked for event in events), sum(event.answered for event in events), spent

    def _ledger_answered(self) -> bool:
        return any(event.answered for event in self._ledger.events())

    def _begin(self, number: int) -> QueryRound:
        kept = [entry.provenance for entry in self._ledger.entries()]
        provenance = next((each for each in kept if each is not None and each.round == number), None)
        path = self._path(number)
        if provenance is not None:
            return QueryRound(number, provenance, self._read(provenance))
        if path.exists():  # a process that died before the round's first release had learnt already
            said = _load(path)
        else:
            said = self._learn(number, *self.labels())
            _save(path, said)
        provenance = Provenance(
            round=number,
            strategy=self._queries.strategy,
            learnt_to=self._ledger.head,
            predictions=said.digest,
        )
        return QueryRound(number, provenance, said)

    def _read(self, provenance: Provenance) -> StudentPredictions:
        stage = self._stages.get(provenance.round)
        if stage is not None and stage.said is not None and stage.provenance == provenance:
            return stage.said
        path = self._path(provenance.round)
        said = _load(path)
        if said.digest != provenance.predictions:
            raise IntegrityError(f"{path}: not what the ledger names as the predictions of this round")
        self._stages[provenance.round] = QueryRound(provenance.round, provenance, said)
        return said

    def _path(self, number: int) -> Path:
        return self._folder / f"round-{number}.npz"


def _load(path: Path) -> StudentPredictions:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return StudentPredictions(np.asarray(kept["probabilities"]), np.asarray(kept["scores"]))
    except Exception as error:  # numpy raises what its readers meet first
        raise IntegrityError(
            f"{path}: the predictions that a round rests on are gone or damaged, so it cannot go on"
        ) from error


def _save(path: Path, said: StudentPredictions) -> None:
    """All of it or nothing; on the disk when this returns."""
    write_arrays(path, probabilities=said.probabilities, scores=said.scores)
