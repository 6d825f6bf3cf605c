"""Sums in rounds: features by class once, then by what public weights leave unexplained; terms, cost, words.

Every question costs the same and has the same noise; how many there are at most is fixed before the first.
Weights are made of released sums and public data alone. What a record adds is cut to a length by its own
hospital, whatever the weights are (docs/proofs/class-sums.md, theorem 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pate_fed.format import counted
from pate_fed.kinds.base import Check
from pate_fed.kinds.sums import SumMechanism, SumTerms, SumWords
from pate_fed.kinds.words import ALSO, Facts
from pate_fed.learning.features.residuals import (
    MOST_CLASSES,
    MOST_LENGTHS,
    ClassPull,
    ResidualPull,
    WholePull,
    unpack_weights,
)
from pate_fed.privacy.mechanisms.class_sums import (
    MOST_SQUARED_NORM,
    SharedSumsInRounds,
    SumsInRounds,
)
from pate_fed.privacy.protection import HOSPITAL_UNIT
from pate_fed.structure import setting

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.words import Words
    from pate_fed.learning.features.feature_map import Pull
    from pate_fed.protocol.messages import Question

SUMS_IN_ROUNDS = "sums-in-rounds"
WHOLE_LENGTH = 4  # of what all of a hospital add: a round's steps are that fine
MOST_UNIT = 2**12  # of a whole hospital's residuals: sums of doubles stay below 2^63
LENGTH, UNIT = 10, 20  # of a residual: half of 1 (docs/class-sums.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms(SumTerms):
    """Class sums that `rounds` more questions follow, each with public weights that hospitals get with it.

    In the first question a record's class counts `first` times. A record's residual under later weights, the
    difference of its class from what they say of it, has `unit` steps of 1 and is cut to `length` of these.
    `sigma`, and the hospitals' shares, are in the steps of the products.

    With the unit hospital features are directions of the pool, and all of a hospital's sum is cut, in every
    question, to `most_units` records' lengths, `length` times; the first question is of residuals too, of
    weights 0, `first` times, and there may be no further one (docs/proofs/class-sums.md, theorem 6).

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    cuts_whole: ClassVar[bool] = True
    gives: ClassVar[bool] = True
    kind: str = setting(SUMS_IN_ROUNDS, choices=(SUMS_IN_ROUNDS,))
    rounds: int = setting(low=0, high=100)
    first: int = setting(unit="times", low=1, high=64)
    length: int = setting(LENGTH, unit="steps", low=1, high=32)
    unit: int = setting(UNIT, unit="steps", low=1, high=MOST_UNIT)

    def checks(self, terms: Terms) -> Iterator[Check]:
        """As of class sums, and sizes of which doubles hold every sum exactly."""
        yield from SumTerms.checks(self, terms)
        whole = terms.privacy.unit == HOSPITAL_UNIT
        yield "asks.rounds", whole or self.rounds > 0, "one at least"
        yield "asks.unit", whole or self.unit <= 32, "at most 32 steps"
        yield "asks.first", not whole or self.first <= self.length, "no more than length"
        yield "asks.dimension", self.squared_norm * self.dimension <= MOST_LENGTHS, "a coarser lattice"
        yield "num_classes", terms.num_classes <= MOST_CLASSES, f"at most {MOST_CLASSES:,} classes"
        fits = self.squared_norm * max(self.length, self.first) ** 2 <= MOST_SQUARED_NORM
        yield "asks.length", fits, "a coarser lattice, or a shorter residual,"

    @property
    def questions(self) -> int:
        """How often sums are asked for."""
        return 1 + self.rounds

    @property
    def times(self) -> int:
        """As often as a class counts, or as a residual has steps."""
        return max(self.first, self.length)

    @property
    def longest(self) -> int:
        """Of residuals: features times as many steps."""
        return self.squared_norm * self.length**2

    def release(self, terms: Terms) -> SumMechanism:
        """The mechanism of every round, as the ledger has it.

        Raises:
            InputError: noise that no bound is known for.
        """
        size = {
            "num_classes": terms.num_classes,
            "dimension": self.dimension,
            "squared_norm": self.longest,
            "class_norm": self.squared_norm * self.first**2,
            "labels": self.labels,
        }
        if self.sigma is None:
            return SharedSumsInRounds(**size, **terms.shares)
        return SumsInRounds(**size, sigma=self.sigma)

    def pull(self, terms: Terms, question: Question) -> Pull:
        """By how much a record's features count in a question, held against the terms.

        Raises:
            IntegrityError: weights of another shape, or none.
        """
        later, shape = self.round_of(question) > 0, (self.dimension, terms.num_classes)
        weights = unpack_weights(question.given, shape) if later else np.zeros(shape)
        if terms.privacy.unit == HOSPITAL_UNIT:
            lattice, unit = self.settings.lattice, self.unit if later else self.first
            return WholePull(weights=weights, lattice=lattice, length=self.length, unit=unit)
        if not later:
            return ClassPull(num_classes=terms.num_classes, length=self.first)
        return ResidualPull(
            weights=weights,
            squared_norm=self.squared_norm,
            length=self.length,
            unit=self.unit,
        )

    def round_of(self, question: Question) -> int:
        """Which round a question is, from 0: places of a round are its own, so each is answered once."""
        return int(question.index[0]) // self.dimension

    def words(self, terms: Terms) -> Words:
        """What people read of it."""
        return RoundWords(terms, self)


class RoundWords(SumWords):
    """Sums in rounds, and a student made of all of them."""

    sums: RoundTerms

    def __init__(self, terms: Terms, sums: RoundTerms) -> None:
        super().__init__(terms, sums)
        self._times = counted(sums.questions, "time")
        self.often = f"at most {sums.questions} releases"
        self.releases, self.times = f"each of at most {sums.questions} releases", f"at most {self._times}"

    @property
    def leaves(self) -> Facts:
        """A table a round."""
        [(name, once), how, _] = super().leaves
        table = once.removeprefix("Once, one table")
        first = "The first time records count for their class. After that"
        if self.sums.most_units is not None:
            first = "The first time there is no model yet:"
        what = (
            f"At most {self._times} one table{table}\n{first} each counts by how far its class is from what "
            "a public model, made of the noisy sums so far, says of it. The coordinator sends the model's "
            "numbers. The length holds whatever they are."
        )
        return ((name, what), how, ("also", ALSO))

    @property
    def sees(self) -> Facts:
        """Exact sums or noisy ones, of each round."""
        coordinator, hospitals, public = super().sees
        told = f"{coordinator[1]} That is so in each of at most {self.sums.questions} rounds."
        return ((coordinator[0], told), hospitals, public)

    @property
    def caps(self) -> Facts:
        """So many times."""
        _, labels = super().caps
        told = (
            f"Your hospital gives sums at most {self._times}, once a round. All of them together have the ε "
            "below. It may leave between two: what it gave stays in."
        )
        return (("answers", told), labels)

    @property
    def asked(self) -> str:
        """All features, in rounds."""
        return f"sums of {self.sums.dimension} features, at most {self._times}"

    @property
    def asked_of_pool(self) -> str:
        """So many times."""
        return f"{super().asked_of_pool}, at most {self._times}"

    def given(self, rows: int, *, left: bool) -> str:
        """Some of the rounds."""
        if not left:
            return super().given(rows, left=False)
        rounds = max(1, rows // self.sums.dimension)
        return f"its sums {counted(rounds, 'time')}"

    @property
    def step(self) -> tuple[int, str]:
        """Rounds, each of which is of every input."""
        return self.terms.labels, "rounds"

    def so_far(self, *, asked: int, answered: int) -> str:
        """Rounds."""
        return f"{asked // self.terms.labels} of at most {self.sums.questions} rounds"

    def share(self, *, asked: int, answered: int) -> str:
        """Rounds: every input gets its label in the last."""
        return f"after {self.so_far(asked=asked, answered=answered)}"

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Sums, noise, student, again."""
        rounds = asked // self.terms.labels
        return (
            f"{counted(self.terms.num_clients, 'hospital')} took part. Each one added up features of its own "
            "records by class. The sums of all were put together, noise was added, and a model, the student, "
            f"was made of them. {counted(max(0, rounds - 1), 'more round')} told what that left unexplained."
        )
