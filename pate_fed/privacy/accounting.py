"""A script's accountant, the filter that holds a budget, and profiles: what was released, what is left."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pate_fed.errors import BudgetError, InputError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.conversion import overhead, overhead_up
from pate_fed.privacy.bounds.cost import NOTHING, SEARCHED_ORDERS, Cost, OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, NoiseLaw, log_mass_gaussian_difference
from pate_fed.privacy.checks import Floats, check_count, check_delta, check_epsilon
from pate_fed.privacy.mechanisms.events import (
    Mechanism,
    PrivacyEvent,
    cost_of_dp_event,
    is_dp_event,
    to_dp_event,
    total_cost,
)
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.privacy.protection import RECORD, Protection

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


# The privacy filter: a budget fixed before the first query, asked before each batch, never passed.
#
# It works at one Rényi order that follows from ε and δ alone (Rényi filter: Feldman and Zrnic 2021, Theorem
# 4.3; Lécuyer 2021): queries may be chosen from past outputs, and the stop is a function of the public
# answered bits.


@dataclass(frozen=True, slots=True)
class BudgetFilter:
    """Rényi filter of a budget (ε, δ): how many more queries fit, whatever the votes.

    It knows parameters and public counts only, never votes, so that a stop reveals nothing. `reserved` is
    paid before the first query, for what a study releases besides its labels.

    Raises:
        InputError: ε or δ out of range, or a reserved cost that is not known at the budget's order.
    """

    epsilon: float
    delta: float
    protection: Protection = RECORD
    reserved: Cost = NOTHING

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        self.reserved.rdp(Fraction(self.order))

    @property
    def order(self) -> float:
        """Rényi order that the budget is kept at: the one where a Gaussian spend goes furthest."""
        # ε = α ρ + overhead(α): the order at which the budget affords the largest ρ.
        # ρ that a Gaussian may spend at each order
        room = (self.epsilon - overhead(SEARCHED_ORDERS, self.delta)) / SEARCHED_ORDERS
        return float(SEARCHED_ORDERS[int(np.argmax(room))])

    @property
    def room(self) -> Fraction:
        """RDP at `order` that the whole budget allows, in nats, rounded down; 0 where it allows nothing."""
        # exact, so that nothing is lost between many small charges
        return max(Fraction(0), Fraction(self.epsilon) - overhead_up(self.order, self.delta))

    def affordable(
        self,
        mechanism: Mechanism,
        *,
        events: Iterable[PrivacyEvent] = (),
        charged: Cost | None = None,
        queries: int,
        max_answers: int | None = None,
    ) -> int:
        """Number of the next `queries` that the mechanism may look at, if all of them are answered.

        `events` are all releases so far, `max_answers` the cap that the mechanism will be given. `charged`,
        in place of events, is what they add up to with `reserved` in it, as a ledger keeps it.

        Raises:
            InputError: negative counts, or an event with another protection than the budget's.
        """
        most = check_count("queries", queries)
        cap = most if max_answers is None else min(most, check_count("max_answers", max_answers))
        if mechanism.answers_all:
            most = cap
        if cap == 0:
            return 0
        order = Fraction(self.order)
        left = self.room - self._spent(events, order, charged)
        asked = mechanism.cost_asked(self.protection).rdp(order)
        both = asked + mechanism.cost_answered(self.protection).rdp(order)
        if asked < 0 or both <= 0:
            raise InputError(
                f"mechanism={mechanism.name!r} states a cost of {float(both)} a query: above 0 is meant"
            )
        # In the worst case queries are answered until the cap is reached, so both steps are reserved first.
        if left < cap * both:
            return max(0, left // both)
        # Beyond the cap only the check is paid; where there is none the mechanism stops with its last answer.
        further = (left - cap * both) // asked if asked else most - cap
        return min(most, cap + further)

    def share_spent(self, events: Iterable[PrivacyEvent] = (), *, charged: Cost | None = None) -> float:
        """Part of the budget for labels that is spent, 0 to 1; 1 where it allows nothing.

        `events` or `charged` as for `affordable`.

        Raises:
            InputError: an event with another protection than the budget's.
        """
        order = Fraction(self.order)
        room = self.room - self.reserved.rdp(order)
        spent = self._spent(events, order, charged) - self.reserved.rdp(order)
        return 1.0 if room <= 0 else min(1.0, float(spent / room))

    def holds(self, cost: Cost) -> bool:
        """Whether a total cost, `reserved` in it, is within the budget; exact, so any spend counts."""
        return cost.rdp(Fraction(self.order)) <= self.room

    def require(self, cost: Cost) -> None:
        """Refuse a total cost that passes the budget.

        Raises:
            BudgetError: it does, by however little.
        """
        if not self.holds(cost):
            raise BudgetError(
                f"the privacy budget ε={epsilon_text(self.epsilon)} at δ={delta_text(self.delta)} would be "
                "passed; nothing was released"
            )

    def _spent(self, events: Iterable[PrivacyEvent], order: Fraction, charged: Cost | None) -> Fraction:
        known = list(events)
        if charged is not None:
            if known:
                raise InputError("events and their sum were both given: one of them is meant")
            return charged.rdp(order)
        if any(event.protection != self.protection for event in known):
            raise InputError("an event protects another unit, adjacency or number of votes than the budget")
        return (self.reserved + total_cost(known)).rdp(order)


# ε of a whole study by privacy loss distributions (PLD), composed by Google's dp-accounting.
#
# A kind of outcome is stood for by the pair of laws that its noise gives where one unit's votes change: its
# hockey-stick divergences are at least those of every outcome, at every ε, so it dominates, and dominating
# pairs compose, also adaptively (Zhu, Dong and Wang 2022, arXiv 2106.08567, Theorem 10). `docs/proofs/
# profiles.md` has the argument. One query loses nothing by it; a composition of labels gives 2/π away,
# which `pate_fed.privacy.bounds.control` keeps. Figures are floats of a library, a second opinion beside
# what is stated, and not certified in their last digits.


_FINEST, _COARSEST = 2e-6, 1e-3  # nats of a cell of the losses' grid
_CELLS = 20  # of it in an outcome's own deviation
_WIDEST = 20_000.0  # votes of noise beyond which a table takes long
_LONGEST = 2_000_000  # cells
_REACH = {GAUSSIAN: 9.0, "laplace": 40.0}  # scales that hold all but 1e-17 of the noise


@lru_cache(maxsize=256)
def pld_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of at most `cost`, each outcome as often as it says at most, with the integer noise that runs.

    In any order, each chosen from all earlier outcomes. It holds for those who see labels, and where no check
    is in `cost` for those who see noisy totals.

    Raises:
        InputError: δ out of range, noise too wide for a table, parts that are no outcomes, or several votes
            of one unit, which may move from and to several classes.
    """
    delta = check_delta(delta)
    if cost != Cost(outcomes=cost.outcomes):
        raise InputError("only outcomes have a privacy loss distribution here; the rest is known by its RDP")
    cell = _cell([outcome.variance for outcome, _ in cost.outcomes])
    # Chances within e^(±2τ) of the stated noise's own, on both sides.
    near = float(sum((2 * times * outcome.distance for outcome, times in cost.outcomes), start=0))
    composed = _composed([(_outcome_pmf(outcome, cell), times) for outcome, times in cost.outcomes])
    return 0.0 if composed is None else _epsilon(composed, delta * math.exp(-near)) + 2 * near


@lru_cache(maxsize=256)
def totals_pld_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of the noisy totals behind the outcomes of `cost`, were their noise continuous Gaussian.

    Raises:
        InputError: δ out of range, or other noise.
    """
    delta = check_delta(delta)
    if any(outcome.kind != GAUSSIAN for outcome, _ in cost.outcomes) or cost.as_totals != Cost(
        rho=cost.as_totals.rho
    ):
        raise InputError("only totals with Gaussian noise have this privacy loss distribution")
    library = _library()[1]
    cell = _cell([outcome.variance for outcome, _ in cost.outcomes])
    parts = [
        (library.from_gaussian_mechanism(outcome.variance**-0.5, value_discretization_interval=cell), times)
        for outcome, times in cost.outcomes
    ]
    composed = _composed(parts)
    return 0.0 if composed is None else _epsilon(composed, delta)


def _cell(variances: list[float]) -> float:
    """Cells of the grid, in nats: some in the deviation of the finest outcome's loss."""
    least = min(variances, default=1.0)
    return min(max(math.sqrt(least) / _CELLS, _FINEST), _COARSEST)


def _composed(parts: list[tuple[Any, int]]) -> Any:
    composed = None
    for one, times in parts:
        if times:
            several = one.self_compose(times)
            composed = several if composed is None else composed.compose(several)
    return composed


def _epsilon(composed: Any, delta: float) -> float:
    # A little up: the sums are Fourier transforms of a library.
    return float(composed.get_epsilon_for_delta(delta)) * (1 + 1e-9)


def _atoms(outcome: OutcomeCost) -> tuple[Floats, Floats]:
    """The losses of the pair that dominates an outcome, rising, and their chances.

    Raises:
        InputError: see `pld_epsilon`.
    """
    check, k = outcome.of == "check", outcome.votes
    if max(outcome.scale, k) > _WIDEST:
        raise InputError(f"noise of {outcome.scale:g} votes: the table of its losses would be too long")
    if outcome.of == "sums":
        raise InputError("sums of features: noise on many entries is no table of one; its exact ε is stated")
    if k > 1 and not check:
        raise InputError("several votes of one unit may move from and to several classes: RDP bounds these")
    law, reach = NoiseLaw(outcome.kind, outcome.scale), math.ceil(_REACH[outcome.kind] * outcome.scale)
    if outcome.of in ("argmax", "counts"):  # one total loses what the other gains
        if outcome.kind == GAUSSIAN:
            difference = np.arange(-2 * reach - 2, 2 * reach + 1)
            chances = np.exp(log_mass_gaussian_difference(difference, outcome.scale))
            return (difference + 1) / outcome.scale**2, chances
        once = 0.5 * (1 + math.tanh(0.5 / outcome.scale))  # Pr[Z >= 0]
        chances = np.array([(1 - once) ** 2, 2 * once * (1 - once), once * once])
        return np.array([-2.0, 0.0, 2.0]) / outcome.scale, chances
    x = np.arange(-reach - k, reach + 1)
    chances = law.masses(reach + k)[: len(x)]
    if outcome.kind == GAUSSIAN:
        return k * (2 * x + k) / (2 * outcome.scale**2), chances
    return (np.abs(x + k) - np.abs(x)) / outcome.scale, chances


def _outcome_pmf(outcome: OutcomeCost, cell: float) -> Any:
    """The pair's losses on a grid of width `cell`, never below what they are (arXiv 2207.04380).

    A loss between two points is shared out so that the chances under both laws stay: the hockey-stick
    divergences are then the chords between the grid's.
    """
    pmf, library = _library()
    if outcome.of == "sums":  # near to continuous noise that was rounded (docs/proofs/class-sums.md)
        return library.from_gaussian_mechanism(outcome.scale, value_discretization_interval=cell)
    loss, chance = _atoms(outcome)
    if loss.max() > _LONGEST * cell:
        raise InputError(f"noise of {outcome.scale:g} votes: its losses are too large for a table")
    below = np.floor(loss / cell).astype(np.int64)
    rest = loss - below * cell
    # p = low + high and p e^-loss = low e^-(grid) + high e^-(grid + cell)
    # of a loss between two points, the share that goes up
    high = chance * np.clip(-np.expm1(-rest) / -math.expm1(-cell), 0.0, 1.0)
    first = int(below.min())
    grid = np.zeros(int(below.max()) - first + 2)
    np.add.at(grid, below - first, chance - high)
    np.add.at(grid, below - first + 1, high)
    beyond = max(0.0, 1 - float(grid.sum())) + 1e-18  # what no cell holds counts as an infinite loss
    losses = {first + place: float(mass) for place, mass in enumerate(grid) if mass > 0}
    made = pmf.create_pmf(losses, cell, beyond, pessimistic_estimate=True)
    return library.PrivacyLossDistribution(made)


def _library() -> tuple[Any, Any]:
    """Modules of dp-accounting, imported when they are needed.

    Raises:
        InputError: it is not installed.
    """
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise InputError(
            "privacy loss distributions need dp-accounting (pip install dp-accounting)"
        ) from error
    return pld_pmf, privacy_loss_distribution


Spent: TypeAlias = "Mechanism | PrivacyEvent | DpEvent | Iterable[PrivacyEvent | DpEvent]"

_MANY = 10**9  # queries, more than any budget affords


class Accountant:
    """Privacy that mechanisms spend on one data set, against all who see labels.

    A query is charged by its outcome, the class that wins or the check's bit. That bounds what is learnt by
    those who see labels, or a student of them. Whoever sees totals, noisy or not, is not covered; the cost of
    noisy totals is `to_dp_event`'s, and a study's coordinator has a charge of its own in the ledger.

    >>> from pate_fed.privacy import Accountant, ConfidentGNMax
    >>> study = ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40)
    >>> accountant = Accountant()
    >>> accountant.spend(study, queries=640, labels=283)
    >>> accountant
    Accountant(1 release, 640 queries, 283 labels)
    >>> round(accountant.epsilon(delta=1e-5), 3)
    2.007
    >>> accountant.remaining(study, epsilon=4, delta=1e-5)
    605
    """

    def __init__(self, *, protection: Protection = RECORD) -> None:
        """Nothing spent; `protection` says what neighbouring data sets differ in."""
        self._protection = protection
        self._spent: list[PrivacyEvent | Any] = []

    def spend(self, what: Spent, *, queries: int | None = None, labels: int | None = None) -> None:
        """Add a release, or several.

        `what` is a mechanism with the `queries` that it looked at and the `labels` that it gave (as many as
        queries where it answers all), an event such as `release.event`, a DpEvent of dp-accounting, or a list
        of events.

        Raises:
            InputError: counts that are missing, out of range or not asked for, another protection than the
                accountant's, or a DpEvent that has no Rényi bound here. Nothing was added then.
        """
        if isinstance(what, Mechanism):
            made: list[Any] = [self._event(what, queries, labels)]
        elif queries is not None or labels is not None:
            raise InputError("queries and labels go with a mechanism; an event knows its own")
        else:
            made = [what] if isinstance(what, PrivacyEvent) or is_dp_event(what) else list(_events(what))
        for event in made:
            self._cost(event)
        self._spent += made

    def epsilon(self, delta: float = 1e-5) -> float:
        """ε at δ of all that was spent, rounded up: the least of RDP and optimal control.

        It is a guarantee where the numbers of queries and labels were fixed beforehand, as caps: in any
        order, each query chosen from earlier labels, and with fewer in the end. Where they followed from the
        labels, as in a run that stops by its own count, it is a reading; fix caps, or ask `remaining` first.
        """
        return capped_cost_epsilon(self.cost, delta)

    def pld_epsilon(self, delta: float = 1e-5) -> float:
        """ε at δ by privacy loss distributions, a second opinion by dp-accounting; not below `epsilon`.

        Raises:
            InputError: δ outside (0, 1), no dp-accounting, or a cost without such a distribution.
        """
        return pld_epsilon(self.cost, delta)

    def remaining(
        self, mechanism: Mechanism, *, epsilon: float, delta: float = 1e-5, queries: int | None = None
    ) -> int:
        """How many more queries of `mechanism` fit into the budget (ε, δ), if all of them are answered.

        By the Rényi filter, so it may be asked again after each release: a stop that follows it keeps the
        budget however queries were chosen. `queries` is the most that is of interest.
        """
        known = [event for event in self._spent if isinstance(event, PrivacyEvent)]
        others = [self._cost(event) for event in self._spent if not isinstance(event, PrivacyEvent)]
        budget = BudgetFilter(epsilon, delta, self._protection, sum(others, NOTHING))
        return budget.affordable(mechanism, events=known, queries=_MANY if queries is None else queries)

    @property
    def cost(self) -> Cost:
        """The total cost, exact, in any order."""
        return sum((self._cost(event) for event in self._spent), NOTHING)

    @property
    def events(self) -> tuple[PrivacyEvent | Any, ...]:
        """What was spent, oldest first."""
        return tuple(self._spent)

    def to_dp_event(self) -> DpEvent:
        """All of it as one DpEvent of dp-accounting, which charges noisy totals: an upper bound.

        Raises:
            InputError: no dp-accounting, or a mechanism that has no such event.
        """
        return to_dp_event(self._spent)

    def __repr__(self) -> str:
        """Counts of what was spent."""
        known = [event for event in self._spent if isinstance(event, PrivacyEvent)]
        asked, answered = sum(each.asked for each in known), sum(each.answered for each in known)
        text = [counted(len(known), "release"), counted(asked, "query"), counted(answered, "label")]
        if len(known) < len(self._spent):
            text.append(counted(len(self._spent) - len(known), "DpEvent"))
        if any(isinstance(each.mechanism, OwnMechanism) for each in known):
            text.append("claimed by mechanisms of one's own, not proven")
        if not all(each.private for each in known):
            text.append("not private: noise for simulation")
        return f"Accountant({', '.join(text)})"

    def _event(self, mechanism: Mechanism, queries: int | None, labels: int | None) -> PrivacyEvent:
        if queries is None or (labels is None and not mechanism.answers_all):
            raise InputError(f"{mechanism}: say how many queries it looked at, and how many labels it gave")
        asked = check_count("queries", queries)
        answered = asked if labels is None else check_count("labels", labels)
        if answered > asked:
            raise InputError(f"labels={answered}: must not be more than the {asked} queries")
        if mechanism.answers_all:
            asked = answered
        return PrivacyEvent(
            mechanism=mechanism,
            asked=asked,
            answered=answered,
            protection=self._protection,
            noise="planned",
            private=True,
        )

    def _cost(self, event: Any) -> Cost:
        if not isinstance(event, PrivacyEvent):
            return cost_of_dp_event(event)
        if event.protection != self._protection:
            raise InputError(
                "an event protects another unit, adjacency or number of votes than the accountant"
            )
        return event.cost()


def _events(what: Any) -> Iterable[Any]:
    try:
        listed = list(what)
    except TypeError as error:
        raise InputError(f"{what!r}: a mechanism, an event or a list of events is meant") from error
    for event in listed:
        if not (isinstance(event, PrivacyEvent) or is_dp_event(event)):
            raise InputError(f"{event!r}: a list of events is meant; a mechanism is spent with its queries")
    return listed
