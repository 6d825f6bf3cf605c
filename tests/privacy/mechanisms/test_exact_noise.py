"""No float decides a draw: tails against 60 digits, comparisons that 63 bits leave open, opendp's sampler."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pate_fed.privacy.mechanisms import noise as exact_noise
from pate_fed.privacy.mechanisms.noise import Entropy, Law, draw, gaussian_law, laplace_law

# The system's generator cannot be seeded, so its tests fail by chance this often: never seen in practice.
CHANCE = 1e-9
LAWS = [
    *(gaussian_law(sigma) for sigma in (1e-6, 0.3, 1.0, 3.7, 40.0, 200.0, 1e4, 1e9)),
    *(laplace_law(scale) for scale in (1e-6, 0.3, 1.0, 20.0)),
]


def words(*given: int) -> Entropy:
    """Entropy that gives these words in their order, and ends when none is left."""
    left = list(given)
    return lambda count: np.array([left.pop(0) for _ in range(count)], dtype=np.uint64)


def seeded(seed: int) -> Entropy:
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, size=count, dtype=np.uint64)


def chances(law: Law, *, most: int) -> list[mpmath.mpf]:
    """Pr[K = k] for k = 0..most where Pr[K = k] ∝ exp(-E(s·k)), to 60 digits."""
    exponents = [law.energy(law.step * k) for k in range(most + 1)]
    weights = [mpmath.exp(-mpmath.mpf(e.numerator) / e.denominator) for e in exponents]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


@pytest.mark.parametrize("exponent", ["0", "1/1000000007", "1/3", "7", "1000003/7", "999999999999/2"])
@pytest.mark.parametrize("places", [20, 127, 400])
def test_the_bracket_of_an_exponential_holds_it_and_is_narrow(exponent: str, places: int) -> None:
    value = Fraction(exponent)
    low, high = exact_noise._exp_minus(value, places)
    with mpmath.workdps(200):
        truth = mpmath.exp(-mpmath.mpf(value.numerator) / value.denominator) * mpmath.mpf(2) ** places
    assert low <= truth <= high <= low + 2


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("bits", [5, 63, 127])
def test_every_tail_is_the_floor_of_the_true_one(law: Law, bits: int) -> None:
    found = exact_noise._tails(law, bits)
    assert found[0] == 0 and (len(found) == 1 or found[1] > 0)
    with mpmath.workdps(60):
        chance = chances(law, most=2 * len(exact_noise._tails(law, 127)) + 30)
        tail, true = mpmath.mpf(0), []
        for value in reversed(chance):
            true.append(int(mpmath.floor(tail * mpmath.mpf(2) ** bits)))
            tail += value
    assert list(found) == true[::-1][: len(found)][::-1]


@pytest.mark.parametrize("law", [gaussian_law(3.7), laplace_law(5.0), gaussian_law(0.4)], ids=str)
def test_a_word_on_a_tail_is_decided_by_further_bits(law: Law) -> None:
    """63 bits that equal a tail's floor leave it open; the next 64 are compared with the tail's next 64."""
    coarse, fine = exact_noise._tails(law, 63), exact_noise._tails(law, 127)
    for k in range(0, len(coarse) - 1, 5):
        tail, exact = coarse[len(coarse) - 1 - k], fine[len(fine) - 1 - k]
        assert exact >> 64 == tail
        rest = exact & (2**64 - 1)
        for more in (rest - 1, rest + 1, 0, 2**64 - 1):
            longer = tail << 64 | more
            if 0 <= more < 2**64 and longer not in fine:
                assert exact_noise._refined(law, tail, words(more)) == sum(t > longer for t in fine)
        # On the tail again: a third look, of which zeros say "below" and ones "above".
        assert exact_noise._refined(law, tail, words(rest, 0)) == k + 1
        assert exact_noise._refined(law, tail, words(rest, 2**64 - 1)) == k


def test_words_are_read_as_the_proof_says() -> None:
    law = gaussian_law(40.0)
    tails = exact_noise._tails(law, 63)
    for magnitude in (1, 2, 17, 90):
        u = tails[len(tails) - magnitude] - 1  # just below Pr[K > magnitude - 1]
        for sign in (0, 1):
            drawn = draw(law, 1, words(u << 1 | sign, *[2**64 - 1] * 16))
            assert drawn == [-magnitude if sign else magnitude]
    # A positive zero is kept, a negative one thrown away: the draw after it counts.
    largest = 2**63 - 1
    then = tails[len(tails) - 5] - 1
    assert draw(law, 1, words(largest << 1 | 1, then << 1, *[largest << 1] * 15)) == [5]


def test_a_kept_magnitude_near_its_chance_is_decided_exactly() -> None:
    law = gaussian_law(1000.0)
    assert law.step == 8
    coarse, fine = np.array([100]), np.array([5])
    exponent = law.energy(805) - law.energy(800)
    low, _ = exact_noise._exp_minus(exponent, 127)
    first, rest = low >> 64, low & (2**64 - 1)

    def kept(*given: int) -> bool:
        return bool(exact_noise._kept(law, coarse, fine, words(*given))[0])

    assert kept(first - 1 << 1) and not kept(first + 1 << 1)  # decided by their 63 bits, if not by a float
    assert kept(first << 1, rest - 1) and not kept(first << 1, rest + 2)
    assert exact_noise._kept(law, coarse, np.array([0]), words(2**64 - 1))[0]  # j = 0 is always kept


@pytest.mark.parametrize("law", [gaussian_law(2.5), gaussian_law(300.0), laplace_law(4.0)], ids=str)
def test_the_law_is_right_where_many_draws_need_a_second_look(
    law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    refined, below = exact_noise._refined, exact_noise._below

    def count(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            nonlocal looks
            looks += 1
            return function(*args)

        return counted

    monkeypatch.setattr(exact_noise, "_BITS", 4)
    monkeypatch.setattr(exact_noise, "_OPEN", 2.0**-3)
    monkeypatch.setattr(exact_noise, "_refined", count(refined))
    monkeypatch.setattr(exact_noise, "_below", count(below))
    drawn = draw(law, 20_000, seeded(1))
    assert looks > 4_000
    assert _fit(drawn, law) > 1e-4


@pytest.mark.parametrize("law", LAWS[1:7], ids=str)
def test_the_system_s_draws_have_the_law_and_no_other(law: Law) -> None:
    drawn = draw(law, 200_000)
    assert _fit(drawn, law) > CHANCE
    near = Law(law.square * Fraction(100, 90), law.linear, law.step)
    assert law.step > 1000 or law.square > 1 or _fit(drawn, near) < CHANCE


def test_opendp_draws_from_the_same_law() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    theirs = np.array(dp.m.make_gaussian(*space, scale=7.3)([0] * 20_000))
    ours = draw(gaussian_law(7.3), 20_000)
    edges = np.arange(-20.5, 21.5, 1.0)
    table = np.stack([np.histogram(np.clip(values, -20, 20), edges)[0] for values in (theirs, ours)])
    assert stats.chi2_contingency(table).pvalue > CHANCE
    wider = np.histogram(np.clip(draw(gaussian_law(8.6), 20_000), -20, 20), edges)[0]
    assert stats.chi2_contingency(np.stack([table[0], wider])).pvalue < CHANCE


def test_words_that_are_drawn_are_those_that_are_needed() -> None:
    """One word a proposal for narrow noise, three for wide, and 16 proposals over."""
    for law, each in ((gaussian_law(40.0), 1), (gaussian_law(4000.0), 3)):
        asked: list[int] = []

        def counted(count: int, asked: list[int] = asked) -> NDArray[np.uint64]:
            asked.append(count)
            return seeded(len(asked))(count)

        draw(law, 10, counted)
        assert asked == [26] * each


@pytest.mark.slow
@pytest.mark.parametrize("law", [gaussian_law(40.0), gaussian_law(1e4), laplace_law(20.0)], ids=str)
def test_a_hundred_million_draws_and_their_tails(law: Law) -> None:
    """χ² of all, and of those beyond four standard deviations alone, where few draws fall."""
    seen: dict[int, int] = {}
    for _ in range(100):
        values, counts = np.unique(draw(law, 1_000_000), return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            seen[value] = seen.get(value, 0) + count
    values = np.repeat(list(seen), list(seen.values()))
    assert _fit(values, law) > CHANCE
    deviation = math.sqrt(float(1 / (2 * law.square))) if law.square else math.sqrt(2) / float(law.linear)
    far = values[np.abs(values) > 4 * deviation]
    assert far.size > 1000 and _fit(far, law, beyond=4 * deviation) > CHANCE


def _fit(drawn: NDArray[np.int64], law: Law, *, beyond: float = -1.0) -> float:
    """p-value of Pearson's χ² test of draws of which only those with |x| > `beyond` were kept."""
    most = int(np.abs(drawn).max()) + 4 * law.step
    width = max(1, most // 3000)
    x = np.arange(-most, most + 1)
    chance = np.exp(-(float(law.square) * np.abs(x) + float(law.linear)) * np.abs(x))
    chance[np.abs(x) <= beyond] = 0.0
    cells = (x + most) // width
    expected = np.bincount(cells, chance / chance.sum() * drawn.size)
    observed = np.bincount((drawn + most) // width, minlength=expected.size)
    # Neighbouring cells are put together until each expects 30 draws.
    edge = np.flatnonzero(np.diff(np.floor(np.cumsum(expected) / 30), prepend=-1.0))
    expected, observed = np.add.reduceat(expected, edge), np.add.reduceat(observed, edge)
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)
