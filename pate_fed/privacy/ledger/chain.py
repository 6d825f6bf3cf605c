"""Chain of a ledger's rows: what they add up to, and the rules that every further row keeps to.

The writer and the verifier apply the same rules: one before a row is written, the other to each row again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.ledger.rows import Entry, Provenance
from pate_fed.privacy.ledger.terms import LedgerTerms, guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import PrivacyEvent

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Released outputs of one batch, in order.

    Shapes: `index` int64 (asked,), the queries' places in the public pool; `answered` bool (asked,); `label`
    int64 (asked,), -1 where not answered.
    """

    index: Ints
    answered: NDArray[np.bool_]
    label: Ints


@dataclass(slots=True, kw_only=True)
class Chain:
    """Rows that passed every check, and their totals.

    `cost` and `epsilon` are what the student and the public learn, at the terms' δ; `head` is the last row's
    hash, `created` and `version` are the first row's.
    """

    terms: LedgerTerms
    public_key: str | None
    created: str
    version: str
    head: str
    entries: list[Entry] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    cost: Cost = field(init=False)
    epsilon: float = field(init=False)
    _batches: set[str] = field(default_factory=set)
    _hashes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cost = self.terms.reserved
        self.epsilon = epsilon_of(self.cost, self.terms.delta)

    def price(
        self, event: PrivacyEvent, *, batch_digest: str, index: Ints, provenance: Provenance | None
    ) -> tuple[Cost, float]:
        """Total cost and ε with one more release; nothing changes here.

        Raises:
            BudgetError: the budget would be passed.
            IntegrityError: an event or a total that the terms do not allow, a batch or a record's label that
                was charged before, or a student of anything but earlier rows.
        """
        self.terms.refuse(event)
        if provenance is not None:
            provenance.require_past(self._hashes)
        if batch_digest in self._batches:
            raise IntegrityError(
                f"the batch {batch_digest[:12]}… was charged before; it is never released again"
            )
        self.terms.refuse_beyond_caps(asked=self.asked + event.asked, answered=self.answered + event.answered)
        self.terms.refuse_again([*(part.index for part in self.outputs), index])
        cost, budget = self.terms.plus(self.cost, event), self.terms.budget
        if budget is not None and not self.terms.caps_keep_budget:
            budget.require(cost)
        orders = () if budget is None else (budget.order,)
        found = epsilon_of(cost, self.terms.delta, orders=orders)
        if self.terms.by_outcome:  # what holds for every course of the study holds for this one
            found = min(found, guaranteed_epsilon(self.terms) or math.inf)
        # Each search may end a hair beside the best order, which must not look like a refund.
        return cost, max(self.epsilon, found)

    def released(self) -> tuple[Ints, NDArray[np.bool_], Ints]:
        """Everything that was released, in order: index, answered and label, each of shape (asked,)."""
        empty = np.zeros(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(part.index for part in self.outputs)]),
            np.concatenate([empty.astype(np.bool_), *(part.answered for part in self.outputs)]),
            np.concatenate([empty, *(part.label for part in self.outputs)]),
        )

    def append(self, entry: Entry, outputs: Outputs, *, cost: Cost, epsilon: float) -> None:
        """Take a row in, at what `price` found."""
        self.entries.append(entry)
        self.outputs.append(outputs)
        self._batches.add(entry.batch_digest)
        self._hashes.add(entry.hash)
        self.asked += entry.event.asked
        self.answered += entry.event.answered
        self.cost, self.epsilon, self.head = cost, epsilon, entry.hash


def coordinator_epsilon(terms: LedgerTerms, events: Iterable[PrivacyEvent]) -> float | None:
    """ε against the coordinator at the terms' δ, rounded up; None where it sees votes or exact totals."""
    if terms.coordinator.sees_release:
        return epsilon_of(reduce(terms.plus, events, terms.reserved), terms.delta)
    if terms.coordinator.variance is None:
        return None
    costs = [event.coordinator_cost() for event in events]
    known = [cost for cost in costs if cost is not None]
    return epsilon_of(sum(known, Cost()), terms.delta) if len(known) == len(costs) else None
