"""Sums in rounds: features by class once, then by what public weights leave unexplained; terms, cost, words.

Every question costs the same and has the same noise; how many there are at most is fixed before the first.
Weights are made of released sums and public data alone. What a record adds is cut to a length by its own
hospital, whatever the weights are (docs/proofs/class-sums.md, theorem 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.format import counted
from pate_fed.kinds.base import Bounds, Check
from pate_fed.kinds.sums import SumMechanism, SumTerms, SumWords
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts
from pate_fed.learning.features.residuals import (
    MOST_CLASSES,
    MOST_LENGTHS,
    ClassPull,
    ResidualPull,
    ScoreRows,
    WholePull,
    unpack_weights,
)
from pate_fed.privacy.mechanisms.class_sums import (
    MOST_SQUARED_NORM,
    ScoreCounts,
    SharedScoreCounts,
    SharedSumsInRounds,
    SumsInRounds,
)
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.protection import HOSPITAL_UNIT, PATIENT_UNIT, RECORD_UNIT
from pate_fed.structure import setting

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.words import Words
    from pate_fed.learning.features.feature_map import Pull
    from pate_fed.protocol.messages import Question

SUMS_IN_ROUNDS = "sums-in-rounds"
SUMS_AND_SCORES = "sums-and-scores"
WHOLE_LENGTH = 4  # of what all of a hospital add: a round's steps are that fine
MOST_UNIT = 2**12  # of a whole hospital's residuals: sums of doubles stay below 2^63
MOST_CELLS = 10**6  # of a table of counts
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
    least_rounds: ClassVar[int] = 1
    kind: str = setting(SUMS_IN_ROUNDS, choices=(SUMS_IN_ROUNDS,))
    rounds: int = setting(low=0, high=100)
    first: int = setting(unit="times", low=1, high=64)
    length: int = setting(LENGTH, unit="steps", low=1, high=32)
    unit: int = setting(UNIT, unit="steps", low=1, high=MOST_UNIT)

    def checks(self, terms: Terms) -> Iterator[Check]:
        """As of class sums, and sizes of which doubles hold every sum exactly."""
        yield from SumTerms.checks(self, terms)
        whole = terms.privacy.unit == HOSPITAL_UNIT
        yield "asks.rounds", whole or self.rounds >= self.least_rounds, "one at least"
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

    @property
    def signed(self) -> int:
        """The same of what has signs: with the unit hospital the first question has, too."""
        return self.longest

    def release(self, terms: Terms) -> SumMechanism:
        """The mechanism of every round, as the ledger has it.

        Raises:
            InputError: noise that no bound is known for.
        """
        size = {
            "num_classes": terms.num_classes,
            "dimension": self.dimension,
            "squared_norm": self.signed,
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


def signed_norm(longest: int, rounds: int) -> int:
    """The squared norm of what has signs, of scored sums: without further rounds nothing has."""
    return longest if rounds else max(1, longest // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTerms(RoundTerms):
    """Sums in rounds, 0 or more, of all records but the held-out ones; these are counted once after the last.

    Each hospital holds out a share `held_out` of its records, whole patients where these are named, by a key
    of its own. In the last question, which comes with the weights of all sums, each of them adds one count to
    a table of (`num_classes` · `bins`, `num_classes`): by the class that the weights say of it, in `bins` by
    how sure they are, and by its own class. A count has `count` steps; with the unit patient all of one's
    records have one count together (docs/proofs/class-sums.md, theorem 7).

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    cuts_whole: ClassVar[bool] = False
    least_rounds: ClassVar[int] = 0
    units: ClassVar[tuple[str, ...]] = (RECORD_UNIT, PATIENT_UNIT)
    kind: str = setting(SUMS_AND_SCORES, choices=(SUMS_AND_SCORES,))
    held_out: float = setting(low=0.01, high=0.5)
    bins: int = setting(low=1, high=64)
    count: int = setting(unit="steps", low=1, high=2**26)

    @property
    def questions(self) -> int:
        """Sums, and the counts."""
        return 1 + self.rounds + 1

    def checks(self, terms: Terms) -> Iterator[Check]:
        """As of sums in rounds, and a table of a size that noise leaves anything of."""
        yield from RoundTerms.checks(self, terms)
        yield "asks.bins", self.rows(terms) * terms.num_classes <= MOST_CELLS, "fewer"

    def bounds(self, terms: Terms) -> Bounds:
        """Sums or counts, whichever are more."""
        return replace(RoundTerms.bounds(self, terms), rows=max(self.dimension, self.rows(terms)))

    @property
    def signed(self) -> int:
        """Of residuals, if there are any: a first question of classes has no signs."""
        return signed_norm(self.longest, self.rounds)

    def rows(self, terms: Terms) -> int:
        """Rows of the table of counts."""
        return terms.num_classes * self.bins

    def places(self, terms: Terms) -> NDArray[np.int64]:
        """The places of the counts: those after all sums', int64 (rows,)."""
        return np.arange(self.rows(terms), dtype=np.int64) + self.dimension * (1 + self.rounds)

    def counts(self, terms: Terms) -> SumMechanism:
        """The mechanism of the counts, with the same noise as all sums."""
        size = {
            "num_classes": terms.num_classes,
            "dimension": self.rows(terms),
            "squared_norm": self.count**2,
            "labels": self.labels,
        }
        if self.sigma is None:
            return SharedScoreCounts(**size, **terms.shares)
        return ScoreCounts(**size, sigma=self.sigma)

    def releases(self, terms: Terms) -> tuple[Mechanism, ...]:
        """The sums', and the counts'."""
        return self.release(terms), self.counts(terms)

    def score_rows(self, terms: Terms, question: Question) -> ScoreRows:
        """What records are counted by in the last question.

        Raises:
            IntegrityError: weights of another shape, or none.
        """
        shape = self.dimension, terms.num_classes
        return ScoreRows.of_bytes(question.given, shape, bins=self.bins, squared_norm=self.squared_norm)

    def words(self, terms: Terms) -> Words:
        """What people read of it."""
        return ScoreWords(terms, self)


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
        if not self.sums.rounds and self.sums.most_units is None:
            return super().leaves
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


class ScoreWords(RoundWords):
    """Sums in rounds, a student made of them, and what it is worth on held-out records."""

    sums: ScoredTerms

    def __init__(self, terms: Terms, sums: ScoredTerms) -> None:
        super().__init__(terms, sums)
        sums_alone = sums.questions - 1
        self._times = counted(sums_alone, "time")
        self.often = f"at most {counted(sums_alone, 'release')} of sums, and one of counts"
        self.releases, self.times = f"each of at most {sums.questions} releases", f"at most {self._times}"

    @property
    def _who(self) -> str:
        table = self.terms.table
        if self.terms.names_patients or (table is not None and table.patient is not None):
            return "patients"
        return "records" if table is not None else "records, or of patients where images name them,"

    @property
    def leaves(self) -> Facts:
        """A table a round, and one of counts."""
        [(name, sums), how, also] = super().leaves
        one = "A patient has one count in all." if self.terms.names_patients else "A record has one count."
        key = "a key that never leaves"
        if self.terms.seed is not None:
            key = "a key that others can make, too: it follows from the study's seed and your hospital's name"
        told = (
            f"{self.sums.held_out:.0%} of your {self._who} are left out of these sums and counted once. Your "
            f"own program draws them by {key}. The table has "
            f"{self.sums.rows(self.terms)} rows and {self.terms.num_classes} columns: how many of them have "
            f"a class, by the class that the public model says and by how sure it is. {one}"
        )
        return ((name, sums), ("counts", told), how, also)

    @property
    def sees(self) -> Facts:
        """The same of the counts as of sums; figures of the noisy ones are for all."""
        (who, told), others, (public, made) = super().sees
        told = (
            f"{told.removesuffix('.')}, of which the last is of the counts. It chooses the model's weights."
        )
        if not self.terms.adds_noise:
            told += (
                " Under these it reads an exact table of the held-out records of all hospitals together: how "
                "many have a class, by the class that is said and by how sure it is, also where that is a "
                "single one."
            )
        figures = (
            "Figures of the noisy counts are published: about how many records were held out, and how often "
            "the student is right about each class."
        )
        return ((who, told), others, (public, f"{made} {figures}"))

    @property
    def caps(self) -> Facts:
        """So many times, and the counts."""
        (name, told), labels = super().caps
        once = "gives counts of the records left out once"
        return ((name, told.replace(". All of them", f", and {once}. All of them", 1)), labels)

    def settings(self, records: str) -> Facts:
        """The same noise is of other weight on a count."""
        one = "patients" if self.terms.names_patients else "records"
        noise = f"{self.sigma / self.sums.count:,.4g} {one} on every count"
        return (*super().settings(records), ("Noise σ of counts", noise))

    def _public(self, noise: str) -> Against:
        found = super()._public(noise)
        return replace(
            found, sees=f"Noisy counts of held-out records, {found.sees[0].lower()}{found.sees[1:]}"
        )

    @property
    def home(self) -> AtHome:
        """The counts besides."""
        found = super().home
        return replace(found, released=f"{found.released}, and counts once")

    @property
    def asked(self) -> str:
        """All features, in rounds, and counts."""
        return f"{super().asked}, and counts of {self.sums.held_out:.0%} of the {self._who} once"

    def given(self, rows: int, *, left: bool) -> str:
        """Some of the rounds, and perhaps the counts."""
        sums = self.sums.dimension * (1 + self.sums.rounds)
        if not left or rows <= sums:
            return super().given(rows, left=left)
        return f"{super().given(sums, left=True)}, and its counts"

    def so_far(self, *, asked: int, answered: int) -> str:
        """Rounds, of which the last is the counts'."""
        return f"{super().so_far(asked=asked, answered=answered)}, the last of counts"

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Sums, noise, student, and how good it is."""
        rounds = asked // self.terms.labels
        if rounds < self.sums.questions:
            return super().done(inputs, asked=asked, answered=answered)
        told = super().done(inputs, asked=asked - self.terms.labels, answered=answered)
        return (
            f"{told} {self.sums.held_out:.0%} of the {self._who} were in none of these sums. They were "
            "counted once, with noise, to tell how good the student is."
        )
