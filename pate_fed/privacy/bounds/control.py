"""ε and δ that a study with caps on its queries and labels can spend, by optimal control of the privacy loss.

An adaptive adversary chooses every query's votes after it has seen all earlier outcomes. The state is the
likelihood ratio of the two neighbouring inputs; the value of the worst adversary satisfies a backward
induction (Bellman's equation). The privacy profile of the Gaussian mechanism, with a variance that grows by a
proven amount at every check and every label, stays above that value. RDP of one outcome, of
`pate_fed.privacy.bounds.hockey_stick`, is all that is used of the mechanism. `docs/proofs/control.md` has the
proof; the labels (C), (Z) and (S) below are its.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon, overhead_up, pure_epsilon, round_up
from pate_fed.privacy.bounds.cost import Cost, OutcomeCost, epsilon_of
from pate_fed.privacy.bounds.hockey_stick import WinnerBounds, rounded_up, winner_bounds
from pate_fed.privacy.bounds.intervals import Interval, fraction_up, plus_up
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, Ints, NoiseLaw
from pate_fed.privacy.bounds.values import (
    EVERY,
    LEAST,
    WIDEST,
    WIDEST_BIT,
    Bit,
    Query,
    Rows,
    Values,
    narrower,
    places,
    winner_of,
)
from pate_fed.privacy.checks import Floats, check_count, check_delta, check_sigma

# Rényi orders of the table of moments, in units of √(2/variance). Between them the moments are log-convex.
_ORDERS = (0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3)
_CELLS = 600  # of nu, in every one of which inequality (C) is checked at its worst corner
_PIECES = 4  # of the integral in (C)
_BLOCK = 0.2  # growth of the variance after which the increment is computed anew
_STARTS = (2.0, 3.5)  # first variances that are tried, in units of the coarsest outcome's
_SHARES = (0.003, 0.01)  # of δ that may go to the far tails
_FOR_MAIN = 0.8  # of that, for the coarsest outcomes
_FOR_REST = 0.9  # of that, for outcomes beyond the few whose value is known
_NEAR = 1e-5  # relative, of an increment that is found by halves
_TILTED = (0.06, 0.12)  # shares of δ that may go to slack that falls with r, as r^-β
_POWER = 0.7  # β, of ε over the variance
_HALVES = 6  # steps to the ε at which slack that falls with it is counted
_LARGEST = 300.0  # exponent that is taken at most
FEW, MANY = 20, 300
"""Queries of which the value is known state by state, and up to which such a begin is looked for."""
_MOST_STATES = 61  # as many as the second verifier computes
_MOST_PLACES, _MOST_CELLS = 600, 200_000  # of a grid of queries, and by the largest total: some seconds
_FARTHEST = 300.0  # ε that a grid is made for
_ROUNDING = 1e-9  # relative; the sums here are a few terms of 1e-15 each


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedOutcome:
    """A kind of outcome that a study releases at most `times` times.

    `rdp` bounds its RDP at an order of at least 2, in both directions and for any votes. `variance` bounds it
    too: RDP(α) <= α `variance`/2 at every order α > 1, as noise with ρ = `variance`/2 has. Tables are kept by
    `rdp`, so equal kinds give equal functions.
    """

    rdp: Callable[[float], float]
    variance: float
    times: int

    def __post_init__(self) -> None:
        check_sigma("variance", self.variance)
        check_count("times", self.times)


@dataclass(frozen=True, slots=True)
class _Step:
    """What one outcome reveals: an upper bound on its moments, and the variance of the noise's own loss.

    `knots` are orders less 1/2, rising; `log_moments` are ln Z there, Z = (e^((α-1) RDP(α)) - 1)/(α(α-1)).
    """

    knots: Floats
    log_moments: Floats
    variance: float

    def log_moment(self, nu: Floats) -> Floats:
        """Upper bound on ln Z(nu) for nu >= 0, nu = α - 1/2 (Z)."""
        found: Floats = np.interp(nu, self.knots, self.log_moments)
        far = nu > self.knots[-1]
        found[far] = (nu[far] ** 2 - 0.25) * self.variance / 2 - np.log(nu[far] ** 2 - 0.25)
        return found + _ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tilt:
    """Slack that falls with r, as r^-`power`: at e^`near` it is `slack` in all.

    Where it is added k outcomes before the last it grows by e^(k `growth`) until then.
    """

    power: float
    near: float
    slack: float
    growth: float = 0.0

    def log_slack(self, share: float, later: int) -> float:
        """Ln of what is added at r = 1 for a `share` of it, `later` outcomes before the last."""
        return math.log(self.slack * share) + self.power * self.near - self.growth * later

    def at(self, epsilon: float, spent: float) -> Fraction:
        """What is added at e^`epsilon` where `spent` is at e^`near`; raised."""
        return Fraction(spent * math.exp(self.power * (self.near - epsilon)) * (1 + _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """One query of Confident-GNMax, bit and winner on the same totals of votes that are each one.

    It is answered where the largest total and discrete N(0, `sigma1`²) are at least the whole `threshold`, by
    the argmax of totals and discrete N(0, `sigma2`²). Totals are at least 0 and `teachers` in all at most:
    where one comes near the threshold the others are small, so no totals are the worst for both releases. A
    unit moves up to `votes` of them; where it is one, and there are but `two` classes, no third contests.
    Whoever cannot know that the totals are such has no use for it: under masks a hospital may send (+100,
    +100, -199). `docs/proofs/same-votes.md` has the proof.
    """

    threshold: int
    sigma1: float
    sigma2: float
    teachers: int
    votes: int = 1
    two: bool = False

    @property
    def variance(self) -> float:
        """V with RDP of at most α v/2 at every order α: that of both noisy totals together."""
        squared = 2 / Fraction(self.sigma2) ** 2 + 1 / Fraction(self.sigma1) ** 2
        return math.nextafter(float(self.votes**2 * squared), math.inf)

    def rdp(self, order: float) -> float:
        """Rényi divergence of bit and winner together at `order`, rounded up; at most the noisy totals'."""
        own, k = order * self.variance / 2 * (1 + 2**-50), self.votes
        check, winner = (
            NoiseLaw(GAUSSIAN, self.sigma1),
            winner_bounds(self.sigma2, order, shift=k, two=self.two and k == 1),
        )
        if winner is None:
            return own
        for reach in check.reaches(order, k):
            found = self._rdp(order, winner, check, reach.one)
            if found < own:
                return found
        return own

    def _rdp(self, order: float, winner: WinnerBounds, check: NoiseLaw, reach: int) -> float:
        """The supremum over the largest total, and over how far it moves."""
        k, most = self.votes, reach + self.votes + 1
        missing = self.threshold - np.arange(self.teachers + 1)  # votes of noise that it takes to pass
        inside = np.abs(missing) <= reach
        above = check.upper_tails(most + k)  # Pr[Z >= j] for j = -(most + k)..most + k

        def bit(j: Ints) -> Floats:
            with np.errstate(divide="ignore"):
                logs: Floats = np.log(np.stack((above[1 - j + most + k], above[j + most + k])))
            return logs

        j, worst, largest = missing[inside], 1.0, np.ones(self.teachers + 1)
        for step, moment in self._winners(winner):
            with np.errstate(invalid="ignore", over="ignore"):
                refused, passed = np.exp(order * bit(j) + (1 - order) * bit(j - step))
                found = refused + passed * moment[inside]
            worst = max(worst, float(np.where(np.isnan(found), math.inf, found).max(initial=1.0)))
            largest = np.maximum(largest, moment)
        # Beyond the reach the rarer bit keeps a share of at most `loses`, and adds `others` to the moment.
        loses, others = above[reach - k + most + k], check.tilted_tails(order, k, most)[reach + most]
        kept, rare = math.exp((1 - order) * math.log1p(-loses)), math.exp(min(others, _LARGEST))
        far, near = (largest[part].max(initial=0.0) for part in (missing > reach, missing < -reach))
        worst = max(worst, kept + rare * far if far else 1.0, kept * near + rare if near else 1.0)
        return rounded_up(math.log(worst) / (order - 1), order)

    def _winners(self, winner: WinnerBounds) -> list[tuple[int, Floats]]:
        """How far the largest total moves, and the winner's moment then at most, by that total from 0 on."""
        apart = np.maximum(2 * np.arange(self.teachers + 1) - self.teachers, 0)  # what it is above any other
        above, below = (side[np.minimum(apart, len(side) - 1)] for side in (winner.above, winner.below))
        # Neither a nor b is the largest, whose noise z holds them at -apart - z above the best other.
        law = NoiseLaw(GAUSSIAN, self.sigma2)
        most = law.depth()
        far = most - winner.low
        heights = np.arange(-far - most, most + 1)
        under = winner.under[np.clip(heights - winner.low, 0, len(winner.under) - 1)]
        held = np.convolve(under, law.masses(most), "valid")[::-1]  # by apart, 0..far
        held = (held * (1 + _ROUNDING) + 1e-15 * winner.under[-1])[np.minimum(apart, far)]
        # a is the largest and falls; where b comes near it, the largest may stay or rise.
        k = self.votes
        near = np.where(apart <= (1 if k == 1 else k - 1), above, 1.0)
        rises = np.maximum(np.maximum(near, below), held)
        if k == 1:
            return [(-1, above), (0, np.maximum(near, held)), (1, rises)]
        # Some of those that fall may be of a third, and the largest falls by less than k.
        falls = np.maximum(above, held)
        return [(-k, falls), (0, np.maximum(falls, below)), (k, rises)]


@lru_cache(maxsize=256)
def checked_epsilon(query: CheckedQuery, times: int, delta: float) -> float:
    """ε at δ of at most so many queries, each chosen from all earlier outcomes, stopped at any time."""
    values = _few_queries(query, delta)
    found = _by_profile(query, times, delta, values if times > FEW else None)
    return found if values is None or times > FEW else min(found, values.epsilon((times,)))


def _by_profile(query: CheckedQuery, times: int, delta: float, begun: Values | None = None) -> float:
    part = CappedOutcome(rdp=query.rdp, variance=query.variance, times=times)
    return capped_epsilon([part], delta, shares=(*_SHARES, 0.05), begun=begun)


@lru_cache(maxsize=16)
def _few_queries(query: CheckedQuery, delta: float) -> Values | None:
    """The values of up to `FEW` queries; None where tables would be long, or there are none."""
    if not (LEAST <= query.sigma1 <= WIDEST_BIT and LEAST <= query.sigma2 <= WIDEST):
        return None
    if narrower(NoiseLaw(GAUSSIAN, query.sigma2), query.votes) is None:
        return None
    near = _by_profile(query, FEW, delta)
    make = partial(Query, **asdict(query))
    of_winner = 2 * query.votes**2 / query.sigma2**2
    size = places(of_winner, near) if near < _FARTHEST else _MOST_PLACES + 1
    if size > _MOST_PLACES or size * query.teachers > _MOST_CELLS:
        return None
    return Values([make], variance=of_winner, near=near, delta=delta)


def _orders(variance: float) -> list[float]:
    unit = math.sqrt(2 / variance)
    return sorted({2.0, *(max(2.0, float(round(share * unit))) for share in _ORDERS)})


@lru_cache(maxsize=256)
def _step(rdp: Callable[[float], float], variance: float) -> _Step:
    orders = _orders(variance)
    curve = [min(rdp(order), order * variance / 2) for order in orders]
    # What follows the last order is the noise's own curve, which is larger; one chord leads there.
    orders.append(1.25 * orders[-1] + 1)
    curve.append(orders[-1] * variance / 2)
    alpha = np.array(orders)
    log_moment = (alpha - 1) * np.array(curve)
    log_z = log_moment + np.log(-np.expm1(-log_moment)) - np.log(alpha * (alpha - 1))
    return _Step(alpha - 0.5, np.maximum.accumulate(log_z), variance)


def _rise(nu: Floats, start: float, rise: float) -> Floats:
    """Lower bound on what the Gaussian's profile gains from variance `start` to `start + rise`, (C)'s left.

    In units of its density at nu `start`. On a piece of the integral the falling factors are taken at its
    end; the exponent nu² φ/2 is concave in the variance, so above its chord.
    """
    ends = start + rise * np.arange(_PIECES + 1) / _PIECES
    phi = start * (ends - start) / ends
    square = nu * nu
    x = np.minimum(square * (phi[1:] - phi[:-1])[:, None] / 2, _LARGEST)
    pieces = np.divide(np.expm1(x), x, out=np.ones_like(x), where=x > 1e-8)
    factor = [
        math.exp(-(high - start) / 8) * math.sqrt(start / high) * (high - low) / 2
        for low, high in pairwise(ends.tolist())
    ]
    pieces *= np.array(factor)[:, None]
    pieces[1:] *= np.exp(np.minimum(square * phi[1:-1, None] / 2, _LARGEST))  # the first begins at 0
    gained: Floats = pieces.sum(axis=0)
    return gained


def _increment(
    step: _Step, start: float, slack: float, tilted: float = -math.inf, power: float = 0.0
) -> float:
    """A variance that one `step` adds at most where `start` or more has been reached, but for slack (C).

    Slack is `slack` and e^`tilted` r^-`power`. ∞ where none is found, or where `start` is not above the
    step's own variance: (S) wants it.
    """
    if start <= step.variance:
        return math.inf
    unit = math.log(2 * math.pi * start) / 2
    log_slack = math.log(slack) + unit
    # Beyond the larger root the slack alone is above the noise's own moments (S).
    a, b, c = (start - step.variance) / 2, -start / 2, start / 8 + log_slack
    last = max(2.0, (-b + math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)) * (1 + _ROUNDING)
    # Most cells where most of the weight is.
    nu = last * np.linspace(0.0, 1.0, _CELLS + 1) ** 2
    least = start * (np.clip(0.5, nu[:-1], nu[1:]) - 0.5) ** 2 / 2 + log_slack
    lowest = np.clip(0.5 + power, nu[:-1], nu[1:])
    least = np.logaddexp(least, start * ((lowest - 0.5) ** 2 / 2 - power * lowest) + tilted + unit)
    moment = step.log_moment(nu[1:])
    open_cells = moment > least
    if moment[open_cells].max(initial=0.0) > _LARGEST:
        return math.inf
    corner = nu[:-1][open_cells]
    needed = np.exp(moment[open_cells]) - np.exp(least[open_cells])
    low, high = 0.0, step.variance
    while (_rise(corner, start, high) < needed).any():
        low, high = high, 2 * high
        if high > 64 * start:
            return math.inf
    while corner.size and high - low > _NEAR * high:
        middle = (low + high) / 2
        low, high = (middle, high) if (_rise(corner, start, middle) < needed).any() else (low, middle)
    return high if corner.size else 0.0


def _blocks(count: int, start: float) -> Iterator[int]:
    """`count` steps in runs within which the variance, in units of a step's, grows little from `start`."""
    done = 0
    while done < count:
        size = min(count - done, max(1, math.floor(_BLOCK * (start + done / 2))))
        yield size
        done += size


def _variance(
    outcomes: Sequence[CappedOutcome], *, first: float, slack: float, tilt: _Tilt | None = None
) -> tuple[float, float]:
    """Variance of the Gaussian whose profile, plus slack, is above the adversary's value.

    The coarsest outcome stands first. `first` is what the Gaussian starts from, in units of its variance.
    Slack is `slack` and, of one kind alone, `tilt`; of that, besides, what comes of it at e^`near`.
    """
    main, others = outcomes[0], outcomes[1:]
    variance = start = first * main.variance
    for_main = slack * _FOR_MAIN if others else slack
    for other in others:
        own = (slack - for_main) / len(others) / other.times
        variance += other.times * _increment(_step(other.rdp, other.variance), start, own)
    step, blocks = _step(main.rdp, main.variance), list(_blocks(main.times, first))
    later, spent = main.times, 0.0
    for size in blocks:
        share = 1 / len(blocks) / size
        tilted = (tilt.log_slack(share, later - 1), tilt.power) if tilt else ()
        # The increment falls as the variance rises, so that of a block's start holds throughout it.
        rise = _increment(step, start, for_main * share, *tilted)
        if math.isinf(rise):
            return rise, spent
        if tilt:
            more = (size - 1) * max(0.0, tilt.power * (tilt.power + 1) * rise / 2 - tilt.growth)
            spent += tilt.slack / len(blocks) * math.exp(min(more, _LARGEST))
        start, variance, later = start + size * rise, variance + size * rise, later - size
    return variance * (1 + _ROUNDING), spent


def _coarsest_first(outcomes: Sequence[CappedOutcome]) -> list[CappedOutcome]:
    return sorted((each for each in outcomes if each.times), key=lambda each: -each.variance)


def capped_epsilon(
    outcomes: Sequence[CappedOutcome],
    delta: float,
    *,
    shares: Sequence[float] = _SHARES,
    begun: Values | None = None,
) -> float:
    """ε at δ of any adaptive sequence of `outcomes`, each kind as often as its cap; rounded up.

    In any order, each chosen from all earlier outcomes, stopped at any time. `shares` of δ are tried for the
    far tails. `begun` has the value of `FEW` of the one kind.
    """
    delta, parts = check_delta(delta), _coarsest_first(outcomes)
    if not parts:
        return 0.0
    # RDP is less only where a few queries of little noise are asked.
    found = []
    for order in _orders(parts[0].variance):
        rdp = sum(part.times * Fraction(part.rdp(order)) for part in parts)
        found.append(max(fraction_up(rdp + overhead_up(order, delta)), 0.0))
    for first in _STARTS:
        for share in shares:
            variance, _ = _variance(parts, first=first, slack=share * delta)
            found.append(_of_profile(variance, share, delta))
    if begun is not None:
        found.extend(_from_few(parts[0], delta, share, begun) for share in shares)
    if len(parts) == 1 and 0 < min(found) < _FARTHEST:
        found.extend(_tilted(parts[0], delta, min(found), shares[0], begun))
    return min(found)


def _from_few(
    main: CappedOutcome, delta: float, share: float, begun: Values | None, tilt: _Tilt | None = None
) -> float:
    """ε at δ where the value of `FEW` is known, or without; a `share` of δ and `tilt` go to the tails."""
    slack, rest, first, far, spent = share * delta, main, _STARTS[0], 0.0, 0.0
    if begun is not None:
        rest, far = replace(main, times=main.times - FEW), begun.far((FEW,))
        few = max(slack * (1 - _FOR_REST), begun.last((FEW,)))
        slack -= few
        if slack <= 0:
            return math.inf
        tilted = (tilt.log_slack(1 - _FOR_REST, rest.times), tilt.power) if tilt else ()
        # A Gaussian of more variance is above it too, and `_increment` wants one well above a step's.
        first = max(first, begun.variance((FEW,), few, *tilted) / main.variance)
        if math.isinf(first):
            return first
        tilt = replace(tilt, slack=tilt.slack * _FOR_REST) if tilt else None
    variance, spent = _variance([rest], first=first, slack=slack, tilt=tilt)
    if tilt and begun is not None:
        spent += tilt.slack * (1 / _FOR_REST - 1)
    return _of_profile(variance, share, delta, far=far, tilt=tilt, spent=spent)


def _tilted(
    main: CappedOutcome, delta: float, near: float, share: float, begun: Values | None
) -> Iterator[float]:
    """ε at δ, about `near`, with slack that falls with r, where the worst adversary hardly comes."""
    step = _step(main.rdp, main.variance)
    # Most of the weight is where x/τ is about ε over the variance.
    power = max(1.0, float(round(_POWER * near / (main.rdp(2.0) * main.times))))
    log_z = float(step.log_moment(np.array([power + 0.5]))[0])
    growth = math.log1p(power * (power + 1) * math.exp(min(log_z, _LARGEST))) * (1 + _ROUNDING)
    if growth * main.times < _LARGEST:
        for tilted in _TILTED:
            tilt = _Tilt(power=power, near=near, slack=tilted * delta, growth=growth)
            yield _from_few(main, delta, share, begun, tilt)


def _of_profile(
    variance: float,
    share: float,
    delta: float,
    *,
    far: float = 0.0,
    tilt: _Tilt | None = None,
    spent: float = 0.0,
) -> float:
    """ε at δ of a Gaussian with this variance of its loss, where a `share` of δ went to the tails.

    The laws are within e^(±far) of those that it bounds. Of `tilt` so much is `spent`.
    """
    if math.isinf(variance):
        return variance
    kept = Interval.of(Fraction(delta)) * Interval.of(-Fraction(far)).exp()
    # Parts of the share, floats, add up to it and no more than 1e-9 of it.
    gone = Fraction(delta) * Fraction(share) * (1 + Fraction(1, 10**9))
    mu = Interval.of(Fraction(variance)).root().up()
    if tilt is None:
        return plus_up(gaussian_dp_epsilon(mu, (kept - Interval.of(gone)).down()), 2 * Fraction(far))
    best, least = math.inf, 0.9 * tilt.near
    for _ in range(_HALVES):  # what is gone at the least ε holds for all above
        left = (kept - Interval.of(gone + tilt.at(least, spent))).down()
        found = max(least, gaussian_dp_epsilon(mu, left)) if left > 0 else math.inf
        best, least = min(best, found), (least + min(best, tilt.near)) / 2
    return plus_up(best, 2 * Fraction(far))


@lru_cache(maxsize=256)
def capped_cost_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of at most `cost`, each outcome as often as it says at most and in any order; rounded up.

    The least of RDP and of optimal control over the privacy loss, or of the exact composition of one claim of
    ε-DP; both hold where a cap is set on every kind of outcome and nothing else is released. It takes a
    second or so.
    """
    found = epsilon_of(cost, delta)
    if cost.is_pure and len(cost.claimed) == 1:
        [(curve, count)] = cost.claimed
        return min(found, pure_epsilon(curve.pure, count, delta))
    if not cost.outcomes or cost != Cost(outcomes=cost.outcomes):
        return found
    parts = [
        CappedOutcome(rdp=_curve(outcome), variance=outcome.variance, times=times)
        for outcome, times in cost.outcomes
    ]
    times = tuple(part.times for part in parts)
    few = math.prod(count + 1 for count in times) <= _MOST_STATES
    # The induction goes on from few of one kind alone: kinds may be asked in turns.
    values = None
    if few or (len(times) == 1 and times[0] <= MANY):
        values = _few_outcomes(tuple(outcome for outcome, _ in cost.outcomes), delta)
    begun = values if len(times) == 1 and times[0] > FEW else None
    found = min(found, capped_epsilon(parts, delta, begun=begun))
    return found if values is None or max(times) > FEW else min(found, values.epsilon(times))


@lru_cache(maxsize=16)
def _few_outcomes(outcomes: tuple[OutcomeCost, ...], delta: float) -> Values | None:
    """The values of few outcomes of these kinds; None where there are no tables for one."""
    make = [_on_a_grid(outcome) for outcome in outcomes]
    kinds = [CappedOutcome(rdp=_curve(each), variance=each.variance, times=FEW) for each in outcomes]
    variance = max(each.variance for each in kinds)
    near = capped_epsilon(kinds, delta) if all(make) else math.inf
    return Values(make, variance=variance, near=near, delta=delta) if near < _FARTHEST else None


def _on_a_grid(outcome: OutcomeCost) -> Callable[..., Rows] | None:
    winner, law = outcome.of == "argmax", NoiseLaw(outcome.kind, outcome.scale)
    widest = WIDEST if winner else WIDEST_BIT
    if outcome.kind != GAUSSIAN:
        widest = (EVERY if winner else WIDEST_BIT) / 4
    if outcome.of not in ("argmax", "one-total", "check") or not LEAST <= outcome.scale <= widest:
        return None
    if outcome.of == "check":
        return partial(Bit, law=law, moved=outcome.votes)
    if outcome.distance or narrower(law, outcome.votes) is None:
        return None
    return partial(winner_of, law=law, moved=outcome.votes, vanish=not winner)


@lru_cache(maxsize=256)
def _curve(outcome: OutcomeCost) -> Callable[[float], float]:
    """RDP of one outcome by the order; one function for equal outcomes, as its table is kept by it."""
    return lambda order: round_up(float(outcome.rdp(Fraction(order))))
