"""The planner: noise, threshold and number of queries that serve the student best within a budget.

Everything here is decided before any vote: the budget is the filter's, data-independent, and the votes are
assumed or those of a past study. The objective is stated in `OBJECTIVE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.orders import Floats
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.filter import BudgetFilter, epsilon_of
from pate_fed.privacy.mechanisms.events import RECORD, PrivacyEvent, Protection
from pate_fed.privacy.mechanisms.gnmax import ConfidentGNMax, GNMax
from pate_fed.privacy.planning.hospital_noise import SharesOffer, offer_with_shares
from pate_fed.privacy.planning.vote_model import VoteModel, alike_votes, assumed_votes

__all__ = ["OBJECTIVE", "CurvePoint", "Offer", "Plan", "plan"]

OBJECTIVE = (
    "effective labels = answered x (share right above chance)^4 x coverage; coverage is the part of the pool "
    "that the answered queries stand for (Kish), as a threshold answers easy inputs first"
)
# How much a wrong label hurts. 2 would be the loss of signal to a student that knows the noise; students that
# do not know it lose more: on Fashion-MNIST 2,200 labels 36 % wrong taught a GAN no more than 500 11 % wrong.
_EXPONENT = 4
# Fewer labels than this train no student, and the plan says so.
_ENOUGH = 100
_CLEAN = 0.95
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to spend the budget. `threshold` and `sigma1` are None without a threshold; all in votes.

    `asked` and `answered` are caps to put into the study; `answered` is what the votes promise for that many
    queries. `epsilon` is what the ledger will say if both are reached.
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
            f"{self.mechanism} {noise}: {_count(self.answered, 'label')} of {_count(self.asked, 'query')}, "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study can afford. `best` is None where the budget does not buy one useful label."""

    num_teachers: int
    num_classes: int
    epsilon: float
    delta: float
    unit: str
    adjacency: str
    votes_moved: int
    max_queries: int
    votes: str
    plurality_right: float
    objective: str
    best: Offer | None
    with_threshold: Offer | None
    without_threshold: Offer | None
    hospital_noise: SharesOffer | None
    curve: tuple[CurvePoint, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        values = asdict(self)
        values["curve"], values["advice"] = list(values["curve"]), list(self.advice)
        return values

    def lines(self) -> list[str]:
        """The plan in words, one line each."""
        moved = Protection(unit=self.unit, adjacency=self.adjacency, votes_moved=self.votes_moved).words()
        text = [
            f"{_count(self.num_teachers, 'teacher')}, {self.num_classes} classes, at most "
            f"{_count(self.max_queries, 'query')}",
            f"budget ε={self.epsilon:g} at δ={self.delta:g}, data-independent, against all who see labels",
            f"protected: {moved}",
            f"votes: {self.votes}; their plurality is right {100 * self.plurality_right:.0f} % of the time",
            f"objective: {self.objective}",
        ]
        for name, offer in (("with a", self.with_threshold), ("without", self.without_threshold)):
            text.append(f"{name} threshold: {offer.line() if offer else 'not one useful label'}")
        if self.best:
            text.append(f"best: {self.best.mechanism}")
        if self.hospital_noise:
            text += self.hospital_noise.lines()
        text += [f"{'ε':>8}  {'labels':>6}  {'right':>5}  {'worth':>6}  mechanism"]
        for at in self.curve:
            right = "    -" if at.right_share is None else f"{100 * at.right_share:4.0f}%"
            offer_text = f"{at.labels:6d}  {right}  {at.effective_labels:6.0f}  {at.mechanism}"
            text.append(f"{epsilon_text(at.epsilon):>8}  {offer_text}")
        return text + list(self.advice)


def plan(
    *,
    num_teachers: int,
    num_classes: int,
    epsilon: float,
    delta: float,
    votes: float | VoteModel = 0.85,
    max_queries: int = 10_000,
    num_hospitals: int | None = None,
    protection: Protection = RECORD,
) -> Plan:
    """Search noise, threshold and counts for the most effective labels that the budget filter will allow.

    `votes` is an assumed agreement (see `assumed_votes`) or the votes of a past study (`past_votes`).
    `max_queries` is the size of the public pool; `num_hospitals`, where given, turns into advice. Where the
    hospitals add the noise there are as many of them as teachers, unless `num_hospitals` is given.

    Raises:
        InputError: a parameter out of range, or votes with another number of classes.
    """
    check_count("num_teachers", num_teachers, least=1)
    check_count("num_classes", num_classes, least=2)
    check_count("max_queries", max_queries, least=1)
    check_epsilon(epsilon), check_delta(delta)
    _check_hospitals(num_hospitals, num_teachers, protection)
    if protection.votes_moved > num_teachers:
        raise InputError(
            f"votes_moved={protection.votes_moved}: must not be more than the {num_teachers} teachers"
        )
    model = votes if isinstance(votes, VoteModel) else assumed_votes(votes, num_classes, num_teachers)
    if model.shares.shape[1] != num_classes:
        raise InputError(f"the votes have {model.shares.shape[1]} classes, the study has {num_classes}")
    search = _Search(model, num_teachers, max_queries, protection, delta)
    checked, plain = search.offers(epsilon)
    best = _better(checked, plain)
    plurality = float((model.shares.argmax(axis=1) == model.right).mean())
    return Plan(
        num_teachers=num_teachers,
        num_classes=num_classes,
        epsilon=epsilon,
        delta=delta,
        unit=protection.unit,
        adjacency=protection.adjacency,
        votes_moved=protection.votes_moved,
        max_queries=max_queries,
        votes=model.words,
        plurality_right=plurality,
        objective=OBJECTIVE,
        best=best,
        with_threshold=checked,
        without_threshold=plain,
        hospital_noise=_with_shares(best, search, num_hospitals or num_teachers, epsilon),
        curve=tuple(search.point(factor * epsilon) for factor in _CURVE),
        advice=tuple(
            _advice(best, search, num_hospitals, epsilon, votes if isinstance(votes, float) else None)
        ),
    )


def _check_hospitals(num_hospitals: int | None, num_teachers: int, protection: Protection) -> None:
    if num_hospitals is None:
        return
    check_count("num_hospitals", num_hospitals, least=1)
    if num_hospitals > num_teachers:
        raise InputError(
            f"num_hospitals={num_hospitals}: must not be more than the {num_teachers} teachers, as every "
            "hospital has at least one"
        )
    most = -(-num_teachers // num_hospitals)
    if protection.unit == "hospital" and protection.votes_moved < most:
        raise InputError(
            f"votes_moved={protection.votes_moved}: a whole hospital is protected, and the largest of "
            f"{num_hospitals} with {num_teachers} teachers controls {most} votes"
        )


def _better(first: Offer | None, second: Offer | None) -> Offer | None:
    offers = [offer for offer in (first, second) if offer]
    return max(offers, key=lambda offer: offer.effective_labels, default=None)


def _with_shares(
    best: Offer | None, search: _Search, num_hospitals: int, epsilon: float
) -> SharesOffer | None:
    if best is None:
        return None
    return offer_with_shares(
        num_hospitals=num_hospitals,
        num_teachers=search.n,
        num_classes=search.num_classes,
        sigma2=best.sigma2,
        threshold=best.threshold,
        asked=best.asked,
        budget=BudgetFilter(epsilon, search.delta, search.protection),
        pool=search.pool,
    )


def _advice(
    best: Offer | None,
    search: _Search,
    num_hospitals: int | None,
    epsilon: float,
    agreement: float | None,
) -> Iterator[str]:
    """The honest answer for small federations."""
    num_teachers, protection = search.n, search.protection
    labels = best.answered if best else 0
    if labels >= _ENOUGH:
        return
    if best and best.asked >= search.pool:
        yield f"the pool is the limit, not the budget: {_count(search.pool, 'query')} give {labels} labels"
        return
    who = f"{_count(num_hospitals, 'hospital')}, " if num_hospitals else ""
    yield (
        f"{who}{_count(num_teachers, 'teacher')}: ε={epsilon:g} buys {_count(labels, 'label')}, too few to "
        "train a student on. Labels grow with the square of the number of teachers"
    )
    if protection.unit == "hospital" and protection.votes_moved > 1:
        yield (
            f"a whole hospital moves {protection.votes_moved} votes, which costs {protection.votes_moved**2} "
            "times what one record costs: more teachers a hospital do not help here, more hospitals do"
        )
        return
    more = search.at_record_level(25 * num_teachers).point(epsilon)
    who = f"{25 * num_teachers} teachers"
    if num_hospitals:
        who += f" ({25 * num_teachers // num_hospitals} a hospital)"
    right = "" if more.right_share is None else f", {100 * more.right_share:.0f} % right"
    yield (
        f"with {who} on smaller disjoint parts that agree as much, the same budget "
        f"buys {_count(more.labels, 'label')} at record level{right}"
    )
    if agreement is not None:
        clean = [_clean_labels(search, agreement, n, epsilon) for n in (num_teachers, 25 * num_teachers)]
        yield (
            f"labels of which {100 * _CLEAN:.0f} % are right, if every teacher were right on every input "
            f"with the chance {agreement:g}: {clean[0]} now, {clean[1]} with {25 * num_teachers} teachers"
        )


def _clean_labels(search: _Search, agreement: float, num_teachers: int, epsilon: float) -> int:
    """Labels without a threshold, as many as the budget buys with noise that leaves them mostly right."""
    model = alike_votes(agreement, search.num_classes, num_teachers)
    budget = BudgetFilter(epsilon, search.delta, RECORD)
    low, high = 0.01 * num_teachers, 2.0 * num_teachers
    for _ in range(12):  # more noise, fewer right
        middle = math.sqrt(low * high)
        right = model.right_chance(middle, num_teachers).mean()
        low, high = (middle, high) if right >= _CLEAN else (low, middle)
    mechanism = GNMax(num_teachers=num_teachers, num_classes=search.num_classes, sigma=low)
    return budget.affordable(mechanism, queries=search.pool)


class _Search:
    """All candidates' chances, computed once and used for every ε."""

    def __init__(
        self, model: VoteModel, num_teachers: int, pool: int, protection: Protection, delta: float
    ) -> None:
        self.model, self.n, self.pool = model, num_teachers, pool
        self.protection, self.delta = protection, delta
        self.num_classes = model.shares.shape[1]
        self.sigma2 = num_teachers * np.geomspace(0.01, 1.0, 33)
        self.right = np.stack([model.right_chance(sigma, num_teachers) for sigma in self.sigma2], axis=1)
        self.checks = [
            (num_teachers * level, num_teachers * width)
            for level in np.arange(0.3, 1.01, 0.1)
            for width in np.geomspace(0.1, 2.0, 12)
        ]
        self.passed = np.stack([model.answered(*check, num_teachers) for check in self.checks])

    def at_record_level(self, num_teachers: int) -> _Search:
        """The same study with more teachers that agree as much, where one record moves one vote."""
        return _Search(self.model, num_teachers, self.pool, RECORD, self.delta)

    def point(self, epsilon: float) -> CurvePoint:
        """The best offer for another ε."""
        best = _better(*self.offers(epsilon))
        return CurvePoint(
            epsilon=epsilon,
            labels=best.answered if best else 0,
            right_share=best.right_share if best else None,
            effective_labels=best.effective_labels if best else 0.0,
            mechanism=best.mechanism if best else "none",
        )

    def offers(self, epsilon: float) -> tuple[Offer | None, Offer | None]:
        """The best with and the best without a threshold."""
        budget = BudgetFilter(epsilon, self.delta, self.protection)
        rho = float(budget.room) / budget.order
        return self._best_checked(rho, budget), self._best_plain(rho, budget)

    def _best_plain(self, rho: float, budget: BudgetFilter) -> Offer | None:
        unit = self.protection.l2_squared / 2
        answered = np.floor(np.minimum(rho * self.sigma2**2 / unit * (1 + 1e-12), self.pool))
        worth = _effective(answered, self.right.mean(axis=0), 1.0, self.num_classes)
        count = int(answered[int(np.argmax(worth))])
        if count < 1:
            return None
        sigma2 = _up(math.sqrt(unit * count / rho))
        mechanism = GNMax(num_teachers=self.n, num_classes=self.num_classes, sigma=sigma2)
        return self._offer(mechanism, np.ones(len(self.right)), count, count, budget)

    def _best_checked(self, rho: float, budget: BudgetFilter) -> Offer | None:
        per_answer, per_check = self.protection.l2_squared / 2, self.protection.top**2 / 2
        share = self.passed.mean(axis=1)
        sigma1 = np.array([check[1] for check in self.checks])
        price = per_check / sigma1[:, None] ** 2 + share[:, None] * per_answer / self.sigma2**2
        asked = np.floor(np.minimum(rho / price, self.pool))
        answered = np.floor(asked * share[:, None])
        right = self.passed @ self.right / np.maximum(self.passed.sum(axis=1), 1e-300)[:, None]
        coverage = share**2 / np.maximum((self.passed**2).mean(axis=1), 1e-300)
        worth = _effective(answered, right, coverage[:, None], self.num_classes)
        row, column = np.unravel_index(int(np.argmax(worth)), worth.shape)
        count, queries = int(answered[row, column]), int(asked[row, column])
        if count < 1:
            return None
        threshold, width = min(math.ceil(self.checks[row][0]), self.n), _up(self.checks[row][1])
        left = rho - queries * per_check / width**2
        mechanism = ConfidentGNMax(
            num_teachers=self.n,
            num_classes=self.num_classes,
            threshold=threshold,
            sigma1=width,
            sigma2=_up(math.sqrt(per_answer * count / left)),
        )
        passed = self.model.answered(threshold, width, self.n)
        return self._offer(mechanism, passed, queries, count, budget)

    def _offer(
        self,
        mechanism: GNMax | ConfidentGNMax,
        passed: Floats,
        asked: int,
        answered: int,
        budget: BudgetFilter,
    ) -> Offer | None:
        """The offer with the noise that is really taken; None where the filter would not allow it."""
        if budget.affordable(mechanism, queries=asked, max_answers=answered) < asked:
            return None
        event = PrivacyEvent(
            mechanism=mechanism,
            asked=asked,
            answered=answered,
            protection=self.protection,
            noise="planned",
            private=False,
        )
        sigma2 = mechanism.sigma if isinstance(mechanism, GNMax) else mechanism.sigma2
        right = float((passed * self.model.right_chance(sigma2, self.n)).sum() / passed.sum())
        coverage = float(passed.mean() ** 2 / (passed**2).mean())
        confident = mechanism if isinstance(mechanism, ConfidentGNMax) else None
        worth = float(_effective(np.array(float(answered)), np.array(right), coverage, self.num_classes))
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
            epsilon=epsilon_of(event.cost(), self.delta),
            bytes_per_hospital=4 * asked * self.num_classes,
        )


def _effective(answered: Floats, right: Floats, coverage: Any, num_classes: int) -> Floats:
    """See `OBJECTIVE`."""
    above = np.maximum(right - (1 - right) / (num_classes - 1), 0.0)
    worth: Floats = answered * above**_EXPONENT * coverage
    return worth


def _count(number: int, thing: str) -> str:
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{number} {thing if number == 1 else plural}"


def _up(sigma: float) -> float:
    """Rounded up to three digits, so that what is shown is what is spent."""
    step = 10.0 ** (math.floor(math.log10(sigma)) - 2)
    return float(f"{math.ceil(sigma / step * (1 - 1e-12)) * step:.6g}")
