"""Search for the noise, threshold and caps that give a student the most effective labels within a budget.

The objective is stated in `OBJECTIVE`. Candidates are priced at once by the limit of many outcomes, a
Gaussian with the variance of what they reveal; what is offered is then priced by the accountant that fixes a
study's guarantee, and its noise and caps are set so that the budget is spent and never passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.conversion import near_delta
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
    def of(cls, found: Offer | Guess | None, epsilon: float) -> CurvePoint:
        """What an offer or a guess gives; nothing where there is none."""
        return cls(
            epsilon=epsilon,
            labels=found.answered if found else 0,
            right_share=found.right_share if found else None,
            effective_labels=found.effective_labels if found else 0.0,
            mechanism=found.mechanism if found else "none",
        )


def queries_for(labels: int, *, share: float, low_share: float) -> int:
    """Cap on queries that gives so many labels nearly always, also where only `low_share` of them pass."""
    chance = labels + _CHANCE * math.sqrt(labels * (1 - share))
    return max(labels, math.ceil(max(labels / max(low_share, 1e-12), chance / max(share, 1e-12)) - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An aggregator, and its T and σ1 in votes where it has them.

    Of all queries a part `share` passes the check, and `low_share` with less consensus.
    """

    aggregator: str
    threshold: float | None = None
    sigma1: float | None = None
    share: float = 1.0
    low_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chances:
    """What the votes give under each candidate of one aggregator; it depends on no budget.

    `ways` have no shares yet. Shapes: `sigma2` (noises,), all other arrays (ways, noises): `right` is the
    share that is right of what is answered.
    """

    ways: Sequence[Way]
    sigma2: Floats
    share: Floats
    low_share: Floats
    right: Floats
    coverage: Floats

    def way(self, row: int, column: int) -> Way:
        """One with its shares."""
        share, low = float(self.share[row, column]), float(self.low_share[row, column])
        return replace(self.ways[row], share=share, low_share=low)


@lru_cache(maxsize=16)
def _noises(model: VoteModel, num_teachers: int) -> tuple[Floats, Floats]:
    """Noises (noises,), and each query's chance that the right class wins under them (queries, noises)."""
    sigma2 = num_teachers * np.geomspace(0.01, 1.0, 33)
    return sigma2, np.stack([model.right_chance(sigma, num_teachers) for sigma in sigma2], axis=1)


@lru_cache(maxsize=16)
def _chances(model: VoteModel, num_teachers: int, aggregator: str) -> Chances:
    sigma2, right = _noises(model, num_teachers)
    if aggregator != "confident-gnmax":
        ways, passed = [Way(aggregator=aggregator)], np.ones((1, len(right)))
        low, right_share = passed, right.mean(axis=0, keepdims=True)
    else:
        checks = [
            (float(math.ceil(round(num_teachers * level, 6))), round_up(num_teachers * width))
            for level in np.arange(3, 11) / 10
            for width in np.geomspace(0.1, 2.0, 12)
        ]
        ways = [Way(aggregator=aggregator, threshold=level, sigma1=width) for level, width in checks]
        passed = np.stack([model.answered(*check, num_teachers) for check in checks])
        low = np.stack([model.answered(*check, num_teachers, consensus=CONSENSUS) for check in checks])
        right_share = passed @ right / np.maximum(passed.sum(axis=1), 1e-300)[:, None]
    share = passed.mean(axis=1)
    coverage = share**2 / np.maximum((passed**2).mean(axis=1), 1e-300)
    each = np.ones(len(sigma2))
    return Chances(
        ways=ways,
        sigma2=sigma2,
        share=np.outer(share, each),
        low_share=np.outer(np.maximum(low.mean(axis=1), 1e-9), each),
        right=right_share,
        coverage=np.outer(coverage, each),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The best candidate by the estimate; the part `right_share` of its labels is right."""

    way: Way
    answered: int
    right_share: float
    effective_labels: float

    @property
    def mechanism(self) -> str:
        """Its aggregator."""
        return self.way.aggregator


class OfferSearch:
    """Candidates for one study under the coordinator's noise, priced by what all who see labels learn."""

    least_sigma = 0.0

    def __init__(
        self, model: VoteModel, num_teachers: int, pool: int, protection: Protection, delta: float
    ) -> None:
        self.model, self.n, self.pool = model, num_teachers, pool
        self.protection, self.delta = protection, delta
        self.num_classes = model.shares.shape[1]
        self._priced: dict[str, Floats] = {}

    def guess(self, aggregator: str, epsilon: float) -> Guess | None:
        """The best candidate by the estimate; None where not one label is worth anything."""
        chances, answered = self._chances(aggregator), self._answered(aggregator, epsilon)
        worth = effective_labels(answered, chances.right, chances.coverage, self.num_classes)
        worth[:, chances.sigma2 < self.least_sigma] = 0.0
        row, column = np.unravel_index(int(np.argmax(worth)), worth.shape)
        if not is_useful(answered[row, column], worth[row, column]):
            return None
        return Guess(
            way=chances.way(int(row), int(column)),
            answered=int(answered[row, column]),
            right_share=float(chances.right[row, column]),
            effective_labels=float(worth[row, column]),
        )

    def offer(self, aggregator: str, epsilon: float) -> Offer | None:
        """The best offer of one of our aggregators, by the accountant that fixes a study's guarantee.

        None where the budget does not buy a useful label.
        """
        guess = self.guess(aggregator, epsilon)
        if guess is None:
            return None
        way = guess.way
        study = OpenStudy(
            price=lambda sigma, labels: self._stated(way, sigma, self._asked(way, labels), labels),
            about=lambda sigma, labels: self._about(way, sigma, self._asked(way, labels), labels),
            room=self.room,
            most_labels=max(1, math.floor(self.pool * way.low_share)),
            least_sigma=self.least_sigma,
        )
        found = spend(study, epsilon=epsilon, labels=guess.answered)
        if found is None:
            return None
        share, right, coverage = self._given(way, found.sigma)
        worth = float(effective_labels(found.labels, right, coverage, self.num_classes))
        if not is_useful(found.labels, worth):
            return None
        asked = self._asked(way, found.labels)
        return Offer(
            mechanism=way.aggregator,
            threshold=way.threshold,
            sigma1=way.sigma1,
            sigma2=found.sigma,
            asked=asked,
            answered=found.labels,
            answered_share=share,
            right_share=right,
            coverage=coverage,
            effective_labels=worth,
            epsilon=found.epsilon,
            bytes_per_hospital=4 * asked * self.num_classes,
        )

    def _asked(self, way: Way, labels: int) -> int:
        """The cap on queries that so many labels take."""
        if way.threshold is None:
            return labels
        return min(self.pool, queries_for(labels, share=way.share, low_share=way.low_share))

    def point(self, epsilon: float, aggregators: Sequence[str] = _USUAL) -> CurvePoint:
        """About what the best offer of some aggregators gives for another ε."""
        guesses = [found for name in aggregators if (found := self.guess(name, epsilon))]
        return CurvePoint.of(max(guesses, key=lambda each: each.effective_labels, default=None), epsilon)

    def at_record_level(self, num_teachers: int) -> OfferSearch:
        """The same study for one record, with more teachers that agree as much: several at each hospital.

        One that is replaced may then change two of them.
        """
        moved = 2 if self.protection.adjacency == RECORD.adjacency else 1
        protection = Protection(adjacency=self.protection.adjacency, votes_moved=moved)
        return OfferSearch(self.model, num_teachers, self.pool, protection, self.delta)

    def room(self, epsilon: float) -> float:
        """About the ρ that a budget buys, of what is seen."""
        return gaussian_room(epsilon, self.delta)

    def _chances(self, aggregator: str) -> Chances:
        """What the votes give under each candidate."""
        return _chances(self.model, self.n, aggregator)

    def _answered(self, aggregator: str, epsilon: float) -> Floats:
        """About how many labels a budget buys of each candidate, (ways, noises)."""
        most = self.pool * self._chances(aggregator).low_share
        labels = self.room(epsilon) / self._prices(aggregator) * (1 + 1e-12) + _ROUND
        return np.asarray(np.floor(np.minimum(labels, most)))

    def _prices(self, aggregator: str) -> Floats:
        """About what a label costs, (ways, noises): the vote, and a check of each query that it takes."""
        chances = self._chances(aggregator)
        if aggregator not in self._priced:
            if aggregator == "confident-gnmax":
                low = chances.low_share[:, 0]
                checks = [self._about(way, 1.0, 1, 0) for way in chances.ways] / low
                found = checks[:, None] + self._prices("gnmax")
            else:
                [way] = chances.ways
                each = [self._about(way, float(sigma) / _deviation(way), 1, 1) for sigma in chances.sigma2]
                found = np.array([each])
            self._priced[aggregator] = found
        return self._priced[aggregator]

    def _mechanism(self, way: Way, sigma: float) -> Mechanism:
        size: dict[str, Any] = {"num_teachers": self.n, "num_classes": self.num_classes}
        if way.threshold is not None and way.sigma1 is not None:
            return ConfidentGNMax(**size, threshold=way.threshold, sigma1=way.sigma1, sigma2=sigma)
        return LNMax(**size, scale=sigma) if way.aggregator == "lnmax" else GNMax(**size, sigma=sigma)

    def _stated(self, way: Way, sigma: float, asked: int, answered: int) -> float:
        """ε that a study with these caps guarantees; less where each vector of votes is checked."""
        cost = self._mechanism(way, sigma).cost(asked, answered, self.protection)
        return capped_cost_epsilon(cost, self.delta)

    def _about(self, way: Way, sigma: float, asked: int, answered: int) -> float:
        """About what so many queries and labels reveal, as a ρ."""
        return about_rho(self._mechanism(way, sigma).cost(asked, answered, self.protection))

    def _given(self, way: Way, sigma: float) -> tuple[float, float, float]:
        """The share answered with this noise, the share right of these, and coverage."""
        passed = np.ones(len(self.model.right))
        if way.threshold is not None and way.sigma1 is not None:
            passed = self.model.answered(way.threshold, way.sigma1, self.n)
        chance = self.model.right_chance(sigma * _deviation(way), self.n)
        right = float((passed * chance).sum() / passed.sum())
        return float(passed.mean()), right, float(passed.mean() ** 2 / (passed**2).mean())


def effective_labels(answered: Any, right: Any, coverage: Any, num_classes: int) -> Floats:
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
        low, high = (low, middle) if near_delta(middle, epsilon) > delta else (middle, high)
    return _NEAR * low * low / 2


def is_useful(labels: float, worth: float) -> bool:
    """Whether there is a label at all; a handful that are no better than chance serves nobody."""
    return labels >= 1 and worth >= _LEAST_WORTH


def _deviation(way: Way) -> float:
    """Standard deviation by a study's sigma2: Laplace noise is known by its scale."""
    return math.sqrt(2) if way.aggregator == "lnmax" else 1.0


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
