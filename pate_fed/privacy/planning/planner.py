"""The planner: noise, threshold and number of queries that serve the student best within a budget.

Everything here is decided before any vote: the budget is the filter's, data-independent, and the votes are
assumed or those of a past study. The objective is stated in `pate_fed.privacy.planning.search.OBJECTIVE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.mechanisms.noisy_max import GNMax
from pate_fed.privacy.planning.hospital_noise import SharesOffer, offer_with_shares
from pate_fed.privacy.planning.search import OBJECTIVE, CurvePoint, Offer, OfferSearch, better
from pate_fed.privacy.planning.vote_model import VoteModel, alike_votes, assumed_votes
from pate_fed.privacy.protection import RECORD, Protection

__all__ = ["Plan", "plan"]

# Fewer labels than this train no student, and the plan says so.
_ENOUGH = 100
_CLEAN = 0.95
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


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
    command: str | None
    hospital_noise: SharesOffer | None
    curve: tuple[CurvePoint, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        values = asdict(self)
        values["curve"], values["advice"] = list(values["curve"]), list(self.advice)
        return values

    def lines(self) -> list[str]:
        """The plan as text, one line each."""
        moved = Protection(unit=self.unit, adjacency=self.adjacency, votes_moved=self.votes_moved).text()
        text = [
            f"{counted(self.num_teachers, 'teacher')}, {self.num_classes} classes, at most "
            f"{counted(self.max_queries, 'query')}",
            f"budget ε={epsilon_text(self.epsilon)} at δ={delta_text(self.delta)}, data-independent, against "
            "all who see labels",
            f"protected: {moved}",
            f"votes: {self.votes}; their plurality is right {100 * self.plurality_right:.0f} % of the time",
            f"objective: {self.objective}",
        ]
        for name, offer in (("with a", self.with_threshold), ("without", self.without_threshold)):
            text.append(f"{name} threshold: {offer.line() if offer else 'not one useful label'}")
        if self.best:
            text += [f"best: {self.best.mechanism}", f"run it: {self.command}"]
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
    search = OfferSearch(model, num_teachers, max_queries, protection, delta)
    checked, plain = search.offers(epsilon)
    best = better(checked, plain)
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
        votes=model.origin,
        plurality_right=plurality,
        objective=OBJECTIVE,
        best=best,
        with_threshold=checked,
        without_threshold=plain,
        command=_command(best, num_hospitals or num_teachers, num_teachers, epsilon, delta, protection),
        hospital_noise=offer_with_shares(
            best, search, num_hospitals=num_hospitals or num_teachers, epsilon=epsilon
        ),
        curve=tuple(search.point(factor * epsilon) for factor in _CURVE),
        advice=tuple(
            _advice(best, search, num_hospitals, epsilon, votes if isinstance(votes, float) else None)
        ),
    )


def _command(
    best: Offer | None, hospitals: int, teachers: int, epsilon: float, delta: float, protection: Protection
) -> str | None:
    """The command that runs the best offer, and what a study.toml must say beside it."""
    if best is None:
        return None
    options: dict[str, Any] = {
        "num-clients": hospitals,
        "teachers-per-client": -(-teachers // hospitals),
        "aggregator": best.mechanism,
        "threshold": best.threshold,
        "sigma1": best.sigma1,
        "sigma2": best.sigma2,
        "labels": best.answered,
        "max-queries": best.asked,
        "epsilon": epsilon,
        "delta": delta_text(delta),
    }
    typed = " ".join(f"--{name} {value}" for name, value in options.items() if value is not None)
    unit = "" if protection.unit == "record" else 'unit = "hospital"'
    adjacency = "" if protection.adjacency == "replace-one" else 'adjacency = "add-or-remove-one"'
    keys = " and ".join(filter(None, (unit, adjacency)))
    return f"flower-simulation {typed}" + (
        f" --config study.toml (there {keys} in [privacy])" if keys else ""
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


def _advice(
    best: Offer | None,
    search: OfferSearch,
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
        yield f"the pool is the limit, not the budget: {counted(search.pool, 'query')} give {labels} labels"
        return
    who = f"{counted(num_hospitals, 'hospital')}, " if num_hospitals else ""
    yield (
        f"{who}{counted(num_teachers, 'teacher')}: ε={epsilon_text(epsilon)} buys "
        f"{counted(labels, 'label')}, too few to train a student on. Labels grow with the "
        "square of the number of teachers"
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
        f"buys {counted(more.labels, 'label')} at record level{right}"
    )
    if agreement is not None:
        clean = [_clean_labels(search, agreement, n, epsilon) for n in (num_teachers, 25 * num_teachers)]
        yield (
            f"labels of which {100 * _CLEAN:.0f} % are right, if every teacher were right on every input "
            f"with the chance {agreement:g}: {clean[0]} now, {clean[1]} with {25 * num_teachers} teachers"
        )


def _clean_labels(search: OfferSearch, agreement: float, num_teachers: int, epsilon: float) -> int:
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
