"""What docs/proofs/rounding.md says of floats in tables of chances: its hypotheses here, its figures."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest

from pate_fed.privacy.bounds.hockey_stick import bit_rdp
from pate_fed.privacy.bounds.lattice import Lattice, Region
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, NoiseLaw

HALF = 2.0**-53  # of a number, which one operation is off by at most
UNIT = 2 * HALF  # a unit in the last place, at most
CHANCE = 2720 * HALF  # what a chance of the lattice may be off, by the proof


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(300):
        yield


def off(found: float, true: mpmath.mpf) -> float:
    """How far a float is off, relative."""
    return float(abs(mpmath.mpf(found) / true - 1))


def masses(law: NoiseLaw, wide: float) -> dict[int, mpmath.mpf]:
    scale, reach = mpmath.mpf(law.scale), math.ceil(wide * law.scale)
    form = (lambda x: x * x / (2 * scale * scale)) if law.kind == GAUSSIAN else (lambda x: abs(x) / scale)
    weights = {x: mpmath.exp(-form(mpmath.mpf(x))) for x in range(-reach, reach + 1)}
    whole = mpmath.fsum(weights.values())
    if law.kind == LAPLACE:
        whole = 1 / mpmath.tanh(1 / (2 * scale))
    return {x: weight / whole for x, weight in weights.items()}


def test_exp_and_log_are_within_a_unit() -> None:
    """The hypothesis: of arrays, by which NumPy takes other code than of one number, and of one."""
    rng = np.random.default_rng(1)
    x, p = rng.uniform(-700, 0, 3000), np.exp(rng.uniform(-690, -1e-9, 3000))
    with mpmath.workdps(40):
        for exp, log in ((np.exp(x), np.log(p)), (list(map(math.exp, x)), list(map(math.log, p)))):
            for given, found in zip(x.tolist(), exp, strict=True):
                assert off(found, mpmath.exp(given)) <= UNIT
            for given, found in zip(p.tolist(), log, strict=True):
                assert off(found, mpmath.log(given)) <= UNIT


@pytest.mark.parametrize(
    "law",
    [NoiseLaw(GAUSSIAN, 0.5), NoiseLaw(GAUSSIAN, 21.3), NoiseLaw(LAPLACE, 0.6), NoiseLaw(LAPLACE, 3.3)],
    ids=str,
)
def test_masses_are_right_to_some_units_however_far_out(law: NoiseLaw) -> None:
    most = int((36 if law.kind == GAUSSIAN else 600) * law.scale)
    true, found = masses(law, 650 if law.kind == LAPLACE else 50), law.masses(most)
    assert max(off(found[x + most], true[x]) for x in range(most + 1)) <= 20 * HALF
    apart = law.difference_masses(9)
    for j in (0, 1, 8, 9):
        plain = mpmath.fsum(p * true[x - j] for x, p in true.items() if x - j in true)
        assert off(apart[j + 9], plain) <= 100 * HALF


def test_chances_of_a_lattice_are_right_to_what_the_proof_says() -> None:
    """That a wins, at κ = 0 and the coefficient after it, of some cells."""
    law = NoiseLaw(GAUSSIAN, 2.0)
    true, sums, total = masses(law, 50), {}, mpmath.mpf(0)
    for x, mass in true.items():
        sums[x], total = total + mass / 2, total + mass  # Pr[Z < x] and half of Pr[Z = x]
    worst = 0.0
    for (us, vs), here, _ in Lattice(law, Region(low=3, both=4, ahead=6, gap=5)).placed(lambda given: given):
        for place in range(0, len(us), 7):
            u, v = int(us[place]), int(vs[place])
            wins = mpmath.fsum(
                mass * sums.get(j + u - v, mpmath.mpf(j > 0)) for j, mass in true.items() if j >= 1 - u
            )
            level, under = true[-u] * true[-v] / 2, true[-u] * (sums[-v] - true[-v] / 2)
            worst = max(worst, min(off(here[0, place], wins + level + under / part) for part in (1, 2)))
    assert 0 < worst < CHANCE


def _bits(count: int) -> Iterator[tuple[float, mpmath.mpf, float]]:
    """(stated, true, the noise's own), which is stated where no table reaches."""
    rng = random.Random(3)
    for _ in range(count):
        kind, scale = rng.choice((GAUSSIAN, LAPLACE)), 10 ** rng.uniform(-0.2, 0.7)
        order, k = 1 + 10 ** rng.uniform(-1, 1.2), rng.choice((1, 1, 2))
        law = NoiseLaw(kind, scale)
        true = masses(law, 50 if kind == GAUSSIAN else 90)
        tail, tails = mpmath.mpf(0), {max(true) + 1: mpmath.mpf(0)}
        for x in sorted(true, reverse=True):
            tail += true[x]
            tails[x] = tail
        reach, a, worst = int(12 * scale) + 5, mpmath.mpf(order), mpmath.mpf(0)
        for j in range(-reach, reach + 1):
            p, q = tails[j], tails[j + k]
            for one, two in ((p, q), (q, p)):
                moment = one**a * two ** (1 - a) + (1 - one) ** a * (1 - two) ** (1 - a)
                worst = max(worst, mpmath.log(moment) / (a - 1))
        yield bit_rdp(scale, order, shift=k, kind=kind), worst, law.rdp(order, k)


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_bit_s_rdp_is_not_below_that_of_300_digits_nor_much_above(count: int) -> None:
    for stated, true, own in _bits(count):
        assert true <= stated and (stated == own or stated <= true * (1 + 1e-9) + 1e-10), (stated, true)
