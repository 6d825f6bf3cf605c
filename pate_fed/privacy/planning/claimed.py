"""What a budget buys of a mechanism of the user's own, as it is: by its claimed curve, tried on the votes.

Nothing of it is searched: its noise is its parameters', which the user sets. Every query costs the whole
curve, so that the budget says how many may be asked; what they give is what its code says of the votes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.mechanisms.noise import SeededNoise
from pate_fed.privacy.mechanisms.own import (
    KIND,
    OwnMechanism,
    make_aggregator,
    own_mechanism,
)
from pate_fed.privacy.planning.search import CurvePoint, Offer, effective_labels, is_useful
from pate_fed.privacy.planning.vote_model import VoteModel
from pate_fed.privacy.protection import Protection
from pate_fed.structure.parts import load_part, own_identity, part_identity


class ClaimedSearch:
    """Numbers of queries to a mechanism of the user's own, priced for any ε.

    `part` is the object, class or factory, or its name as module:attribute or of an entry point.

    Raises:
        InputError: it cannot be loaded, fails, or claims no curve; the message names it.
    """

    def __init__(
        self, part: Any, model: VoteModel, num_teachers: int, pool: int, protection: Protection, delta: float
    ) -> None:
        named = isinstance(part, str)  # made with its default parameters, as in a study that gives none
        code = load_part(part, KIND) if named else part
        self.mechanism = own_mechanism(
            code,
            classes=model.shares.shape[1],
            num_teachers=num_teachers,
            protection=protection,
            identity=part_identity(part, KIND) if named else own_identity(part),
        )
        self._pool, self._delta = pool, delta
        parameters = dict(self.mechanism.claim.parameters)
        self.parameters = {} if named else parameters
        made = make_aggregator(code, parameters, what=f"{KIND} {self.mechanism.name!r}")
        self._share, self._right, self._coverage = _tried(self.mechanism, made, model)

    def offer(self, epsilon: float) -> Offer | None:
        """As many queries as the budget buys, and about what they give; None where nothing useful."""
        asked = self._affordable(epsilon)
        labels = math.floor(asked * self._share)
        worth = float(
            effective_labels(
                np.array(float(labels)), np.array(self._right), self._coverage, self.mechanism.num_classes
            )
        )
        if not is_useful(labels, worth):
            return None
        return Offer(
            mechanism=self.mechanism.name,
            threshold=None,
            sigma1=None,
            sigma2=None,
            asked=asked,
            answered=labels,
            answered_share=self._share,
            right_share=self._right,
            coverage=self._coverage,
            effective_labels=worth,
            epsilon=self._epsilon(asked),
            bytes_per_hospital=4 * asked * self.mechanism.num_classes,
        )

    def point(self, epsilon: float) -> CurvePoint:
        """The same as a point of a plan's curve."""
        found = self.offer(epsilon)
        return CurvePoint(
            epsilon=epsilon,
            labels=found.answered if found else 0,
            right_share=found.right_share if found else None,
            effective_labels=found.effective_labels if found else 0.0,
            mechanism=found.mechanism if found else "none",
        )

    def _affordable(self, epsilon: float) -> int:
        """The most queries of the pool that cost at most ε."""
        low, high = 0, self._pool + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._epsilon(middle) <= epsilon else (low, middle)
        return low

    def _epsilon(self, asked: int) -> float:
        cost = self.mechanism.cost(asked, asked, self.mechanism.protection)
        return epsilon_of(cost, self._delta)


def _tried(mechanism: OwnMechanism, made: Any, model: VoteModel) -> tuple[float, float, float]:
    """The share of queries that it answers, of labels that are right, and coverage; each vote is asked twice.

    Coverage is Kish's, share² over the mean of a query's squared chance, of which two tries tell.
    """
    totals = np.floor(model.shares * mechanism.num_teachers + 1e-9).astype(np.int64)
    noise = SeededNoise(0)  # so that plans repeat
    labels = np.array([[mechanism.label(made, row, noise) for row in totals] for _ in range(2)])
    answered = labels >= 0
    share, both = float(answered.mean()), float((answered[0] & answered[1]).mean())
    right = float((labels == model.right)[answered].mean()) if share else 0.0
    return share, right, min(1.0, share**2 / both) if both else 0.0
