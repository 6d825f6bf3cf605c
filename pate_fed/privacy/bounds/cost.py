"""Data-independent RDP of a release, ours or claimed by code of the user's own, and the ε that follows.

Costs are kept as exact fractions and every logarithm is rounded against the user: nothing is lost when a
small cost is added to a large one, and a total does not depend on the order of its parts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon, moved_count_epsilon, overhead, overhead_up
from pate_fed.privacy.bounds.hockey_stick import (
    WIDEST,
    argmax_epsilon,
    argmax_rdp,
    bit_delta,
    bit_epsilon,
    bit_rdp,
    moved_rdp,
)
from pate_fed.privacy.bounds.intervals import Interval, fraction_up, plus_up, times_exp_down
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE
from pate_fed.privacy.checks import Floats, check_delta
from pate_fed.privacy.protection import MECHANISM, Assumption
from pate_fed.structure import check, setting
from pate_fed.structure.parts import PartIdentity

# What a mechanism of the user's own claims: its code, its parameters, and a table of RDP at fixed orders.
#
# Between two orders the chord of (α - 1) RDP(α) is taken. That function is convex in α for every pair of
# laws (van Erven and Harremoës 2014, Corollary 2), so where the table bounds it at both ends the chord
# bounds it in between. Below the first order its value is taken, as RDP grows with the order; beyond the
# last nothing is known. All of it holds if the table does, which is the mechanism's own word.


Plain = bool | int | float | str
Parameters = tuple[tuple[str, Plain], ...]

LEAST_ORDERS = 30  # to an order of 1.3: fewer would be worth nothing
_NEAR = 1e-9
_CURVE_STEPS = 10.24  # orders for each factor e of α - 1: every second one at which a total is evaluated

CLAIMED_ORDERS: tuple[float, ...] = tuple(1.0 + math.exp(step / _CURVE_STEPS) for step in range(-40, 94))
"""Orders from 1.02 to 8,800 at which a mechanism says its RDP."""

_EXACT = tuple(map(Fraction, CLAIMED_ORDERS))


@dataclass(frozen=True, slots=True, order=True, repr=False)
class ClaimedCurve:
    """RDP of one query in nats at the first so many of `CLAIMED_ORDERS`, finite and above 0.

    `pure` is its ε at δ = 0, ∞ where none is claimed.
    """

    values: tuple[float, ...]
    pure: float = math.inf

    def __repr__(self) -> str:
        """How far it reaches: the numbers are many."""
        return f"ClaimedCurve({len(self.values)} orders, {self.values[-1]:.4g} nats at the last)"

    @property
    def most_order(self) -> Fraction:
        """The last order at which it is known."""
        return _EXACT[len(self.values) - 1]

    def rdp(self, order: Fraction) -> Fraction:
        """RDP at `order` > 1, up to `most_order`, in nats; exact."""
        right = bisect_left(_EXACT, order)
        if right == 0 or _EXACT[right] == order:
            return Fraction(self.values[right])
        low, high = _EXACT[right - 1], _EXACT[right]
        first, second = ((_EXACT[at] - 1) * Fraction(self.values[at]) for at in (right - 1, right))
        return (first + (second - first) * (order - low) / (high - low)) / (order - 1)

    def about(self, orders: Floats) -> Floats:
        """About the curve, at once. Shapes: (orders,) to the same."""
        found: Floats = np.interp(orders, CLAIMED_ORDERS[: len(self.values)], self.values)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Claim:
    """A mechanism of the user's own, as terms and ledgers state it: its code, parameters and curve.

    `rdp` is RDP of one query in nats at the first of `CLAIMED_ORDERS`, for neighbours of which one `unit`
    sways `votes_moved` votes (`Protection`), `pure` its ε at δ = 0. Where `noise` names a law, of `scale`
    votes, the class with the largest total under such noise is what is released, and that is charged.

    Raises:
        InputError: a curve with numbers that are not finite, not above 0, or that fall.
    """

    part: PartIdentity
    parameters: Parameters = setting((), most=200)  # noqa: RUF009
    unit: str = setting(most=20)
    adjacency: str = setting(most=30)
    votes_moved: int = setting(low=1, high=10**9)
    rdp: tuple[float, ...]
    pure: float | None = setting(None, low=2**-50, high=2.0**50)
    noise: str = setting("", choices=("", GAUSSIAN, LAPLACE))
    scale: float = setting(0.0, low=0)

    def __post_init__(self) -> None:
        check(self)
        check_curve(self.rdp, f"aggregator {self.part.name!r}")
        if bool(self.noise) != (self.scale > 0):
            raise InputError(f"aggregator {self.part.name!r}: a law of noise and its scale go together")

    def __repr__(self) -> str:
        """Name and parameters: the curve is long."""
        own = "".join(f", {name}={value!r}" for name, value in self.parameters)
        return f"Claim({self.part.name}{own}, RDP at {len(self.rdp)} orders)"

    @property
    def assumption(self) -> Assumption:
        """On whose word every ε rests then."""
        return Assumption(kind=MECHANISM, part=self.part)


def check_curve(rdp: tuple[float, ...], what: str) -> None:
    """Refuse what can be no curve of a mechanism that answers; `what` names it in errors.

    Raises:
        InputError: too few orders, numbers that are not finite and above 0, or that fall.
    """
    if not LEAST_ORDERS <= len(rdp) <= len(CLAIMED_ORDERS):
        raise InputError(
            f"{what}: claims an RDP at {len(rdp)} orders; {LEAST_ORDERS} to {len(CLAIMED_ORDERS)} from 1.02 "
            "on are meant, as nothing else bounds ε"
        )
    for order, value in zip(CLAIMED_ORDERS, rdp, strict=False):
        if not 0 < value < math.inf:
            raise InputError(
                f"{what}: claims an RDP of {value!r} at order {order:.4g}; what answers by votes costs "
                "something: nats above 0 are meant"
            )
    for before, after, order in zip(rdp, rdp[1:], CLAIMED_ORDERS[1:], strict=False):
        if after < before * (1 - _NEAR):
            raise InputError(f"{what}: its RDP falls at order {order:.4g}; Rényi divergence never does")


T = TypeVar("T")
Counts = tuple[tuple[T, int], ...]

# α - 1 of the orders that are searched. Any order gives a valid ε; the best lies near 1 + sqrt(ln(1/δ)/ρ).
SEARCHED_ORDERS = 1.0 + np.geomspace(1e-3, 1e7, 801)

_WHOLE = ("counts", "sums")  # whose totals are released themselves
ROUNDED = 2  # variance of the random rounding of continuous noise (docs/proofs/class-sums.md, theorem 2)
_SLACK = Fraction(3, 10**17)  # of ln of a ratio, for each entry: 2η/(1 - η), η = 2 exp(-4π²) (1 + 1e-30)

# What an outcome reveals of its noisy totals, about: 2/π and the third outcome's share, and how both grow
# with the order. It only chooses an order to ask at; `bounds.outcomes` has the figure that is charged.
_SHARE = {GAUSSIAN: 0.64, LAPLACE: 1 / 3}
_GROWTH = 0.022
_STEPS = 20.48  # orders to ask at for each factor e of α - 1, so that costs of alike sizes share them


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class OutcomeCost:
    """RDP of one released outcome, known by its noise alone and evaluated at an order when it is needed.

    `of` is "argmax" (the winning class where votes move from class to class), "one-total" (the winning class
    where votes vanish), "check" (the bit of a threshold), "counts" (noisy counts of which one label moves) or
    "sums" (noisy sums that a unit moves by a length of 1): the totals themselves, whose exact ε is known
    where nothing else is released. `kind` and `scale` are the noise's, `votes` those that a unit sways.
    `totals` is what the noisy totals cost, ρ of Gaussian and ε of Laplace noise, and an upper bound.
    `distance` bounds ln of the ratio of the law of one total's noise to the stated one, of sums that of all
    of them together.
    """

    of: str
    kind: str
    scale: float
    votes: int
    totals: Fraction
    distance: Fraction = Fraction(0)

    def as_totals(self, times: int) -> Cost:
        """The cost of the noisy totals, of which the outcome is a function."""
        if self.kind == LAPLACE:
            return Cost(pure=((self.totals, times),))
        return Cost(rho=self.totals * times)

    @property
    def variance(self) -> float:
        """V with RDP of at most α v/2 at every order α, rounded up."""
        most = self.totals * self.totals if self.kind == LAPLACE else 2 * self.totals
        return math.nextafter(float(most), math.inf)

    def rdp(self, order: Fraction) -> Fraction:
        """Rényi divergence bound at `order` > 1, in nats, rounded up."""
        at = float(order)
        if Fraction(at) < order:  # divergences grow with the order
            at = math.nextafter(at, math.inf)
        totals = self.as_totals(1).rdp(order)
        if self.of in _WHOLE:
            return totals
        if self.of == "check":
            found = bit_rdp(self.scale, at, shift=self.votes, kind=self.kind)
        else:
            # Both hold: all votes at once (Lemma 8), and one after the other (`moved_rdp`).
            found = min(self._moved(at, self.votes), moved_rdp(self._moved, at, self.votes))
        return min(Fraction(found), totals) if found < math.inf else totals

    def _moved(self, order: float, votes: int = 1) -> float:
        """RDP where so many votes move, or vanish, at once."""
        law = argmax_rdp if self.of == "argmax" else bit_rdp
        found = law(self.scale, order, shift=votes, kind=self.kind)
        if self.distance:
            # The noise of two totals on both sides: a factor e^(2τ(2α - 1)) of the moment.
            at = Fraction(order)
            found = plus_up(found, 2 * self.distance * (2 * at - 1) / (at - 1))
        return found

    def alone(self, delta: float) -> float:
        """ε at δ where it is the only release, rounded up; ∞ where RDP has to do."""
        if self.of == "sums":
            return _gaussian_dp(((self, 1),), delta)
        if self.votes > 1 and self.of != "check":
            return math.inf  # they may move from and to several classes
        # Two totals, on both sides: chances within e^(±2τ) of the stated noise's own.
        delta = times_exp_down(delta, -2 * self.distance) if self.distance else delta
        if not delta:
            return math.inf
        if self.of == "counts":
            found = moved_count_epsilon(self.scale, delta)
        elif self.of == "argmax":
            found = argmax_epsilon(self.scale, delta, kind=self.kind)
        else:
            found = bit_epsilon(self.scale, delta, shift=self.votes, kind=self.kind)
        return plus_up(found, 4 * self.distance)

    def delta(self) -> float:
        """δ at ε = 0 of a check, 1 of anything else."""
        return bit_delta(self.scale, 0.0, shift=self.votes, kind=self.kind) if self.of == "check" else 1.0

    def about(self, orders: Floats) -> Floats:
        """About the curve, at once. Shapes: (orders,) to the same."""
        totals = float(self.totals)
        if self.kind == LAPLACE:
            return np.minimum(totals, totals * totals * orders / 2 * _SHARE[LAPLACE])
        share = 1.0 if self.of in _WHOLE else about_share(self.scale, orders * self.votes)
        found: Floats = totals * orders * share
        return found


def noisy_sums(
    *, squared: int, variance: Fraction, entries: int, distance: Fraction = Fraction(0)
) -> OutcomeCost:
    """Cost of whole numbers that are released with noise of this `variance`, above 2, on each of `entries`.

    `squared` is the squared L2 sensitivity, in the numbers' own units. `distance` bounds ln of the ratio of
    one entry's noise to the discrete Gaussian, where it is a sum of hospitals' shares. Beside releases of
    other kinds it is ρ = squared/(2σ²) (arXiv 2004.00010, Theorem 14), and a quarter of the distance of all
    entries (arXiv 2102.06387, Proposition 14).
    """
    return OutcomeCost(
        of="sums",
        kind=GAUSSIAN,
        scale=Interval.of((variance - ROUNDED) / squared).root().down(),  # 1/μ
        votes=1,
        totals=Fraction(squared) / (2 * variance) + distance * entries / 4,
        distance=(_SLACK + distance) * entries,
    )


def about_share(sigma: Floats | float, order: Floats | float) -> Floats:
    """About what the winner costs of its Gaussian totals, at once; `order` times the votes moved."""
    at = np.minimum(np.asarray(order) / sigma, 1e3)
    share: Floats = np.where(sigma > WIDEST[GAUSSIAN], 1.0, _SHARE[GAUSSIAN] + _GROWTH * at * at)
    return np.minimum(share, 1.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Data-independent RDP curve of a release.

    `rho` is the ρ of Gaussian parts (ρ-zCDP: RDP `a * rho` at every order a); `pure` lists pure-DP parts as
    (ε, times), each worth min(ε, ε² a / 2) at order a (Bun and Steinke 2016, Proposition 3.3; P17, Theorem
    2). `outcomes` lists what is charged by its outcome, each with how often. `flat` is RDP at every order up
    to `most_order` (RDP grows with the order, so one order bounds those below it); beyond, nothing is known.
    None: there is no such limit. `epsilon` and `delta` are of parts that are known as (ε, δ)-DP only; they
    add up by themselves (basic composition), at δ = 0 too. `claimed` lists what mechanisms that are none of
    ours say of a query, each with how often.
    """

    rho: Fraction = Fraction(0)
    pure: tuple[tuple[Fraction, int], ...] = ()
    flat: Fraction = Fraction(0)
    most_order: Fraction | None = None
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    outcomes: tuple[tuple[OutcomeCost, int], ...] = ()
    claimed: tuple[tuple[ClaimedCurve, int], ...] = ()

    def __add__(self, other: Cost) -> Cost:
        limits = [cost.most_order for cost in (self, other) if cost.most_order is not None]
        return Cost(
            self.rho + other.rho,
            _counted(self.pure, other.pure),
            self.flat + other.flat,
            min(limits, default=None),
            self.epsilon + other.epsilon,
            self.delta + other.delta,
            _counted(self.outcomes, other.outcomes),
            _counted(self.claimed, other.claimed),
        )

    def __mul__(self, times: int) -> Cost:
        if times == 0:
            return Cost()
        pure = tuple((epsilon, count * times) for epsilon, count in self.pure)
        pair = self.epsilon * times, self.delta * times
        outcomes = tuple((outcome, count * times) for outcome, count in self.outcomes)
        claimed = tuple((curve, count * times) for curve, count in self.claimed)
        return Cost(self.rho * times, pure, self.flat * times, self.most_order, *pair, outcomes, claimed)

    @classmethod
    def of_claim(cls, curve: ClaimedCurve) -> Cost:
        """Cost of one query of a mechanism that claims this curve."""
        return cls(claimed=((curve, 1),), most_order=curve.most_order)

    @property
    def is_pure(self) -> bool:
        """Whether it is that of mechanisms alone which claim to be ε-DP."""
        alone = self == Cost(claimed=self.claimed, most_order=self.most_order)
        return alone and all(curve.pure < math.inf for curve, _ in self.claimed)

    @property
    def as_totals(self) -> Cost:
        """The cost with every outcome charged as the noisy totals that it came from."""
        totals = (outcome.as_totals(times) for outcome, times in self.outcomes)
        return sum(totals, replace(self, outcomes=()))

    def rdp(self, order: Fraction) -> Fraction:
        """Rényi divergence bound at `order` > 1, in nats; exact, but for outcomes, which are rounded up.

        Raises:
            InputError: an order above `most_order`, or parts that are known as (ε, δ)-DP only.
        """
        if self.epsilon:
            raise InputError("a cost that is known as (ε, δ)-DP only has no Rényi divergence")
        if self.most_order is not None and order > self.most_order:
            raise InputError(f"order={float(order):g}: this cost is known up to {float(self.most_order):g}")
        # Bun and Steinke 2016, Proposition 3.3
        laplace = (count * min(epsilon, epsilon * epsilon * order / 2) for epsilon, count in self.pure)
        outcomes = (times * outcome.rdp(order) for outcome, times in self.outcomes)
        claimed = (times * curve.rdp(order) for curve, times in self.claimed)
        parts = (*laplace, *outcomes, *claimed)
        return order * self.rho + self.flat + sum(parts, Fraction(0))


def _counted(one: Counts[T], other: Counts[T]) -> Counts[T]:
    """Both lists as one: each part once, with how often it is in either, in an order of their own."""
    times: dict[T, int] = {}
    for part, count in (*one, *other):
        times[part] = times.get(part, 0) + count
    return tuple(sorted(times.items()))


NOTHING = Cost()


def in_parallel(one: Cost, other: Cost) -> Cost:
    """Cost of two groups of noisy sums, where what a unit adds at a hospital is in one of them alone.

    Whoever is in the one before and in the other after moves each by at most √½ of what a unit in one group
    moves that one, so the larger group's cost is that of both (docs/proofs/class-sums.md, theorem 7). How far
    noise is from continuous adds up. Costs of anything else add up.
    """
    sums = [each.of == "sums" and each.scale > 0 for each, _ in (*one.outcomes, *other.outcomes)]
    if not all(sums) or not all(cost == Cost(outcomes=cost.outcomes) != NOTHING for cost in (one, other)):
        return one + other
    squared = max(_squared_mu(one.outcomes), _squared_mu(other.outcomes))
    distance = _distance(one.outcomes) + _distance(other.outcomes)
    both = OutcomeCost(
        of="sums",
        kind=GAUSSIAN,
        scale=Interval.of(1 / squared).root().down(),
        votes=1,
        totals=max(one.as_totals.rho, other.as_totals.rho) + distance,
        distance=distance,
    )
    return Cost(outcomes=((both, 1),))


def _squared_mu(outcomes: Counts[OutcomeCost]) -> Fraction:
    return sum((times / Fraction(outcome.scale) ** 2 for outcome, times in outcomes), Fraction(0))


def _distance(outcomes: Counts[OutcomeCost]) -> Fraction:
    return sum((outcome.distance * times for outcome, times in outcomes), Fraction(0))


def epsilon_of(cost: Cost, delta: float, *, orders: Iterable[float] = ()) -> float:
    """ε at δ of a cost, rounded up: the improved conversion at the best order.

    ε = rdp(α) + ln(1 - 1/α) - ln(δ α)/(α - 1), at least 0 (arXiv 2004.00010, Proposition 12). `orders` are
    tried besides the ones that the search finds. Parts that are known as (ε, δ)-DP only take their δ first.

    Raises:
        InputError: δ outside (0, 1), but for 0 where no part is known by its RDP only.
    """
    rest = replace(cost, epsilon=Fraction(0), delta=Fraction(0))
    if delta != 0 or rest != Cost():
        delta = check_delta(delta)
    # Basic composition: (ε, δ)-parts take their δ, the others convert at what is left.
    left = Fraction(delta) - cost.delta
    if left < 0:
        return math.inf
    if rest == Cost():
        return fraction_up(cost.epsilon)
    if cost.delta:
        delta = math.nextafter(float(left), 0)  # rounded down
        if delta <= 0:
            return math.inf
    limit = math.inf if cost.most_order is None else cost.most_order
    further = (_epsilon_at(rest, delta, order) for order in orders if order <= limit)
    # What a mechanism of somebody's own claims is asked for every time.
    searched = _searched_epsilon.__wrapped__ if rest.claimed else _searched_epsilon
    found = max(0.0, min((searched(rest, delta), *further)))
    if rest.is_pure:  # which adds up, whatever was chosen
        pure = sum((Fraction(curve.pure) * times for curve, times in rest.claimed), Fraction(0))
        found = min(found, fraction_up(pure))
    return fraction_up(cost.epsilon + Fraction(found)) if cost.epsilon and found < math.inf else found


@lru_cache(maxsize=4096)  # a ledger's reader, a hospital and a planner ask for the same again and again
def _searched_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of a cost without (ε, δ)-parts: at the best order that a search finds, or by its own law."""
    found = _epsilon_at(cost, delta, _best_order(cost, delta))
    if cost.outcomes:  # at once, and at any order
        totals = cost.as_totals
        found = min(found, _epsilon_at(totals, delta, _best_order(totals, delta)))
        if cost == Cost(outcomes=cost.outcomes):
            found = min(found, _at_most_once(cost.outcomes, delta), _gaussian_dp(cost.outcomes, delta))
    return found


def _at_most_once(outcomes: tuple[tuple[OutcomeCost, int], ...], delta: float) -> float:
    """ε at δ of one outcome by its own law, after checks that take little of δ at ε = 0; ∞ of others."""
    if any(times > 1 for _, times in outcomes):
        return math.inf
    # the one that reveals most is stated by its own law; checks before it take of δ
    *others, main = sorted((outcome for outcome, _ in outcomes), key=lambda each: each.variance)
    # Basic composition, also of a query that is chosen from the check's bit.
    left = delta * (1 - 1e-12) - math.fsum(other.delta() for other in others) if others else delta
    return main.alone(left) if left > 0 else math.inf


def _gaussian_dp(outcomes: Counts[OutcomeCost], delta: float) -> float:
    """ε at δ of noisy sums, any number one after the other, rounded up; ∞ where anything else is among them.

    Each is a μ-Gaussian DP mechanism up to a factor e^(±τ) of chances (docs/proofs/class-sums.md, theorems 2
    to 4), and μ² and τ add up, also where a release was chosen by those before (Dong, Roth and Su 2022,
    Corollary 3.3).
    """
    if any(outcome.of != "sums" or not outcome.scale for outcome, _ in outcomes):
        return math.inf
    near, mu = _distance(outcomes), Interval.of(_squared_mu(outcomes)).root().up()
    least = times_exp_down(delta, -near)
    if not (mu < math.inf and least > 0):
        return math.inf
    return plus_up(gaussian_dp_epsilon(mu, least), 2 * near)


def _epsilon_at(cost: Cost, delta: float, order: float) -> float:
    return fraction_up(cost.rdp(Fraction(order)) + overhead_up(order, delta))


def _float(exact: Fraction) -> float:
    """The nearest float, infinity where it is too large for one."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf


@lru_cache(maxsize=1024)
def _searched(low: float, high: float, delta: float) -> tuple[Floats, Floats]:
    """Orders from `low` to `high`, all that are searched where both are 0, and what conversion adds there."""
    orders = 1.0 + np.geomspace(low - 1, high - 1, 201) if high else SEARCHED_ORDERS
    return orders, overhead(orders, delta)


def _best_order(cost: Cost, delta: float) -> float:
    """Order with the least ε: a coarse search over all, then two finer ones around the best."""
    low = high = 0.0
    for _ in range(3):
        orders, added = _searched(low, high, delta)
        curve = orders * _float(cost.rho) + _float(cost.flat) + added
        if cost.most_order is not None:
            curve = np.where(orders > float(cost.most_order), math.inf, curve)
        for pure, count in cost.pure:
            curve += count * np.minimum(_float(pure), _float(pure) * (_float(pure) * orders / 2))
        for outcome, count in cost.outcomes:
            curve += count * outcome.about(orders)
        for claim, count in cost.claimed:
            curve += count * claim.about(orders)
        best = int(np.argmin(curve))
        low, high = float(orders[max(best - 1, 0)]), float(orders[min(best + 1, len(orders) - 1)])
        found = float(orders[best])
    if not cost.outcomes and not cost.claimed:
        return found
    # The next of fixed orders, each of which is evaluated once in a process; below the limit, if any.
    step = _STEPS * math.log(found - 1)
    step = round(step) if cost.most_order is None else math.floor(step)
    return 1.0 + math.exp(step / _STEPS)
