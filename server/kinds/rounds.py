"""Rounds of questions: a student of the labels so far is the reference of the next round, and chooses it.

A round is over when its part of the labels, of the queries or of the budget is used up; all three are public
counts, so where a study stands follows from its ledger, also after a crash. What a student says of the public
pool follows from released labels, so it is public too; it lies in the run directory, and the ledger names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.config.sections import Queries
from pate_fed.errors import IntegrityError
from pate_fed.privacy import InteractiveGNMax, Ledger
from pate_fed.privacy.ledger.rows import Entry, Provenance
from server.state import CoordinatorState, StudentPredictions, Totals

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Chooser = Callable[[Ints, int, Ints, Ints, "QueryRound"], Ints]
"""From what is left, how many are wanted, known places and labels, and the round, to places."""

_FEW = 50  # queries that are always worth a batch of their own


@dataclass(frozen=True, slots=True, eq=False)
class QueryRound:
    """A round and what shapes its questions; nothing does in the first, and where no label is there yet."""

    number: int
    provenance: Provenance | None = None
    predictions: StudentPredictions | None = None


class QueryRounds:
    """Where a study with rounds stands. `learn` trains a student of some labels and gives its predictions.

    Its arguments are the round, an index into the public pool and labels, int64 (m,) each. `against` is the
    mechanism of rounds in which the student is the reference, None where it only chooses. `order` are the
    places that may be asked about, int64 (n,), in the order in which they are where nothing else decides.
    `own` chooses by code of the user's own.
    """

    def __init__(
        self,
        queries: Queries,
        ledger: Ledger,
        state: CoordinatorState,
        *,
        order: Ints,
        against: InteractiveGNMax | None,
        learn: Callable[[int, Ints, Ints], StudentPredictions],
        own: Chooser | None = None,
    ) -> None:
        self._queries, self._ledger, self._state = queries, ledger, state
        self._order, self._against, self._learn, self._own = order, against, learn, own
        self._rounds = queries.rounds or 1
        self._begun: dict[int, QueryRound] = {}

    def current(self) -> QueryRound:
        """The present round; its student learns when it is first asked for, and labels are there.

        Raises:
            IntegrityError: the predictions of an earlier process's student are gone or damaged.
        """
        number = self._number()
        if number > 1 and number not in self._begun and self._progress()[1]:
            self._begun[number] = self._begin(number)
        return self._begun.get(number, QueryRound(number))

    def limit(self, room: int) -> int:
        """How many of `room` queries the next batch may hold, so that a round ends near its part."""
        number = self._number()
        if number == self._rounds or not room:
            return room
        (asked, answered, spent), (due_asked, due_answered) = self._progress(), self._due(number)
        most_answered, part = self._ledger.terms.most_answered, number / self._rounds
        few = _FEW if most_answered is None else min(_FEW, max(1, most_answered // (4 * self._rounds)))
        most = [room, due_asked - asked, max(few, due_answered - answered)]
        if spent < 1:
            most.append(max(few, int(room * (part - spent) / (1 - spent))))
        return int(min(most))

    def choose(self, size: int) -> Ints:
        """The next `size` queries, places in the public pool; each input is asked about once in a study.

        Raises:
            InputError: a strategy of the user's own fails.
        """
        predictions, strategy = self.current().predictions, self._queries.strategy
        done, answered, label = self._ledger.released()
        order = self._order[~np.isin(self._order, done)]
        if self._own is not None:
            return self._own(order, size, *self._known_at_begin(), self.current())
        if predictions is not None:
            said = predictions.probabilities[order]
            released = np.bincount(label[answered], minlength=said.shape[1])
            order = order[find_part(strategy, "query strategy")(said, released=released)]
        chosen: Ints = order[:size]
        return chosen

    def _known_at_begin(self) -> tuple[Ints, Ints]:
        """Released labels that the present round rests on: index and label, int64 (m,) each; none at first.

        Not those of its own batches: a row's provenance names all that had a part in its choice.
        """
        provenance, rows = self.current().provenance, 0
        if provenance is not None:
            for entry in self._ledger.entries():
                rows += entry.event.asked
                if entry.hash == provenance.learnt_to:
                    break
        index, answered, label = self._ledger.released()
        known = np.flatnonzero(answered[:rows])
        return index[known], label[known]

    def predictions(self, index: Ints) -> Floats | None:
        """The present student's probabilities of some queries, where it is the reference."""
        found = self.current().predictions
        return None if found is None or self._against is None else found.probabilities[index]

    def reinforced(self) -> Ints:
        """The students' own labels that the teachers did not contradict: int64 (asked,), -1 where none is."""
        found = [np.empty(0, dtype=np.int64)]
        index, answered, _ = self._ledger.released()
        start = 0
        for entry in self._ledger.entries():
            part = slice(start, start + entry.event.asked)
            start = part.stop
            labels = np.full(entry.event.asked, -1, dtype=np.int64)
            reference = self._reference(entry, index[part])
            if reference is not None and self._against is not None:
                labels = self._against.reinforced(answered[part], reference)
            found.append(labels)
        return np.concatenate(found)

    def checked(self, entry: Entry, totals: Totals) -> Ints:
        """What the check looked at in a charged batch: int64 (queries,); the most votes without a student."""
        reference = self._reference(entry, totals.index)
        if reference is None or self._against is None:
            return np.asarray(totals.value.max(axis=1))
        return self._against.contradiction(totals.value, reference)

    def _reference(self, entry: Entry, index: Ints) -> Floats | None:
        """The student's probabilities, float32 (queries, classes), where it was the batch's reference."""
        if entry.provenance is None or entry.event.mechanism != self._against:
            return None
        return self._read(entry.provenance).probabilities[index]

    def labels(self) -> tuple[Ints, Ints]:
        """Everything that a student may learn from: index and label, int64 (m,) each."""
        index, answered, label = self._ledger.released()
        label = np.where(answered, label, self.reinforced())
        return index[label >= 0], label[label >= 0]

    def _number(self) -> int:
        asked, answered, spent = self._progress()
        for number in range(1, self._rounds):
            due_asked, due_answered = self._due(number)
            if asked < due_asked and answered < due_answered and spent < number / self._rounds:
                return number
        return self._rounds

    def _due(self, number: int) -> tuple[float, float]:
        """Queries and labels at which a round is over, where its part of the budget is not spent before."""
        terms, part = self._ledger.terms, number / self._rounds
        most = (terms.most_asked, terms.most_answered)
        asked, answered = (math.inf if cap is None else math.ceil(part * cap) for cap in most)
        return asked, answered

    def _progress(self) -> tuple[int, int, float]:
        """Queries and labels so far, and the part of the budget that is spent."""
        ledger, budget = self._ledger, self._ledger.terms.budget
        spent = 0.0 if budget is None else budget.share_spent(charged=ledger.charged)
        return ledger.asked, ledger.answered, spent

    def _begin(self, number: int) -> QueryRound:
        earlier = [entry.provenance for entry in self._ledger.entries()]
        provenance = next((each for each in earlier if each is not None and each.round == number), None)
        if provenance is not None:
            return QueryRound(number, provenance, self._read(provenance))
        if self._state.predictions_path(number).exists():  # a process died after learning, before a release
            predictions = self._state.predictions(number)
        else:
            predictions = self._learn(number, *self.labels())
            self._state.keep_predictions(number, predictions)
        provenance = Provenance(
            round=number,
            strategy=self._queries.strategy,
            learnt_to=self._ledger.head,
            predictions=predictions.digest,
        )
        return QueryRound(number, provenance, predictions)

    def _read(self, provenance: Provenance) -> StudentPredictions:
        """What a batch on the ledger rested on."""
        begun = self._begun.get(provenance.round)
        if begun is not None and begun.predictions is not None and begun.provenance == provenance:
            return begun.predictions
        predictions = self._state.predictions(provenance.round)
        if predictions.digest != provenance.predictions:
            path = self._state.predictions_path(provenance.round)
            raise IntegrityError(f"{path}: not what the ledger names as the predictions of this round")
        self._begun[provenance.round] = QueryRound(provenance.round, provenance, predictions)
        return predictions
