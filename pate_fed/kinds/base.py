"""What a kind of question says of itself: its terms, what is asked at most, what that costs, on whose word.

A kind is the section `asks` of a study's terms. What is written once (agreement, masks, ledger, account) asks
the section, and never which kind it is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.privacy import CoordinatorView, LedgerTerms
from pate_fed.privacy.protection import UNITS, Assumption
from pate_fed.protocol.messages import Packed
from pate_fed.structure import refusal
from pate_fed.structure.parts import PartIdentity

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.words import Words

K = TypeVar("K", bound="KindTerms")

SHA256: dict[str, Any] = {"pattern": re.compile(r"[0-9a-f]{64}"), "allowed": "a SHA-256 in hexadecimal"}
"""What a field holds that names a public file or pool."""

Check = tuple[str, bool, str]
"""A field of the terms, whether it fits the others, and what is meant where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The largest array that a question of a study gets from one hospital: so many rows and columns.

    `row` are the least and the most that an honest row of numbers from 0 on sums to, alike in all rows; None
    where noise or signs spread them. `file` is the most bytes of the public file that comes with the terms.
    """

    rows: int
    columns: int
    row: tuple[int, int] | None = None
    file: int = 0

    def largest(self, num_clients: int) -> int | None:
        """What no total over all hospitals exceeds, so that masks can be cut to it; else None."""
        return None if self.row is None else num_clients * self.row[1]

    @property
    def one_vote(self) -> bool:
        """Whether each row is one vote: without masks its class stands for it."""
        return self.row == (1, 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an answer without masks: the smallest that holds a class, or a count; else int64."""
        if self.row is None:
            return np.dtype(np.int64)
        return np.min_scalar_type(self.columns - 1 if self.one_vote else self.row[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the largest answer without masks."""
        return self.rows * (1 if self.one_vote else self.columns) * self.dtype.itemsize

    def packed(self, answer: NDArray[np.int64]) -> Packed:
        """An answer int64 (rows, columns) as it leaves without masks: of `dtype`, one vote as its class."""
        found: Packed = (answer.argmax(axis=1) if self.one_vote else answer).astype(self.dtype)
        return found

    def add(self, total: NDArray[np.int64], answer: Packed, times: int = 1) -> None:
        """Add what `check` has taken to a total int64 (rows, columns); with -1 take it away again."""
        if self.one_vote:
            total[np.arange(len(answer)), answer] += times
        else:
            total += np.multiply(answer, times, dtype=np.int64)

    def check(self, answer: Packed, *, rows: int) -> None:
        """Refuse a packed answer to a question of so many rows that no honest hospital can give.

        Raises:
            IntegrityError: wrong type or shape, no class, or a row with too many or too few. The message
                carries no number of it.
        """
        if answer.dtype != self.dtype:
            raise IntegrityError(f"the answer is {answer.dtype}, not {self.dtype}")
        shape = (rows,) if self.one_vote else (rows, self.columns)
        if answer.shape != shape:
            raise IntegrityError(f"the answer has the shape {answer.shape}, not {shape}")
        if self.row is None or not answer.size:
            return
        if self.one_vote:
            if answer.max() >= self.columns:
                raise IntegrityError("a vote is for no class")
            return
        least, most = self.row
        if answer.max() > most:
            raise IntegrityError(f"an entry is more than {most}")
        sums = answer.sum(axis=1)
        if not least <= sums[0] <= most or (sums != sums[0]).any():
            fewer = "" if least == most else f"{least} to "
            raise IntegrityError(f"a row does not sum to {fewer}{most}")


class KindTerms(ABC):
    """The section of the terms that belongs to one kind of question."""

    __slots__ = ()
    kind: str
    trains: ClassVar[bool] = False  # whether hospitals train something before they answer
    reads_inputs: ClassVar[bool] = True  # whether hospitals get the pool, and records are of its form
    counts_inputs: ClassVar[bool] = False  # whether each input is asked about, as caps and policies count
    totals_tell: ClassVar[bool] = False  # whether a hospital's policy must allow that exact totals are seen
    gives: ClassVar[bool] = False  # whether a question brings public bytes that the answer rests on
    once_for_all: ClassVar[bool] = False  # whether a hospital answers one study of the kind, and no other
    units: ClassVar[tuple[str, ...]] = UNITS  # whom ε may protect

    @classmethod
    def of(cls: type[K], terms: Terms) -> K:
        """The section of terms of this kind; TypeError, a fault of the program, where they are of another."""
        if not isinstance(terms.asks, cls):
            raise TypeError(f"these terms are of the kind {terms.asks.kind!r}")
        return terms.asks

    def check(self, terms: Terms) -> None:
        """Hold it against the rest of the terms; SettingError of the first field that does not fit."""
        for name, fits, wanted in self.checks(terms):
            if not fits:
                raise refusal(terms, name, f"{wanted} is meant")

    @abstractmethod
    def checks(self, terms: Terms) -> Iterable[Check]:
        """What of the terms has to go together for this kind."""

    @property
    @abstractmethod
    def labels(self) -> int:
        """Labels that are released at most."""

    @property
    @abstractmethod
    def max_queries(self) -> int:
        """Public inputs that are asked about, or labelled by what is released, at most."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, as a study names it."""
        return self.kind

    @property
    def threshold(self) -> float | None:
        """Votes that a winner must reach; None where everything asked is answered."""
        return None

    def num_teachers(self, num_clients: int) -> int:
        """Teachers in the whole federation, the most that there can be; 0 where nothing is trained."""
        return 0

    @property
    def noisy_alone(self) -> bool:
        """Whether a hospital's own answer is private before any sum, at δ = 0 where it is."""
        return False

    def answer_digest(self, terms: Terms) -> str:
        """Names what a hospital answers: under terms of one such name it is the same, at no further cost."""
        return terms.digest

    @abstractmethod
    def bounds(self, terms: Terms) -> Bounds:
        """What a hospital's answer to one question takes at most."""

    @abstractmethod
    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """What the ledger fixes before the first question: mechanisms, protection and caps.

        `noise` is the source's kind, `private` whether it is one; `together` says that one process plays
        several hospitals, as in a simulation (`Terms.assumptions`).

        Raises:
            InputError: not even one question fits the budget, or terms that no mechanism has.
        """

    @abstractmethod
    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """What the coordinator sees of an answer in which so many hospitals have a part."""

    @abstractmethod
    def require_use(self, terms: Terms) -> None:
        """Refuse terms under which ε would be spent for nothing; either side asks before any question.

        Raises:
            InputError: they are such.
        """

    @abstractmethod
    def hides_enough(self, terms: Terms) -> bool:
        """Whether the hospitals' shares of noise, where they add it, hold what the terms say."""

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """Code that is none of ours and that the study rests on, each with the kind of part that it is."""

    @abstractmethod
    def words(self, terms: Terms) -> Words:
        """What is said of it: on the page that hospitals agree to, in the report, wherever people read."""

    def assumptions(self, terms: Terms, *, together: bool) -> Iterable[Assumption]:
        """Code of others on whose word every ε rests."""
        return ()

    @property
    def study_settings(self) -> Mapping[str, Any]:
        """Settings of a study that a hospital needs of this kind, by their sections."""
        return {}

    @property
    def file(self) -> str | None:
        """SHA-256 of the public file that hospitals get with the terms; None where they need none."""
        return None
