"""Exact draws with integers: what is claimed with δ = 0 may not hang on the rounding of a float.

Everything is drawn from uniform whole numbers below 2^62 of a `NoiseSource`; a probability is a whole number
of 2^-62, rounded to the side that protects more.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_count, check_epsilon
from pate_fed.privacy.label_dp import LabelResponse
from pate_fed.privacy.mechanisms.noise import NoiseSource

Ints = NDArray[np.int64]

WORDS = 2**62
LEAST_EPSILON = 1e-9  # below, a share of 2^-62 is no longer small beside what ε changes
_MOST_USEFUL = 120  # e^120 is far beyond 2^62 for any number of classes
_DIGITS = Context(prec=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class PureMechanism:
    """A mechanism that answers about every label by itself, `epsilon`-DP with δ = 0.

    Raises:
        InputError: fewer than two classes, or ε below 1e-9.
    """

    delta: ClassVar[float] = 0.0
    row: ClassVar[type[LabelResponse]]
    num_classes: int
    epsilon: float

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes, least=2)
        check_pure_epsilon(self.epsilon)

    @property
    def on_ledger(self) -> LabelResponse:
        """The release as a row of the ledger states it."""
        return self.row(num_classes=self.num_classes, epsilon=self.epsilon)


def check_pure_epsilon(epsilon: float) -> float:
    """An ε for a mechanism with δ = 0.

    Raises:
        InputError: not a finite number of at least 1e-9.
    """
    if check_epsilon(epsilon) < LEAST_EPSILON:
        raise InputError(f"epsilon={epsilon!r}: must be at least {LEAST_EPSILON:g}, or nothing is learnt")
    return float(epsilon)


def keep_words(epsilon: float, choices: int) -> int:
    """How many of 2^62 draws keep the truth among `choices`: the most with odds within e^ε.

    That is ⌊2^62 e^ε / (e^ε + choices - 1)⌋, with e^ε from below in 60 digits, and less than 2^62.

    Raises:
        InputError: ε below 1e-9, or fewer than two choices.
    """
    check_count("choices", choices, least=2)
    capped = Decimal(min(check_pure_epsilon(epsilon), _MOST_USEFUL))
    grown = Fraction(_DIGITS.next_minus(capped.exp(_DIGITS)))
    return min(WORDS - 1, int(WORDS * grown / (grown + choices - 1)))


def uniform_below(bound: int, count: int, noise: NoiseSource) -> Ints:
    """`count` whole numbers, each of 0 .. bound - 1 with exactly the same chance; int64 (count,).

    Draws that would favour the small numbers are thrown away and drawn again.

    Raises:
        InputError: a bound outside 1..2^62.
    """
    if not 1 <= bound <= WORDS:
        raise InputError(f"bound={bound!r}: must be from 1 to 2^62")
    limit = WORDS - WORDS % bound
    drawn = noise.tie_keys(count) - 1
    while (again := drawn >= limit).any():
        drawn[again] = noise.tie_keys(int(again.sum())) - 1
    return np.asarray(drawn % bound, dtype=np.int64)
