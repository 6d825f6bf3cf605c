"""Randomised response on labels, and the response with a prior of LP-2ST. ε is exact and δ is 0.

Tang et al., PoPETs 2022, Algorithm 3 and Theorem 2; Ghazi, Golowich, Kumar, Manurangsi and Zhang, "Deep
learning with label differential privacy" (NeurIPS 2021), Algorithms 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.exact import WORDS, PureMechanism, keep_words, uniform_below
from pate_fed.kinds.label_dp.release import PrivateLabels, check_labels
from pate_fed.privacy.label_dp import LabelResponse, PriorResponse, RandomisedResponse
from pate_fed.privacy.mechanisms.noise import NoiseSource

Ints = NDArray[np.int64]
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
