"""Arithmetic rounded outward: each operation, each ε that is stated by it, against 300 digits."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy.bounds import conversion, cost, intervals
from pate_fed.privacy.bounds.conversion import (
    gaussian_delta,
    gaussian_dp_epsilon,
    moved_count_delta,
    moved_count_epsilon,
    overhead_up,
)
from pate_fed.privacy.bounds.cost import Cost, epsilon_of, in_parallel, noisy_sums
from pate_fed.privacy.bounds.intervals import Interval, fraction_up, gaussian_delta_within, raised
from pate_fed.privacy.mechanisms.events import sum_distance, sum_sigma

SLACK = 3e-9  # how far above the true figure one may be stated, relative; mostly it is 1e-12
FEW, MANY = 60, 1000


def exact(value: Any) -> mpmath.mpf:
    if isinstance(value, Fraction):
        return mpmath.mpf(value.numerator) / value.denominator
    return mpmath.mpf(str(value) if isinstance(value, Decimal) else value)


EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}
NEAR = {"exp": mpmath.exp, "ln": mpmath.log, "sqrt": mpmath.sqrt}


def gaussian(mu: Fraction, epsilon: Fraction) -> mpmath.mpf:
    m, e = exact(mu), exact(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.fixture(autouse=True)
def _digits() -> Any:
    for cached in (gaussian_dp_epsilon, overhead_up, moved_count_delta, cost._searched_epsilon):
        cached.cache_clear()  # type: ignore[attr-defined]
    with mpmath.workdps(300):
        yield


PATHS: dict[str, Callable[[], float]] = {
    "class sums": lambda: epsilon_of(
        Cost(outcomes=((noisy_sums(squared=7, variance=Fraction(3.7) ** 2, entries=90), 3),)), 1e-5
    ),
    "sums in shares, and counts in parallel": lambda: epsilon_of(
        in_parallel(
            Cost(outcomes=((_shares(2.3, 5, 40, 8), 2),)), Cost(outcomes=((_shares(9.1, 5, 1, 4), 1),))
        ),
        1e-6,
    ),
    "a very private sum, whose a is below 0": lambda: gaussian_dp_epsilon(0.003, 1e-5),
    "a sum with δ far out": lambda: gaussian_dp_epsilon(0.7, 1e-40),
    "rdp": lambda: epsilon_of(Cost(rho=Fraction(1, 3), pure=((Fraction(0.11), 70),)), 1e-5),
    "rdp by the classic conversion": lambda: (
        conversion.to_epsilon([2.0, 8.5, 30.0], [0.3, 1.2, 5.0], 1e-5, conversion="classic").epsilon
    ),
    "counts of labels": lambda: moved_count_epsilon(1.3, 1e-5),
    "counts of labels, much noise": lambda: moved_count_epsilon(2000.5, 1e-5),
}


def _shares(sigma: float, parties: int, squared: int, entries: int) -> Any:
    return noisy_sums(
        squared=squared,
        variance=Fraction(sum_sigma(sigma, parties)) ** 2,
        entries=entries,
        distance=sum_distance(sigma, parties),
    )


@pytest.mark.parametrize("path", PATHS)
def test_each_operation_on_a_path_is_rounded_outward_and_by_less_than_a_unit(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(path, monkeypatch)


@pytest.mark.parametrize("name", [*EXACT, *NEAR, "up"])
def test_a_unit_in_the_last_place_off_one_of_them_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, up = intervals._rounded, Interval.up

    def lowered(context: Any, called: str, *operands: Decimal) -> Decimal:
        found = plain(context, called, *operands)
        off = called == name and found and context is intervals._UP
        return found.next_minus(intervals._DOWN) if off else found

    monkeypatch.setattr(intervals, "_rounded", lowered)
    if name == "up":
        monkeypatch.setattr(Interval, "up", lambda self: math.nextafter(up(self), -math.inf))
    with pytest.raises(AssertionError):
        hold("rdp" if name == "ln" else "class sums", monkeypatch)


def hold(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every operation on a path against what it should give."""
    seen: dict[tuple[Any, ...], Decimal] = {}
    floats: list[tuple[bool, Fraction, float]] = []
    plain, up, down, whole = intervals._rounded, Interval.up, Interval.down, intervals.fraction_up

    def recorded(context: Any, name: str, *operands: Decimal) -> Decimal:
        found = plain(context, name, *operands)
        seen[context is intervals._UP, name, *operands] = found
        return found

    def kept(upward: bool, form: Callable[[Any], float], given: Any, number: Any) -> float:
        floats.append((upward, Fraction(number), found := form(given)))
        return found

    monkeypatch.setattr(intervals, "_rounded", recorded)
    monkeypatch.setattr(Interval, "up", lambda self: kept(True, up, self, self.high))
    monkeypatch.setattr(Interval, "down", lambda self: kept(False, down, self, self.low))
    for module in (intervals, conversion, cost):
        monkeypatch.setattr(module, "fraction_up", lambda number: kept(True, whole, number, number))
    PATHS[path]()
    assert len(seen) > 4 and floats
    for (upward, name, *operands), found in seen.items():
        lower, higher = found.next_minus(intervals._DOWN), found.next_plus(intervals._UP)
        ends = (lower, found) if upward else (found, higher)
        if name in EXACT:
            true = EXACT[name](*map(Fraction, operands))
            if true:  # 0 has no neighbours that a fraction could hold
                least, most = map(Fraction, ends)
                assert (least < true <= most) if upward else (least <= true < most), (name, operands)
        elif operands[0]:  # e^0, 1, stands between its neighbours
            assert exact(ends[0]) < NEAR[name](exact(operands[0])) < exact(ends[1]), (name, operands)
    for upward, number, figure in floats:
        beyond = Fraction(math.nextafter(figure, -math.inf if upward else math.inf))
        assert (beyond < number <= figure) if upward else (figure <= number < beyond)


def _sums(count: int) -> Any:
    """(stated, true) of sums of the public road: σ, sensitivity, entries, rounds, shares to ε."""
    rng = random.Random(5)
    for _ in range(count):
        sigma, squared = 10 ** rng.uniform(0.4, 4), 10 ** rng.randint(0, 6)
        rounds, entries = rng.randint(1, 40), rng.randint(1, 10**6)
        delta, parties = 10 ** rng.uniform(-12, -1), rng.choice([1, 1, 4, 150])
        outcome = noisy_sums(
            squared=squared,
            variance=Fraction(sigma) ** 2 * parties,
            entries=entries,
            distance=sum_distance(sigma, parties),
        )
        stated = cost._gaussian_dp(((outcome, rounds),), delta)
        h = 10 * mpmath.fsum(
            mpmath.exp(-2 * mpmath.pi**2 * exact(sigma) ** 2 * k / (k + 1)) for k in range(1, min(parties, 5))
        )
        tau = (mpmath.mpf(3) / 10**17 + h) * entries * rounds
        mu = mpmath.sqrt(rounds * squared / (exact(sigma) ** 2 * parties - 2))
        yield (
            stated,
            _least(lambda e, mu=mu: gaussian(mu, e), exact(delta) * mpmath.exp(-tau), stated) + 2 * tau,
        )


def _least(delta_at: Callable[[Any], mpmath.mpf], delta: mpmath.mpf, near: float) -> mpmath.mpf:
    """Where δ is as asked, from 0 on, by secants from a figure near to it."""
    if delta_at(mpmath.mpf(0)) <= delta:
        return mpmath.mpf(0)
    one, two = exact(near), exact(near) * (1 - mpmath.mpf(10) ** -9)
    for _ in range(3):
        f, g = (mpmath.log(delta_at(each) / delta) for each in (one, two))
        if f == g:
            break
        one, two = one - f * (one - two) / (f - g), one
    return one


def _curves(count: int) -> Any:
    """(stated, true) of RDP curves at an order."""
    rng = random.Random(6)
    for _ in range(count):
        spent = Cost(
            rho=Fraction(10 ** rng.uniform(-6, 3)),
            pure=((Fraction(10 ** rng.uniform(-3, 1)), rng.randint(1, 2000)),),
            flat=Fraction(rng.random()),
        )
        order, delta = 1 + 10 ** rng.uniform(-2, 5), 10 ** rng.uniform(-12, -1)
        a, (pure, times) = exact(order), spent.pure[0]
        rdp = a * exact(spent.rho) + exact(spent.flat)
        rdp += times * min(exact(pure), exact(pure) ** 2 * a / 2)
        added = mpmath.log(1 - 1 / a) - mpmath.log(exact(delta) * a) / (a - 1)
        yield cost._epsilon_at(spent, delta, order), rdp + added


def _counts(count: int) -> Any:
    """(stated, true) of counts of labels, by the sum of the masses itself."""
    rng = random.Random(7)
    for _ in range(count):
        sigma, delta = 10 ** rng.uniform(-0.5, 0.9), 10 ** rng.uniform(-12, -2)
        stated = moved_count_epsilon(sigma, delta)
        wide = math.ceil(40 * sigma) + 20
        x = [mpmath.exp(-(mpmath.mpf(j) ** 2) / (4 * exact(sigma) ** 2)) for j in range(2 * wide)]
        theta = [x[0] + 2 * mpmath.fsum(x[2::2]), 2 * mpmath.fsum(x[1::2])]
        whole = theta[0] ** 2 + theta[1] ** 2
        tail, sums = mpmath.mpf(0), [mpmath.mpf(0)] * (2 * wide + 2)
        for j in range(2 * wide - 1, -1, -1):
            tail += x[j] * theta[j % 2] / whole
            sums[j] = tail
        found = (mpmath.log((sums[g] - delta) / sums[g + 2]) for g in range(wide) if sums[g] > delta)
        yield stated, max(found, default=mpmath.mpf(0))


@pytest.mark.parametrize("accountant", [_sums, _curves, _counts])
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_figure_is_below_that_of_300_digits_nor_much_above(accountant: Any, count: int) -> None:
    for stated, true in accountant(count):
        assert true <= stated <= max(true, 0) * (1 + SLACK), (stated, true)


def test_deltas_enclose_those_of_300_digits() -> None:
    rng = random.Random(8)
    for _ in range(150):
        mu = Fraction(10 ** rng.uniform(-8, 2))
        epsilon = mu * Fraction(rng.choice([0, 1, rng.random(), mu, 10 ** rng.uniform(-1, 1.5)]))
        found, true = gaussian_delta_within(mu, epsilon), gaussian(mu, epsilon)
        assert exact(found.low) <= true <= exact(found.high) <= true * (1 + mpmath.mpf(10) ** -15)


def test_counts_and_their_continuous_bound_agree_where_one_ends() -> None:
    below, above = (moved_count_delta(sigma, 0.003) for sigma in (1000.0, math.nextafter(1000.0, 2000)))
    assert below < above < below * (1 + 1e-4)
    assert moved_count_delta(1000.0, 1e6) <= 1e-300  # far out no long sum is made
    assert moved_count_delta(0.05, 350.0) == pytest.approx(1.0) and moved_count_epsilon(0.05, 1e-5) > 390


def test_floats_and_roots_that_are_exact_stay() -> None:
    assert sum_sigma(6.0, 4) == 12.0 and Interval.of(Fraction(9, 4)).root().up() == 1.5
    assert fraction_up(Fraction(1, 3)) > Fraction(1, 3) > Interval.of(Fraction(1, 3)).down()
    assert fraction_up(Fraction(10) ** 400) == math.inf
    assert sum_distance(1e6, 3) == Fraction(2) ** -1000 and sum_distance(2.0, 1) == 0


def test_a_figure_that_does_not_hold_is_raised_until_it_does() -> None:
    assert raised(1.0, lambda value: value > 1.5) == pytest.approx(2.0, abs=1.0)
    assert raised(0.0, lambda value: value > 0) > 0
    assert raised(math.inf, lambda _: False) == math.inf
    with pytest.raises(ArithmeticError, match="multiply"):
        Interval.of(-1.0) * Interval.of(1.0)
    with pytest.raises(InputError, match="mu above 0"):
        gaussian_delta(0.0, 1.0)
