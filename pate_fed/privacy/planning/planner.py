"""The planner: noise, threshold and number of queries that serve the student best within a budget.

Everything here is decided before any vote: the budget is the filter's, data-independent, and the votes are
assumed or those of a past study. The objective is stated in `pate_fed.privacy.planning.search.OBJECTIVE`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.mechanisms.noise import SeededNoise
from pate_fed.privacy.mechanisms.own import KIND, OwnMechanism, make_aggregator, own_mechanism
from pate_fed.privacy.planning.hospital_noise import SharesOffer, SharesSearch, refused_shares
from pate_fed.privacy.planning.search import (
    OBJECTIVE,
    SPARE,
    CurvePoint,
    Offer,
    OfferSearch,
    effective_labels,
    is_useful,
)
from pate_fed.privacy.planning.vote_model import Pool, VoteModel
from pate_fed.privacy.protection import RECORD, Protection, Shares
from pate_fed.structure.parts import is_part, load_part, own_identity, part_identity

PLANNED = ("confident-gnmax", "gnmax", "lnmax")
"""Aggregators that can be planned."""

# Fewer labels than this train no student, and the plan says so.
_ENOUGH = 100
_NEARLY = 0.95  # of the most effective labels, by an estimate that errs by less
_POOL = Pool()
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study can afford. `best` is None where the budget does not buy one useful label.

    `offers` are the ways to spend the whole budget, by aggregator, without those that an estimate finds worth
    clearly less; `best` is worth most.
    `hospital_noise` spends it where the hospitals add the noise; where that cannot be planned
    `no_hospital_noise` says why. `command` and `hospital_noise_command` run them.
    """

    num_teachers: int
    num_classes: int
    epsilon: float
    delta: float
    unit: str
    adjacency: str
    votes_moved: int
    hospitals_per_patient: int
    max_queries: int
    votes: str
    plurality_right: float
    objective: str = OBJECTIVE
    best: Offer | None = None
    offers: tuple[Offer, ...] = ()
    command: str | None = None
    hospital_noise: SharesOffer | None = None
    hospital_noise_command: str | None = None
    no_hospital_noise: str | None = None
    curve: tuple[CurvePoint, ...] = ()
    advice: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        values = asdict(self)
        for name in ("offers", "curve", "advice"):
            values[name] = list(values[name])
        return values

    def lines(self) -> list[str]:
        """The plan as text, one line each."""
        moved = Protection(
            unit=self.unit,
            adjacency=self.adjacency,
            votes_moved=self.votes_moved,
            hospitals=self.hospitals_per_patient,
        ).text()
        text = [
            f"study      {counted(self.num_teachers, 'teacher')}, {self.num_classes} classes, at most "
            f"{self.max_queries:,} public inputs to ask about",
            f"budget     ε={epsilon_text(self.epsilon)} at δ={delta_text(self.delta)} against all who see "
            "labels, whatever the votes are",
            f"protected  {moved}",
            f"votes      {self.votes}",
            f"           their plurality is right {100 * self.plurality_right:.0f} % of the time",
            "",
            *self._table(),
            "",
        ]
        if self.best is None:
            text += ["not one useful label fits this budget", ""]
        else:
            text += [f"best: {self.best.mechanism}", f"run it: {self.command}", ""]
        text += [*self._hospital_lines(), "about what other budgets buy", *self._curve_lines()]
        return [*text, "", *self.advice] if self.advice else text

    def _table(self) -> list[str]:
        if not self.offers:
            return []
        wide = max(15, *(len(each.mechanism) for each in self.offers))
        found = [_row(" " * wide, "labels", "right", "worth", "queries", "ε", "noise in votes")]
        for each in self.offers:
            right = f"{100 * each.right_share:.0f} %"
            counts = f"{each.answered:,}", right, f"{each.effective_labels:,.0f}", f"{each.asked:,}"
            name = f"{each.mechanism:<{wide}}"
            found.append(_row(name, *counts, epsilon_text(each.epsilon), each.noise()))
        found += [
            "labels, queries: caps, which fix ε before the first query",
            "right: part of the labels that is expected to be right",
            *([SPARE] if any(each.threshold is not None for each in self.offers) else []),
            f"worth: {self.objective}",
        ]
        return found

    def _hospital_lines(self) -> list[str]:
        if self.no_hospital_noise:
            return [f"noise at the hospitals: not planned, as {self.no_hospital_noise}", ""]
        if self.hospital_noise is None:
            return []
        return [
            "noise at the hospitals instead: the budget then holds against the coordinator too",
            *self.hospital_noise.lines(),
            f"run it so: {self.hospital_noise_command}",
            "",
        ]

    def _curve_lines(self) -> Iterator[str]:
        yield f"{'ε':>8}  {'labels':>6}  {'right':>5}  {'worth':>6}  mechanism"
        for at in self.curve:
            right = "    -" if at.right_share is None else f"{100 * at.right_share:3.0f} %"
            rest = f"{at.labels:6d}  {right}  {at.effective_labels:6.0f}  {at.mechanism}"
            yield f"{epsilon_text(at.epsilon):>8}  {rest}"


def _row(name: str, labels: str, right: str, worth: str, queries: str, epsilon: str, noise: str) -> str:
    return f"{name} {labels:>7}{right:>7}{worth:>8}{queries:>9}{epsilon:>8}  {noise}"


def plan(
    *,
    num_teachers: int,
    num_classes: int,
    epsilon: float,
    delta: float,
    pool: Pool = _POOL,
    num_hospitals: int | None = None,
    protection: Protection = RECORD,
    aggregator: str | Any = None,
) -> Plan:
    """Search threshold, noise, labels and the cap on queries for the most effective labels within a budget.

    What is priced is what a study with these caps guarantees (`capped_cost_epsilon`; without masks a
    little less), and where the hospitals add the noise what it guarantees against the coordinator. `pool`
    has the public inputs and the votes on them. `num_hospitals` are as many as teachers, unless given.
    `aggregator` is confident-gnmax, gnmax or lnmax; None: the first two. One of your own, by its name or
    as an object, class or factory (`pate_fed.privacy.mechanisms.own`), is priced by the curve that it
    claims, with the parameters it has.

    Raises:
        InputError: a parameter out of range, votes with another number of classes, or an aggregator that
            cannot be planned.
    """
    check_count("num_teachers", num_teachers, least=1)
    check_count("num_classes", num_classes, least=2)
    check_epsilon(epsilon), check_delta(delta)
    _check_hospitals(num_hospitals, num_teachers, protection)
    model = pool.model(num_classes=num_classes, num_teachers=num_teachers)
    study = Plan(
        num_teachers=num_teachers,
        num_classes=num_classes,
        epsilon=epsilon,
        delta=delta,
        unit=protection.unit,
        adjacency=protection.adjacency,
        votes_moved=protection.votes_moved,
        hospitals_per_patient=protection.hospitals,
        max_queries=pool.max_queries,
        votes=model.origin,
        plurality_right=float((model.shares.argmax(axis=1) == model.right).mean()),
    )
    size = model, num_teachers, pool.max_queries, protection, delta
    if aggregator is None or (isinstance(aggregator, str) and not is_part(aggregator, "aggregator")):
        return _of_ours(study, OfferSearch(*size), _names(aggregator), num_hospitals)
    return _of_own(study, ClaimedSearch(aggregator, *size), num_hospitals or num_teachers)


def _of_ours(
    study: Plan,
    search: OfferSearch,
    names: tuple[str, ...],
    num_hospitals: int | None,
) -> Plan:
    """The plan with the offers of our aggregators."""
    epsilon, hospitals = study.epsilon, num_hospitals or search.n
    near = {name: search.point(epsilon, (name,)).effective_labels for name in names}
    tried = [name for name in names if near[name] >= _NEARLY * max(near.values())]  # exact prices take long
    offers = tuple(offer for name in tried if (offer := search.offer(name, epsilon)))
    best = max(offers, key=lambda offer: offer.effective_labels, default=None)
    refused, shared = refused_shares(search, hospitals, names[0]), None
    if refused is None:
        shared = SharesSearch(search, Shares.usual(hospitals)).best(epsilon, names)
    there = None if shared is None else _command(study, shared.offer, hospitals, at_hospitals=True)
    return replace(
        study,
        best=best,
        offers=offers,
        command=None if best is None else _command(study, best, hospitals),
        hospital_noise=shared,
        hospital_noise_command=there,
        no_hospital_noise=refused,
        curve=tuple(
            CurvePoint.of(best, epsilon) if factor == 1 and best else search.point(factor * epsilon, names)
            for factor in _CURVE
        ),
        advice=tuple(_advice(best, search, num_hospitals, epsilon)),
    )


def _of_own(study: Plan, search: ClaimedSearch, hospitals: int) -> Plan:
    """The plan with what a mechanism of the user's own gives with the noise that it has."""
    offer, claim = search.offer(study.epsilon), search.mechanism.claim
    buys = counted(offer.answered if offer else 0, "label")
    return replace(
        study,
        best=offer,
        offers=() if offer is None else (offer,),
        command=None if offer is None else _command(study, offer, hospitals, parameters=search.parameters),
        no_hospital_noise="its code releases from exact totals",
        curve=tuple(search.point(factor * study.epsilon) for factor in _CURVE),
        advice=(
            f"its noise is not searched: this is what its own parameters give, {buys}. Plan it again with "
            "others (--config with [aggregation.parameters], or an object in Python)",
            claim.assumption.warning,
        ),
    )


def _names(aggregator: str | None) -> tuple[str, ...]:
    """The aggregators that are planned."""
    if aggregator is None:
        return PLANNED[:2]
    if aggregator not in PLANNED:
        raise InputError(
            f"aggregator={aggregator!r}: {', '.join(PLANNED)} can be planned, or module:attribute of your "
            "own; what interactive-gnmax saves depends on a student that nobody knows yet, and its noise and "
            "caps are confident-gnmax's"
        )
    return (aggregator,)


def _command(
    study: Plan,
    offer: Offer,
    hospitals: int,
    *,
    at_hospitals: bool = False,
    parameters: Mapping[str, Any] | None = None,
) -> str:
    """The command that runs an offer, as it is typed, and what a study.toml must say beside it."""
    options: dict[str, Any] = {
        "num-clients": hospitals,
        "teachers-per-client": -(-study.num_teachers // hospitals),
        "aggregator": offer.mechanism,
        "threshold": offer.threshold,
        "sigma1": offer.sigma1,
        "sigma2": offer.sigma2,
        "labels": offer.answered,
        "max-queries": offer.asked,
        "epsilon": study.epsilon,
        "delta": delta_text(study.delta),
    }
    given = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in options.items()}
    typed = " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
    if at_hospitals:
        typed += " --secure-sum --noise-at hospitals"
    unit = "" if study.unit == "record" else f'unit = "{study.unit}"'
    at = study.hospitals_per_patient
    unit += f" and hospitals_per_patient = {at}" if at > 1 else ""
    adjacency = "" if study.adjacency == "replace-one" else 'adjacency = "add-or-remove-one"'
    keys = " and ".join(filter(None, (unit, adjacency)))
    own = ", ".join(f"{name} = {json.dumps(value)}" for name, value in (parameters or {}).items())
    places = (keys, "privacy"), (own, "aggregation.parameters")
    there = ", ".join(f"{held} in [{place}]" for held, place in places if held)
    return f"flower-simulation {typed}" + (f" --config study.toml (there {there})" if there else "")


def _check_hospitals(num_hospitals: int | None, num_teachers: int, protection: Protection) -> None:
    moved = protection.votes_moved
    if num_hospitals is not None:
        if check_count("num_hospitals", num_hospitals, least=1) > num_teachers:
            raise InputError(
                f"num_hospitals={num_hospitals}: must not be more than the {num_teachers} teachers, as every "
                "hospital has at least one"
            )
        if protection.hospitals > num_hospitals:
            found = f"hospitals_per_patient={protection.hospitals}"
            raise InputError(f"{found}: at most the {num_hospitals} hospitals is meant")
        if protection.unit == "hospital" and moved < (most := -(-num_teachers // num_hospitals)):
            raise InputError(
                f"votes_moved={moved}: a whole hospital is protected, and the largest of {num_hospitals} "
                f"with {num_teachers} teachers controls {most} votes"
            )
    if moved > num_teachers:
        raise InputError(f"votes_moved={moved}: must not be more than the {num_teachers} teachers")


def _advice(
    best: Offer | None,
    search: OfferSearch,
    num_hospitals: int | None,
    epsilon: float,
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
        classes = self.mechanism.num_classes
        worth = float(effective_labels(labels, self._right, self._coverage, classes))
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
            bytes_per_hospital=4 * asked * classes,
        )

    def point(self, epsilon: float) -> CurvePoint:
        """The same as a point of a plan's curve."""
        return CurvePoint.of(self.offer(epsilon), epsilon)

    def _affordable(self, epsilon: float) -> int:
        """The most queries of the pool that cost at most ε."""
        low, high = 0, self._pool + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._epsilon(middle) <= epsilon else (low, middle)
        return low

    def _epsilon(self, asked: int) -> float:
        cost = self.mechanism.cost(asked, asked, self.mechanism.protection)
        return capped_cost_epsilon(cost, self._delta)


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
