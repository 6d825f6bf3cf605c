"""Search for the noise, threshold and caps that give a student the most effective labels within a budget.

The objective is stated in `OBJECTIVE`. Candidates are priced at once by the limit of many outcomes, a
Gaussian with the variance of what they reveal; what is offered is then priced by the accountant that fixes a
study's guarantee, and its noise and caps are set so that the budget is spent and never passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.conversion import gaussian_delta
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.checks import Floats
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, LNMax
from pate_fed.privacy.planning.vote_model import VoteModel
from pate_fed.privacy.protection import RECORD, Protection

OBJECTIVE = "labels x (share right above chance)^4 x coverage, the part of the pool that they stand for"
SPARE = "queries: with room for winners that hold a tenth fewer votes than assumed"
"""Margin of the cap on queries, in words."""

CONSENSUS = 0.9
"""Part of the assumed votes with which the labels are reached still."""

# Coverage is Kish's, as a threshold answers easy inputs first. The power is how much a wrong label hurts: 2
# would be the loss of signal to a student that knows the noise; students that do not know it lose more: on
# Fashion-MNIST 2,200 labels 36 % wrong taught a GAN no more than 500 11 % wrong.
_EXPONENT = 4
_CHANCE = 2.0  # standard deviations of the number of queries that pass
_NEAR = 0.97  # what control states lies so far above the limit of many outcomes, as a ρ
_LOW = np.array([2.0])  # order at which the estimate is taken
_ROUND = 0.3  # few labels cost less than the estimate says
_LEAST_WORTH = 0.25
_SPENT = 0.995  # part of the budget at which no better noise is searched for
_AIM = 0.998
_TRIES = 10
_MANY = 100  # labels of which one is less than a hundredth, so that their number may do the rest
_SLOW = 100.0  # votes of noise from which pricing takes long, so that their number does it too
_WIDE = 1e7  # votes of noise that nobody learns anything through
_USUAL = ("confident-gnmax", "gnmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to spend the budget. `threshold` and `sigma1` are None without a threshold; all in votes.

    A mechanism of the user's own has parameters of its own, and all three are None.

    `mechanism` is the study's aggregator; for lnmax `sigma2` is the scale of its noise, as in a study.
    `asked` and `answered` are caps to put into the study: the votes are expected to give `answered`
    labels well before `asked` queries. `epsilon` is what a study with these caps guarantees at most,
    beforehand, against all who see labels. `right_share` is the expected accuracy of the labels.
    """

    mechanism: str
    threshold: float | None
    sigma1: float | None
    sigma2: float | None
    asked: int
    answered: int
    answered_share: float
    right_share: float
    coverage: float
    effective_labels: float
    epsilon: float
    bytes_per_hospital: int

    def noise(self) -> str:
        """Threshold and noise, as text."""
        parts = ("threshold", self.threshold), ("sigma1", self.sigma1), ("sigma2", self.sigma2)
        return ", ".join(f"{name} {value:g}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """About what the best offer for one ε gives; `right_share` is None where there is no label."""

    epsilon: float
    labels: int
    right_share: float | None
    effective_labels: float
    mechanism: str

    @classmethod
    def of(cls, offer: Offer | None, epsilon: float) -> CurvePoint:
        """What an offer gives; nothing where there is none."""
        if offer is None:
            return cls(epsilon=epsilon, labels=0, right_share=None, effective_labels=0.0, mechanism="none")
        return cls(
            epsilon=epsilon,
            labels=offer.answered,
            right_share=offer.right_share,
            effective_labels=offer.effective_labels,
            mechanism=offer.mechanism,
        )


def queries_for(labels: int, *, share: float, low_share: float) -> int:
    """Cap on queries that gives so many labels nearly always, also where only `low_share` of them pass."""
    chance = labels + _CHANCE * math.sqrt(labels * (1 - share))
    return max(labels, math.ceil(max(labels / max(low_share, 1e-12), chance / max(share, 1e-12)) - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chances:
    """What the votes give under each candidate; it depends on no budget.

    Shapes: `sigma2` and `right` (noises,); `checks` of threshold and σ1, `share` answered, `low_share` with
    less consensus and `coverage` (checks,); `checked_right` (checks, noises).
    """

    sigma2: Floats
    right: Floats
    checks: list[tuple[float, float]]
    share: Floats
    low_share: Floats
    checked_right: Floats
    coverage: Floats


@lru_cache(maxsize=16)
def _chances(model: VoteModel, num_teachers: int) -> _Chances:
    sigma2 = num_teachers * np.geomspace(0.01, 1.0, 33)
    right = np.stack([model.right_chance(sigma, num_teachers) for sigma in sigma2], axis=1)
    checks = [
        (float(math.ceil(round(num_teachers * level, 6))), round_up(num_teachers * width))
        for level in np.arange(3, 11) / 10
        for width in np.geomspace(0.1, 2.0, 12)
    ]
    passed = np.stack([model.answered(*check, num_teachers) for check in checks])
    low = np.stack([model.answered(*check, num_teachers, consensus=CONSENSUS) for check in checks])
    share = passed.mean(axis=1)
    return _Chances(
        sigma2=sigma2,
        right=right.mean(axis=0),
        checks=checks,
        share=share,
        low_share=low.mean(axis=1),
        checked_right=passed @ right / np.maximum(passed.sum(axis=1), 1e-300)[:, None],
        coverage=share**2 / np.maximum((passed**2).mean(axis=1), 1e-300),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """An aggregator, and its T and σ1 in votes where it has a check.

    Of all queries a part `share` passes it, and `low_share` with less consensus.
    """

    aggregator: str
    check: tuple[float, float] | None = None
    share: float = 1.0
    low_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """The best candidate by the estimate; the part `right_share` of its labels is right."""

    way: _Way
    labels: int
    right_share: float
    worth: float


class OfferSearch:
    """Candidates for one study, priced for any ε."""

    def __init__(
        self, model: VoteModel, num_teachers: int, pool: int, protection: Protection, delta: float
    ) -> None:
        self.model, self.n, self.pool = model, num_teachers, pool
        self.protection, self.delta = protection, delta
        self.num_classes = model.shares.shape[1]
        self._priced: dict[_Way, Floats] = {}

    @cached_property
    def chances(self) -> _Chances:
        """What the votes give under each candidate."""
        return _chances(self.model, self.n)

    @cached_property
    def _checked(self) -> tuple[list[_Way], Floats]:
        """Ways with a check, and about what a label costs: (checks, noises)."""
        chances, plain = self.chances, _Way(aggregator="gnmax")
        ways = [
            _Way(
                aggregator="confident-gnmax", check=check, share=float(share), low_share=float(max(low, 1e-9))
            )
            for check, share, low in zip(chances.checks, chances.share, chances.low_share, strict=True)
        ]
        # A query for each label and those that do not pass.
        checks = np.array([self._about(way, 1.0, 1, 0) / way.low_share for way in ways])
        return ways, checks[:, None] + self._prices(plain)

    def _prices(self, way: _Way) -> Floats:
        """About what a label costs without a check, (noises,)."""
        if way not in self._priced:
            each = [self._about(way, _as_scale(way, sigma), 1, 1) for sigma in self.chances.sigma2]
            self._priced[way] = np.array(each)
        return self._priced[way]

    def at_record_level(self, num_teachers: int) -> OfferSearch:
        """The same study for one record, with more teachers that agree as much: several at each hospital.

        One that is replaced may then change two of them.
        """
        moved = 2 if self.protection.adjacency == RECORD.adjacency else 1
        protection = Protection(adjacency=self.protection.adjacency, votes_moved=moved)
        return OfferSearch(self.model, num_teachers, self.pool, protection, self.delta)

    def point(self, epsilon: float, aggregators: Sequence[str] = _USUAL) -> CurvePoint:
        """About what the best offer of some aggregators gives for another ε."""
        guesses = [self.guess(name, epsilon) for name in aggregators]
        best = max((each for each in guesses if each), key=lambda each: each.worth, default=None)
        return CurvePoint(
            epsilon=epsilon,
            labels=best.labels if best else 0,
            right_share=best.right_share if best else None,
            effective_labels=best.worth if best else 0.0,
            mechanism=best.way.aggregator if best else "none",
        )

    def guess(self, aggregator: str, epsilon: float) -> _Guess | None:
        """The best candidate by the estimate; None where not one label is worth anything."""
        if aggregator == "confident-gnmax":
            return self._guess_checked(epsilon)
        return self._guess_plain(aggregator, epsilon)

    def offer(self, aggregator: str, epsilon: float) -> Offer | None:
        """The best offer of one aggregator, by the accountant that fixes a study's guarantee.

        `aggregator` is confident-gnmax, gnmax or lnmax. None where the budget does not buy a useful label.
        """
        guess = self.guess(aggregator, epsilon)
        if guess is None:
            return None
        way = guess.way
        study = OpenStudy(
            price=lambda sigma, labels: self._stated(way, sigma, labels),
            about=lambda sigma, labels: self._about(way, sigma, self._asked(way, labels), labels),
            room=self.room,
            most_labels=max(1, math.floor(self.pool * way.low_share)),
        )
        found = spend(study, epsilon=epsilon, labels=guess.labels)
        return None if found is None else self._offer(way, found)

    def affordable(self, sigma: float, epsilon: float) -> int:
        """About how many labels the budget buys without a threshold, at a given noise of GNMax."""
        return min(
            self.pool, math.floor(self.room(epsilon) / self._about(_Way(aggregator="gnmax"), sigma, 1, 1))
        )

    def room(self, epsilon: float) -> float:
        """About the ρ that a budget buys, of what outcomes reveal."""
        return gaussian_room(epsilon, self.delta)

    def _asked(self, way: _Way, labels: int) -> int:
        """The cap on queries that so many labels take."""
        if way.check is None:
            return labels
        return min(self.pool, queries_for(labels, share=way.share, low_share=way.low_share))

    def _mechanism(self, way: _Way, sigma: float) -> Mechanism:
        size: dict[str, Any] = {"num_teachers": self.n, "num_classes": self.num_classes}
        if way.check is not None:
            return ConfidentGNMax(**size, threshold=way.check[0], sigma1=way.check[1], sigma2=sigma)
        return LNMax(**size, scale=sigma) if way.aggregator == "lnmax" else GNMax(**size, sigma=sigma)

    def _stated(self, way: _Way, sigma: float, labels: int) -> float:
        """ε that a study with these caps guarantees; less where each vector of votes is checked."""
        cost = self._mechanism(way, sigma).cost(self._asked(way, labels), labels, self.protection)
        return capped_cost_epsilon(cost, self.delta)

    def _about(self, way: _Way, sigma: float, asked: int, answered: int) -> float:
        """About what so many queries and labels reveal, as a ρ."""
        return about_rho(self._mechanism(way, sigma).cost(asked, answered, self.protection))

    def _guess_plain(self, aggregator: str, epsilon: float) -> _Guess | None:
        chances, way = self.chances, _Way(aggregator=aggregator)
        answered = self._answered(epsilon, self._prices(way), self.pool)
        worth = effective_labels(answered, chances.right, 1.0, self.num_classes)
        best = int(np.argmax(worth))
        if not is_useful(answered[best], worth[best]):
            return None
        return _Guess(
            way=way,
            labels=int(answered[best]),
            right_share=float(chances.right[best]),
            worth=float(worth[best]),
        )

    def _guess_checked(self, epsilon: float) -> _Guess | None:
        chances, (ways, price) = self.chances, self._checked
        most = np.array([self.pool * way.low_share for way in ways])
        answered = self._answered(epsilon, price, most[:, None])
        worth = effective_labels(answered, chances.checked_right, chances.coverage[:, None], self.num_classes)
        row, column = np.unravel_index(int(np.argmax(worth)), worth.shape)
        if not is_useful(answered[row, column], worth[row, column]):
            return None
        return _Guess(
            way=ways[row],
            labels=int(answered[row, column]),
            right_share=float(chances.checked_right[row, column]),
            worth=float(worth[row, column]),
        )

    def _answered(self, epsilon: float, price: Floats, most: Any) -> Floats:
        """About how many labels there are for a price each. Shapes: any to the same."""
        labels: Floats = np.floor(np.minimum(self.room(epsilon) / price * (1 + 1e-12) + _ROUND, most))
        return labels

    def _offer(self, way: _Way, found: Spent) -> Offer | None:
        """The offer with the noise that is really taken; None where it serves nobody."""
        passed = np.ones(len(self.model.right))
        if way.check is not None:
            passed = self.model.answered(*way.check, self.n)
        chance = self.model.right_chance(_deviation(way, found.sigma), self.n)
        right = float((passed * chance).sum() / passed.sum())
        coverage = float(passed.mean() ** 2 / (passed**2).mean())
        worth = float(
            effective_labels(np.array(float(found.labels)), np.array(right), coverage, self.num_classes)
        )
        if not is_useful(found.labels, worth):
            return None
        asked = self._asked(way, found.labels)
        return Offer(
            mechanism=way.aggregator,
            threshold=None if way.check is None else way.check[0],
            sigma1=None if way.check is None else way.check[1],
            sigma2=found.sigma,
            asked=asked,
            answered=found.labels,
            answered_share=float(passed.mean()),
            right_share=right,
            coverage=coverage,
            effective_labels=worth,
            epsilon=found.epsilon,
            bytes_per_hospital=4 * asked * self.num_classes,
        )


def effective_labels(answered: Floats, right: Floats, coverage: Any, num_classes: int) -> Floats:
    """Effective labels of an offer, as `OBJECTIVE` states it."""
    # above chance, as wrong labels spread over the other classes
    above = np.maximum(right - (1 - right) / (num_classes - 1), 0.0)
    worth: Floats = answered * above**_EXPONENT * coverage
    return worth


def about_rho(cost: Cost) -> float:
    """About what outcomes reveal, as a ρ: their curve where it has hardly begun to bend."""
    return sum(times * float(outcome.about(_LOW)[0] / _LOW[0]) for outcome, times in cost.outcomes)


@lru_cache(maxsize=256)
def gaussian_room(epsilon: float, delta: float) -> float:
    """About the ρ of a Gaussian with so much (ε, δ), less what control states above it."""
    low, high = 1e-9, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_delta(middle, epsilon) > delta else (middle, high)
    return _NEAR * low * low / 2


def is_useful(labels: float, worth: float) -> bool:
    """Whether there is a label at all; a handful that are no better than chance serves nobody."""
    return labels >= 1 and worth >= _LEAST_WORTH


def _as_scale(way: _Way, deviation: float) -> float:
    """A study's sigma2 for noise of a standard deviation: Laplace noise is known by its scale."""
    return float(deviation) / math.sqrt(2) if way.aggregator == "lnmax" else float(deviation)


def _deviation(way: _Way, sigma2: float) -> float:
    return sigma2 * math.sqrt(2) if way.aggregator == "lnmax" else sigma2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """A study of which the noise of the vote and the number of labels are open.

    By noise in votes and labels `price` is the ε that is stated and `about` what they reveal, as a ρ; `room`
    is about the ρ that an ε buys. These two are estimates that steer. No less noise than `least_sigma` is
    taken.
    """

    price: Callable[[float, int], float]
    about: Callable[[float, int], float]
    room: Callable[[float], float]
    most_labels: int
    least_sigma: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Noise and labels within a budget, and the ε that is stated for them."""

    sigma: float
    labels: int
    epsilon: float


def spend(study: OpenStudy, *, epsilon: float, labels: int) -> Spent | None:
    """Noise for so many labels, or about so many, of which the stated ε is close to `epsilon` and not above.

    None where the budget does not buy one label.
    """
    labels, rho, best = min(labels, study.most_labels), study.room(epsilon), None
    sigma = _noise(study, labels, rho)
    for _ in range(_TRIES):
        # Several offers of much noise then have one, which is priced once, and their counts do the rest.
        sigma = round_up(sigma, digits=2 if sigma >= _SLOW and labels < study.most_labels else 4)
        if sigma > _WIDE:
            break
        found = study.price(sigma, labels)
        if found <= epsilon and (best is None or found > best.epsilon):
            best = Spent(sigma=sigma, labels=labels, epsilon=found)
        if best is not None and best.epsilon >= _SPENT * epsilon:
            return best
        if labels < study.most_labels and (labels >= _MANY or sigma >= _SLOW or sigma <= study.least_sigma):
            best = _count(study, sigma, (labels, found), epsilon)
            if best is None or best.labels < study.most_labels or best.epsilon >= _SPENT * epsilon:
                return best
            labels, found = best.labels, best.epsilon  # no more labels are to be had: the noise does the rest
        # The estimate errs by a factor that hardly changes with the noise.
        rho *= study.room(_AIM * epsilon) / max(study.room(found), 1e-300)
        before, sigma = sigma, _noise(study, labels, rho)
        if round_up(sigma) == before:
            sigma = before * 1.001 if found > epsilon else before
            if sigma == before:
                break
    return best


def _count(study: OpenStudy, sigma: float, first: tuple[int, float], epsilon: float) -> Spent | None:
    """The most labels that this noise allows, but for a fraction of a hundredth."""
    low, high, best = 0, study.most_labels + 1, None
    labels, found = first
    for _ in range(2 * _TRIES):
        if found <= epsilon:
            low, best = labels, Spent(sigma=sigma, labels=labels, epsilon=found)
        else:
            high = labels
        if high - low <= 1 or (best is not None and best.epsilon >= _SPENT * epsilon):
            break
        guess = math.floor(labels * study.room(_AIM * epsilon) / max(study.room(found), 1e-300))
        labels = guess if low < guess < high else (low + high) // 2
        found = study.price(sigma, labels)
    return best


def _noise(study: OpenStudy, labels: int, rho: float) -> float:
    """The least noise with which so many labels reveal at most `rho`; ∞ where none does."""
    low, high = math.log(max(study.least_sigma, 1e-3)), math.log(2 * _WIDE)
    if study.about(math.exp(high), labels) > rho:
        return math.inf
    if study.least_sigma and study.about(study.least_sigma, labels) <= rho:
        return study.least_sigma
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if study.about(math.exp(middle), labels) > rho else (low, middle)
    return max(math.exp(high), study.least_sigma)


def round_up(sigma: float, *, digits: int = 4) -> float:
    """Rounded up to so many digits, so that what is shown is what is spent."""
    if not math.isfinite(sigma):
        return sigma
    step = 10.0 ** (math.floor(math.log10(sigma)) - digits + 1)
    return float(f"{math.ceil(sigma / step * (1 - 1e-12)) * step:.7g}")
