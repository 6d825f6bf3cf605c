"""Search for the noise, threshold and counts that give a student the most effective labels within a budget.

The objective is stated in `OBJECTIVE`; all candidates are priced by the budget filter, data-independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pate_fed.format import counted, epsilon_text
from pate_fed.privacy.accountant import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import about_share, epsilon_of
from pate_fed.privacy.bounds.orders import Floats
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax
from pate_fed.privacy.planning.vote_model import VoteModel
from pate_fed.privacy.protection import RECORD, Protection

__all__ = ["OBJECTIVE", "CurvePoint", "Offer", "OfferSearch", "better", "effective_labels"]

OBJECTIVE = (
    "effective labels = answered x (share right above chance)^4 x coverage; coverage is the part of the pool "
    "that the answered queries stand for (Kish), as a threshold answers easy inputs first"
)
# How much a wrong label hurts. 2 would be the loss of signal to a student that knows the noise; students that
# do not know it lose more: on Fashion-MNIST 2,200 labels 36 % wrong taught a GAN no more than 500 11 % wrong.
_EXPONENT = 4
# The search prices outcomes by an estimate; what is offered is held against the filter.
_MARGIN, _TRIES, _MORE = 1.005, 8, 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to spend the budget. `threshold` and `sigma1` are None without a threshold; all in votes.

    `asked` and `answered` are caps to put into the study; `answered` is what the votes are expected to give
    for that many queries. `epsilon` is what a study with these caps guarantees beforehand.
    """

    mechanism: str
    threshold: float | None
    sigma1: float | None
    sigma2: float
    asked: int
    answered: int
    answered_share: float
    right_share: float
    coverage: float
    effective_labels: float
    epsilon: float
    bytes_per_hospital: int

    def line(self) -> str:
        """The offer in one line."""
        noise = f"sigma2={self.sigma2:g}"
        if self.threshold is not None:
            noise = f"threshold={self.threshold:g} sigma1={self.sigma1:g} " + noise
        return (
            f"{self.mechanism} {noise}: {counted(self.answered, 'label')} of {counted(self.asked, 'query')}, "
            f"{100 * self.right_share:.0f} % right, worth {self.effective_labels:.0f} at "
            f"ε={epsilon_text(self.epsilon)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What the best offer for one ε gives; `right_share` is None where there is no label."""

    epsilon: float
    labels: int
    right_share: float | None
    effective_labels: float
    mechanism: str


def better(first: Offer | None, second: Offer | None) -> Offer | None:
    """The offer with more effective labels."""
    offers = [offer for offer in (first, second) if offer]
    return max(offers, key=lambda offer: offer.effective_labels, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chances:
    """What the votes give under each candidate; it depends on no budget.

    Shapes: `sigma2` and `right` (noises,); `checks` of threshold and σ1, `share` answered and `coverage`
    (checks,); `checked_right` (checks, noises).
    """

    sigma2: Floats
    right: Floats
    checks: list[tuple[float, float]]
    share: Floats
    checked_right: Floats
    coverage: Floats


@lru_cache(maxsize=16)
def _chances(model: VoteModel, num_teachers: int) -> _Chances:
    sigma2 = num_teachers * np.geomspace(0.01, 1.0, 33)
    right = np.stack([model.right_chance(sigma, num_teachers) for sigma in sigma2], axis=1)
    checks = [
        (num_teachers * level, num_teachers * width)
        for level in np.arange(0.3, 1.01, 0.1)
        for width in np.geomspace(0.1, 2.0, 12)
    ]
    passed = np.stack([model.answered(*check, num_teachers) for check in checks])
    share = passed.mean(axis=1)
    return _Chances(
        sigma2=sigma2,
        right=right.mean(axis=0),
        checks=checks,
        share=share,
        checked_right=passed @ right / np.maximum(passed.sum(axis=1), 1e-300)[:, None],
        coverage=share**2 / np.maximum((passed**2).mean(axis=1), 1e-300),
    )


class OfferSearch:
    """Candidates for one study, priced for any ε."""

    def __init__(
        self, model: VoteModel, num_teachers: int, pool: int, protection: Protection, delta: float
    ) -> None:
        self.model, self.n, self.pool = model, num_teachers, pool
        self.protection, self.delta = protection, delta
        self.num_classes = model.shares.shape[1]
        self.chances = _chances(model, num_teachers)

    def at_record_level(self, num_teachers: int) -> OfferSearch:
        """The same study with more teachers that agree as much, where one record moves one vote."""
        return OfferSearch(self.model, num_teachers, self.pool, RECORD, self.delta)

    def point(self, epsilon: float) -> CurvePoint:
        """The best offer for another ε."""
        best = better(*self.offers(epsilon, exact=False))
        return CurvePoint(
            epsilon=epsilon,
            labels=best.answered if best else 0,
            right_share=best.right_share if best else None,
            effective_labels=best.effective_labels if best else 0.0,
            mechanism=best.mechanism if best else "none",
        )

    def offers(self, epsilon: float, *, exact: bool = True) -> tuple[Offer | None, Offer | None]:
        """The best with and the best without a threshold, held against the filter where `exact`.

        Without it their price is an estimate, for a curve that is only shown.
        """
        budget = BudgetFilter(epsilon, self.delta, self.protection)
        rho = float(budget.room) / budget.order / _MARGIN
        return self._best_checked(rho, budget, exact), self._best_plain(rho, budget, exact)

    def _price(self, sigma: Floats, l2_squared: int, budget: BudgetFilter) -> Floats:
        """About what an outcome costs at the budget's order, as a ρ. Shapes: any to the same."""
        share = about_share(sigma, budget.order * self.protection.votes_moved)
        price: Floats = l2_squared / 2 / sigma**2 * share
        return price

    def _noise(self, price: float, budget: BudgetFilter) -> float:
        """The noise of an argmax whose outcome costs about that."""
        low, high = 1e-3, 1e6
        for _ in range(60):
            middle = math.sqrt(low * high)
            dear = float(self._price(np.array(middle), self.protection.l2_squared, budget)) > price
            low, high = (middle, high) if dear else (low, middle)
        return high

    def _best_plain(self, rho: float, budget: BudgetFilter, exact: bool) -> Offer | None:
        chances = self.chances
        price = self._price(chances.sigma2, self.protection.l2_squared, budget)
        answered = np.floor(np.minimum(rho / price * (1 + 1e-12), self.pool))
        worth = effective_labels(answered, chances.right, 1.0, self.num_classes)
        count = int(answered[int(np.argmax(worth))])
        if count < 1:
            return None
        sigma2 = self._noise(rho / count, budget)
        size = {"num_teachers": self.n, "num_classes": self.num_classes}
        for _ in range(_TRIES):
            mechanism = GNMax(**size, sigma=_up(sigma2))
            if not exact or budget.affordable(mechanism, queries=count) == count:
                return self._offer(mechanism, np.ones(len(self.model.right)), count, count, exact)
            sigma2 *= _MORE
        return None

    def _best_checked(self, rho: float, budget: BudgetFilter, exact: bool) -> Offer | None:
        chances, share = self.chances, self.chances.share
        sigma1 = np.array([check[1] for check in chances.checks])
        per_check = self._price(sigma1, self.protection.top**2, budget)
        per_answer = self._price(chances.sigma2, self.protection.l2_squared, budget)
        price = per_check[:, None] + share[:, None] * per_answer
        asked = np.floor(np.minimum(rho / price, self.pool))
        answered = np.floor(asked * share[:, None])
        worth = effective_labels(answered, chances.checked_right, chances.coverage[:, None], self.num_classes)
        row, column = np.unravel_index(int(np.argmax(worth)), worth.shape)
        count, queries = int(answered[row, column]), int(asked[row, column])
        if count < 1:
            return None
        threshold, width = min(math.ceil(chances.checks[row][0]), self.n), _up(chances.checks[row][1])
        left = rho - queries * float(self._price(np.array(width), self.protection.top**2, budget))
        sigma2 = self._noise(left / count, budget)
        size = {"num_teachers": self.n, "num_classes": self.num_classes}
        for _ in range(_TRIES):
            mechanism = ConfidentGNMax(**size, threshold=threshold, sigma1=width, sigma2=_up(sigma2))
            if not exact or budget.affordable(mechanism, queries=queries, max_answers=count) == queries:
                passed = self.model.answered(threshold, width, self.n)
                return self._offer(mechanism, passed, queries, count, exact)
            sigma2 *= _MORE
        return None

    def _offer(
        self,
        mechanism: GNMax | ConfidentGNMax,
        passed: Floats,
        asked: int,
        answered: int,
        exact: bool,
    ) -> Offer | None:
        """The offer with the noise that is really taken; None where it serves nobody."""
        price = mechanism.cost(asked, answered, self.protection)
        sigma2 = mechanism.sigma if isinstance(mechanism, GNMax) else mechanism.sigma2
        right = float((passed * self.model.right_chance(sigma2, self.n)).sum() / passed.sum())
        coverage = float(passed.mean() ** 2 / (passed**2).mean())
        confident = mechanism if isinstance(mechanism, ConfidentGNMax) else None
        worth = float(
            effective_labels(np.array(float(answered)), np.array(right), coverage, self.num_classes)
        )
        # A handful of labels that are no better than chance serves nobody.
        if worth < 0.25:
            return None
        return Offer(
            mechanism=mechanism.name,
            threshold=confident.threshold if confident else None,
            sigma1=confident.sigma1 if confident else None,
            sigma2=sigma2,
            asked=asked,
            answered=answered,
            answered_share=answered / asked,
            right_share=right,
            coverage=coverage,
            effective_labels=worth,
            epsilon=capped_cost_epsilon(price, self.delta)
            if exact
            else epsilon_of(price.as_totals, self.delta),
            bytes_per_hospital=4 * asked * self.num_classes,
        )


def effective_labels(answered: Floats, right: Floats, coverage: Any, num_classes: int) -> Floats:
    """Effective labels of an offer, as `OBJECTIVE` states it."""
    above = np.maximum(right - (1 - right) / (num_classes - 1), 0.0)
    worth: Floats = answered * above**_EXPONENT * coverage
    return worth


def _up(sigma: float) -> float:
    """Rounded up to three digits, so that what is shown is what is spent."""
    step = 10.0 ** (math.floor(math.log10(sigma)) - 2)
    return float(f"{math.ceil(sigma / step * (1 - 1e-12)) * step:.6g}")
