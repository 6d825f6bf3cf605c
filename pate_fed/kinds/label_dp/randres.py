"""Exact mechanisms with δ = 0: randomised response on labels, LP-2ST's response with a prior, and ALIBI.

Tang et al., PoPETs 2022, Algorithm 3 and Theorem 2; Ghazi, Golowich, Kumar, Manurangsi and Zhang, "Deep
learning with label differential privacy" (NeurIPS 2021), Algorithms 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.release import PrivateLabels, check_labels
from pate_fed.privacy.checks import check_count, check_epsilon, check_scale
from pate_fed.privacy.label_dp import LabelResponse, LaplaceResponse, PriorResponse, RandomisedResponse
from pate_fed.privacy.mechanisms.noise import NoiseSource

# Exact draws with integers: what is claimed with δ = 0 may not hang on the rounding of a float.
#
# Everything is drawn from uniform whole numbers below 2^62 of a `NoiseSource`; a probability is a whole
# number of 2^-62, rounded to the side that protects more.

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
    """An ε for a mechanism with δ = 0; InputError where it is not finite and at least 1e-9."""
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


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandRes(PureMechanism):
    """Keep a label with probability p = e^ε/(e^ε + K - 1), else give one of the K - 1 others, all alike.

    p is rounded down to a whole number of 2^-62, so the odds p (K - 1)/(1 - p) never pass e^ε.
    """

    row: ClassVar[type[LabelResponse]] = RandomisedResponse

    @property
    def keep_words(self) -> int:
        """How many of 2^62 draws keep the label."""
        return keep_words(self.epsilon, self.num_classes)

    @property
    def how(self) -> str:
        """The mechanism as text."""
        return f"randomised response, p={self.probability:.4f}"

    @property
    def probability(self) -> float:
        """p: the share of labels that stay, and so the accuracy of the released ones."""
        return self.keep_words / WORDS

    @property
    def other(self) -> float:
        """The probability of each single wrong class."""
        return (WORDS - self.keep_words) / WORDS / (self.num_classes - 1)

    def release(self, labels: ArrayLike, noise: NoiseSource) -> PrivateLabels:
        """A private label for each record.

        Shapes: `labels` int (n,).

        Raises:
            InputError: labels that are none, or outside the classes.
        """
        true = check_labels(labels, self.num_classes)
        truthful = uniform_below(WORDS, len(true), noise) < self.keep_words
        away = 1 + uniform_below(self.num_classes - 1, len(true), noise)
        return PrivateLabels.by(self, np.where(truthful, true, (true + away) % self.num_classes), noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorRes(PureMechanism):
    """Randomised response among the classes that a public prior makes likely (LP-2ST's second stage).

    Of the prior's k likeliest classes, k chosen to keep the truth most often: a label among them is kept with
    probability e^ε/(e^ε + k - 1), else another of them is given; a label outside gives any of the k alike.
    The prior may come from released labels and public features only.
    """

    row: ClassVar[type[LabelResponse]] = PriorResponse
    how: ClassVar[str] = "randomised response with a prior"

    def choices(self, prior: Floats) -> Ints:
        """Each record's k, int64 (n,): the one with the largest e^ε/(e^ε + k - 1) times the prior's top k."""
        likeliest = np.sort(prior, axis=1)[:, ::-1].cumsum(axis=1)
        k = np.arange(self.num_classes)
        return np.asarray((likeliest / (1 + k * math.exp(-self.epsilon))).argmax(axis=1) + 1, dtype=np.int64)

    def release(self, labels: ArrayLike, prior: ArrayLike, noise: NoiseSource) -> PrivateLabels:
        """A private label for each record.

        Shapes: `labels` int (n,), `prior` float (n, K), rows at least 0.

        Raises:
            InputError: labels outside the classes, or a prior that is no probabilities.
        """
        true = check_labels(labels, self.num_classes)
        shares = np.asarray(prior, dtype=np.float64)
        if shares.shape != (len(true), self.num_classes) or not (shares >= 0).all():
            raise InputError(
                f"prior is {shares.shape}: probabilities ({len(true)}, {self.num_classes}) are meant"
            )
        order = np.argsort(-shares, axis=1, kind="stable")
        rank = np.argmax(order == true[:, None], axis=1)
        found = np.empty(len(true), dtype=np.int64)
        chosen = self.choices(shares)
        for k in np.unique(chosen).tolist():
            rows = np.flatnonzero(chosen == k)
            found[rows] = order[rows, self._answer(rank[rows], k, noise)]
        return PrivateLabels.by(self, found, noise)

    def _answer(self, rank: Ints, k: int, noise: NoiseSource) -> Ints:
        """Ranks below `k` in place of the true ones."""
        anywhere = uniform_below(k, len(rank), noise)
        if k == 1:
            return anywhere
        truthful = uniform_below(WORDS, len(rank), noise) < keep_words(self.epsilon, k)
        away = 1 + uniform_below(k - 1, len(rank), noise)
        return np.where(rank >= k, anywhere, np.where(truthful, rank, (rank + away) % k))


# ALIBI: Laplace noise on one-hot labels, and Bayes' rule to make probabilities of what comes out.
#
# Malek, Mironov, Prasad, Shilov and Tramèr, "Antipodes of label differential privacy" (NeurIPS 2021). A
# replaced label changes a one-hot row by 2 in L1, so the scale is 2/ε. The noise is the discrete Laplace on
# a grid of 1/1024, sampled with integers: a continuous one in floats would not have δ = 0.

GRID = 1024  # steps of the grid in one label


@dataclass(frozen=True, slots=True, kw_only=True)
class Alibi(PureMechanism):
    """One-hot rows plus discrete Laplace noise of scale at least 2/ε, in labels."""

    row: ClassVar[type[LabelResponse]] = LaplaceResponse

    def __post_init__(self) -> None:
        PureMechanism.__post_init__(self)
        check_scale("scale", self.scale)

    @property
    def scale(self) -> float:
        """Scale of the noise in steps of the grid, rounded up: 2 · 1024/scale is at most ε."""
        found = 2 * GRID / self.epsilon
        while Fraction(2 * GRID) > Fraction(found) * Fraction(self.epsilon):
            found = math.nextafter(found, math.inf)
        return found

    @property
    def how(self) -> str:
        """The mechanism as text."""
        return f"Laplace noise of scale {self.scale / GRID:.4g} on one-hot labels"

    def noisy_rows(self, labels: ArrayLike, noise: NoiseSource) -> Ints:
        """The released rows in steps of the grid, int64 (n, K).

        Raises:
            InputError: labels that are none, or outside the classes.
        """
        true = check_labels(labels, self.num_classes)
        rows = noise.discrete_laplace((len(true), self.num_classes), scale=self.scale)
        rows[np.arange(len(true)), true] += GRID
        return rows

    def posterior(self, rows: Ints, prior: Floats | None = None) -> Floats:
        """Probabilities of the true class given the released rows, float64 (n, K); `prior` uniform if None.

        Only class k's own entry tells k apart: ln Pr[rows | k] = (|o_k| - |o_k - 1|)/scale + constant.
        """
        log = (np.abs(rows) - np.abs(rows - GRID)) / self.scale
        if prior is not None:
            log = log + np.log(np.maximum(prior, 1e-300))
        joint = np.exp(log - log.max(axis=1, keepdims=True))
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))

    def private_labels(self, rows: Ints, noise: NoiseSource, prior: Floats | None = None) -> PrivateLabels:
        """The likeliest class of each released row and its posterior; a `prior` must be public."""
        posterior = self.posterior(rows, prior)
        return PrivateLabels.by(self, posterior.argmax(axis=1).astype(np.int64), noise, posterior)
