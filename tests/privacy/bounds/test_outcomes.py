"""What a released label reveals: a second, slow writing, the mechanism's own law, and limits."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from builders import make_terms
from histograms import moved_pairs
from numpy.typing import NDArray
from winner_laws import gaussian_masses, winner_law, winner_laws
from winner_search import Noise, largest, renyi

from pate_fed.errors import InputError
from pate_fed.kinds.votes import protection_of
from pate_fed.privacy import ConfidentGNMax, DistributedGNMax, GNMax, Protection
from pate_fed.privacy.bounds.cost import OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE
from pate_fed.privacy.bounds.outcomes import argmax_rdp, bit_rdp, moved_rdp
from pate_fed.privacy.mechanisms.events import hospital_noise

Floats = NDArray[np.float64]


def _divergences(p: Floats, q: Floats, order: float) -> Floats:
    found: Floats = np.log((p**order * q ** (1 - order)).sum(axis=1)) / (order - 1)
    return found


def _laplace_masses(scale: float, reach: int) -> Floats:
    mass: Floats = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    return mass / mass.sum()


def test_the_laws_that_the_tests_compute_agree() -> None:
    assert winner_law((3, 3, 1, 0), gaussian_masses(1.5, 20)).sum() == pytest.approx(1, abs=1e-12)
    assert winner_law((2, 2), gaussian_masses(1.0, 14)) == pytest.approx([0.5, 0.5])
    totals = [(3, 3, 1, 0), (0, 5, 5, 5), (2, 9, 1, 1)]
    each = np.array([winner_law(n, gaussian_masses(1.5, 20)) for n in totals])
    assert winner_laws(np.array(totals), 1.5) == pytest.approx(each, abs=1e-12)


@pytest.mark.parametrize(("sigma", "near"), [(0.8, 0.65), (2.0, 0.98), (5.0, 0.98)])
def test_100_000_pairs_of_histograms_never_pass_the_bound_and_come_near(sigma: float, near: float) -> None:
    """At σ 0.8 the other classes' own noise spreads over few whole votes, and costs the supremum a third."""
    orders = (1.5, 2.0, 4.0, 9.0)
    highest = dict.fromkeys(orders, 0.0)
    for n, moved in moved_pairs(0, sigma):
        p, q = winner_laws(n, sigma), winner_laws(moved, sigma)
        for order in orders:
            found = max(_divergences(p, q, order).max(), _divergences(q, p, order).max())
            highest[order] = max(highest[order], float(found) / argmax_rdp(sigma, order))
    assert max(highest.values()) <= 1
    assert highest[2.0] > near  # looseness would be seen


@pytest.mark.parametrize(("sigma", "order"), [(1.5, 1.5), (1.5, 4.0), (2.5, 3.0)])
def test_a_second_writing_in_50_digits_agrees(sigma: float, order: float) -> None:
    """Plain sums of mpmath over a coarse set of u, v and κ never pass the bound, and meet it."""
    with mpmath.workdps(50):
        reach = 24
        weight = {
            z: mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * mpmath.mpf(sigma) ** 2))
            for z in range(-reach, reach + 1)
        }
        norm = mpmath.fsum(weight.values())
        p = {z: w / norm for z, w in weight.items()}
        below, total = {-reach - 1: mpmath.mpf(0)}, mpmath.mpf(0)
        for z in range(-reach, reach + 1):
            total += p[z]
            below[z] = total

        def cdf(x: mpmath.mpf) -> mpmath.mpf:  # of Z + U
            j = int(mpmath.floor(x))
            if j > reach:
                return mpmath.mpf(1)
            return mpmath.mpf(0) if j < -reach else below[j - 1] + (x - j) * p[j]

        @cache  # a move leads to another pair that is tried
        def law(u: int, v: int, kappa: mpmath.mpf) -> list[mpmath.mpf]:
            first = mpmath.mpf(0)
            for j in range(-reach, reach + 1):  # cell [j, j + 1) of a's own noise, from κ - u on
                low = max(mpmath.mpf(j), kappa - u)
                if low < j + 1:
                    middle, width = (low + j + 1) / 2, j + 1 - low
                    first += p[j] * width * cdf(middle + u - v)  # affine on the cell: its middle is exact
            neither = cdf(kappa - u) * cdf(kappa - v)
            return [first, 1 - first - neither, neither]

        highest = mpmath.mpf(0)
        spread = round(2 * sigma + 2 * order)
        for u, v in itertools.product(range(-2 - round(order), spread), repeat=2):
            for kappa in (mpmath.mpf(0), mpmath.mpf("0.37")):
                here, there = law(u, v, kappa), law(u - 1, v + 1, kappa)
                moment = mpmath.fsum(a**order * b ** (1 - order) for a, b in zip(here, there, strict=True))
                highest = max(highest, mpmath.log(moment) / (order - 1))
    bound = argmax_rdp(sigma, order)
    assert float(highest) <= bound
    assert float(highest) > 0.99 * bound


@pytest.mark.parametrize(
    ("kind", "scale", "order", "shift"),
    [
        (GAUSSIAN, 0.5, 1.3, 1),
        (GAUSSIAN, 0.7, 3.0, 1),
        (GAUSSIAN, 1.0, 6.0, 1),
        (GAUSSIAN, 2.0, 1.1, 1),
        (GAUSSIAN, 7.0, 40.0, 1),
        (GAUSSIAN, 15.0, 3.0, 1),
        (GAUSSIAN, 6.0, 1.2, 2),
        (GAUSSIAN, 8.0, 1.3, 5),
        (GAUSSIAN, 1.0, 1.05, 2),
        (GAUSSIAN, 5.0, 4.0, 5),
        (GAUSSIAN, 30.0, 1.1, 30),
        (GAUSSIAN, 45.0, 1.1, 50),
        (LAPLACE, 1.0, 20.0, 1),
        (LAPLACE, 3.0, 1.5, 1),
        (LAPLACE, 1.0, 1.1, 2),
        (LAPLACE, 3.0, 1.2, 3),
        (LAPLACE, 10.0, 3.0, 2),
    ],
)
def test_it_is_within_one_percent_of_what_a_search_finds_in_real_studies(
    kind: str, scale: float, order: float, shift: int
) -> None:
    found = largest(Noise(kind, scale), renyi(order), scale=scale, shift=shift)
    stated = argmax_rdp(scale, order, shift=shift, kind=kind)
    assert 0.99 * stated < found <= stated


def _moment(here: Floats, there: Floats, order: float) -> float:
    return float((here**order * there ** (1 - order)).sum())


def _spread(rng: np.random.Generator, classes: int, votes: int) -> NDArray[np.int64]:
    """A change of totals, gains and losses of at most `votes` each, no class with both."""
    share = rng.permutation(classes)
    cut = int(rng.integers(1, classes))
    change = np.zeros(classes, dtype=np.int64)
    np.add.at(change, rng.choice(share[:cut], int(rng.integers(0, votes + 1))), 1)
    np.add.at(change, rng.choice(share[cut:], int(rng.integers(0, votes + 1))), -1)
    return change


@pytest.mark.parametrize(
    "mass",
    [gaussian_masses(0.7, 10), gaussian_masses(3.0, 40), _laplace_masses(1.5, 40)],
    ids=["gaussian-0.7", "gaussian-3", "laplace-1.5"],
)
def test_votes_on_several_classes_are_never_worse_than_all_on_one(mass: Floats) -> None:
    """Lemma 8 at each n, by the mechanism's own law: the largest moment has all votes on one class."""
    rng, nearest, spread = np.random.default_rng(7), 0.0, 0
    for _ in range(60):
        classes, votes = int(rng.integers(3, 5)), int(rng.integers(2, 5))
        order = float(rng.choice([1.2, 3.0]))
        n, change = rng.integers(0, 7, classes), _spread(rng, classes, votes)
        here = winner_law(tuple(n), mass)
        one = np.eye(classes, dtype=np.int64)
        ends = [votes * one[b] for b in range(classes)] + [-votes * one[a] for a in range(classes)]
        ends += [votes * (one[b] - one[a]) for a, b in itertools.permutations(range(classes), 2)]
        worst = max(_moment(here, winner_law(tuple(n + end), mass), order) for end in ends)
        found = _moment(here, winner_law(tuple(n + change), mass), order)
        assert found <= worst * (1 + 1e-9)
        if np.count_nonzero(change) > 2:
            spread, nearest = spread + 1, max(nearest, math.log(found) / math.log(worst))
    assert spread > 10
    assert 0.3 < nearest < 1


def test_chances_to_win_are_discretely_log_concave() -> None:
    """The inequality that Lemma 8 rests on, for n, n' and their rounded midpoints; and that it is sharp."""
    rng, nearest = np.random.default_rng(4), 0.0
    for mass in (gaussian_masses(0.6, 16), gaussian_masses(2.0, 30), _laplace_masses(1.0, 40)):
        for _ in range(80):
            x, y = rng.integers(0, 6, (2, int(rng.integers(2, 5))))
            low, high = (x + y) // 2, -(-(x + y) // 2)
            least = winner_law(tuple(x), mass) * winner_law(tuple(y), mass)
            most = winner_law(tuple(low), mass) * winner_law(tuple(high), mass)
            assert (least <= most * (1 + 1e-9)).all()
            if not np.array_equal(np.sort([x, y], 0), np.sort([low, high], 0)):
                nearest = max(nearest, float((least / most).max()))
    assert 0.9 < nearest <= 1 + 1e-9


@pytest.mark.parametrize(
    ("kind", "scale", "order", "votes", "share"),
    [(GAUSSIAN, 1.0, 1.05, 2, 0.98), (LAPLACE, 3.0, 1.2, 3, 0.9), (GAUSSIAN, 40.0, 3.0, 2, 1 + 1e-12)],
)
def test_several_votes_cost_the_less_of_all_at_once_and_one_after_the_other(
    kind: str, scale: float, order: float, votes: int, share: float
) -> None:
    """The second is what earlier versions charged, so what they wrote never passes as too little."""
    path = moved_rdp(lambda a: argmax_rdp(scale, a, kind=kind), order, votes)
    totals = Fraction(votes**2) / Fraction(scale) ** 2 if kind == GAUSSIAN else 2 * votes / Fraction(scale)
    cost = OutcomeCost(of="argmax", kind=kind, scale=scale, votes=votes, totals=totals)
    charged = float(cost.rdp(Fraction(order)))
    assert charged == min(path, argmax_rdp(scale, order, shift=votes, kind=kind))
    assert charged <= share * path


@pytest.mark.parametrize(("scale", "votes"), [(2.0, 3), (9.0, 5)])
def test_votes_that_vanish_at_once_are_the_bit(scale: float, votes: int) -> None:
    totals = Fraction(votes**2) / (2 * Fraction(scale) ** 2)
    cost = OutcomeCost(of="one-total", kind=GAUSSIAN, scale=scale, votes=votes, totals=totals)
    assert float(cost.rdp(Fraction(2))) == bit_rdp(scale, 2.0, shift=votes)
    assert float(cost.rdp(Fraction(2))) < moved_rdp(lambda a: bit_rdp(scale, a), 2.0, votes)


def _plain_law(u: int, v: int, sigma: int) -> list[mpmath.mpf]:
    """Chances that a, b, another wins, whose best loses every tie; sums over all of a's noise."""
    reach, square = 11 * sigma, mpmath.mpf(2 * sigma * sigma)
    mass = [mpmath.exp(-(mpmath.mpf(z) ** 2) / square) for z in range(reach + 1)]
    norm = mass[0] + 2 * mpmath.fsum(mass[1:])
    p = [mass[abs(z)] / norm for z in range(-reach, reach + 1)]
    below, total = [mpmath.mpf(0)], mpmath.mpf(0)  # Pr[Z < z] from z = -reach on
    for each in p:
        total += each
        below.append(total)

    def under(z: int) -> mpmath.mpf:
        return below[min(max(z + reach, 0), 2 * reach + 1)]

    def at(z: int) -> mpmath.mpf:
        return p[z + reach] if abs(z) <= reach else mpmath.mpf(0)

    first = mpmath.fsum(at(z) * (under(z + u - v) + at(z + u - v) / 2) for z in range(-u, reach + 1))
    neither = under(-u) * under(-v)
    return [first, 1 - first - neither, neither]


@pytest.mark.parametrize(
    ("sigma", "share"),
    [
        (300, 1.0),
        pytest.param(1000, 1.0, marks=pytest.mark.slow),
        pytest.param(10_000, 1.0, marks=pytest.mark.slow),
        pytest.param(10_000, 0.001, marks=pytest.mark.slow),
    ],
)
def test_much_noise_agrees_with_a_plain_writing_in_40_digits(sigma: int, share: float) -> None:
    """The points of a coarse lattice for less noise: above the law at the worst point, by less than 1 %."""
    order = 1 + share * sigma
    # About where the supremum lies, in deviations.
    u, v = (round(at * sigma) for at in ((0.7, 0.7) if share < 0.1 else (0.1, 1.4)))
    with mpmath.workdps(40):
        here, there = _plain_law(u, v, sigma), _plain_law(u - 1, v + 1, sigma)
        moment = mpmath.fsum(a**order * b ** (1 - order) for a, b in zip(here, there, strict=True))
        found = float(mpmath.log(moment) / (order - 1))
    stated = argmax_rdp(float(sigma), order)
    assert 0.99 * stated < found <= stated < 0.7 * order / sigma**2


@pytest.mark.parametrize("scale", [400.0, pytest.param(11_000.0, marks=pytest.mark.slow)])
def test_much_noise_costs_as_little_as_a_moderate_amount(scale: float) -> None:
    """RDP times σ² tends to a limit; a coarse lattice, and less noise beyond 10,000, add what they should."""
    order, most = 1 + scale / 4, max(1.0, (scale / 10_000) ** 2)
    near = argmax_rdp(40.0, 11.0) * 40.0**2 / 11.0
    stated = argmax_rdp(scale, order) * scale**2 / order
    assert 0.998 * near < stated < 1.004 * near * most
    assert argmax_rdp(1e6, order) == pytest.approx(order / 1e12)


@pytest.mark.slow
def test_more_laplace_noise_than_a_table_holds_is_charged_as_less() -> None:
    assert argmax_rdp(140.0, 3.0, kind=LAPLACE) == argmax_rdp(100.0, 3.0, kind=LAPLACE) < 0.7 * 6 / 140**2
    assert argmax_rdp(500.0, 3.0, kind=LAPLACE) == pytest.approx(6 / 500**2)


@pytest.mark.parametrize(
    ("sigma", "order", "earlier"),
    [
        (40.0, 1.001023255952868, 0.00040037006741421857),
        (40.0, 2.0, 0.0007999614647650057),
        (152.0, 1.001023255952868, 2.7728804102411147e-05),
        pytest.param(177.0, 1.0534137273271664, 2.151851052422099e-05, marks=pytest.mark.slow),
        pytest.param(215.0, 1.003145700277071, 1.3888543549479328e-05, marks=pytest.mark.slow),
        pytest.param(238.0, 1.001023255952868, 1.1310650390335276e-05, marks=pytest.mark.slow),
        pytest.param(238.0, 1.0072146570197242, 1.1379764093731645e-05, marks=pytest.mark.slow),
        pytest.param(256.0, 1.001023255952868, 9.77614568804194e-06, marks=pytest.mark.slow),
        pytest.param(256.0, 1.7104925088436513, 1.6703268941905603e-05, marks=pytest.mark.slow),
    ],
)
def test_no_figure_is_above_that_of_an_earlier_version(sigma: float, order: float, earlier: float) -> None:
    """Figures of commit 7670f14, which its ledgers state: near order 1 rounding is all that may differ."""
    assert (1 - 1e-4) * earlier < argmax_rdp(sigma, order) < earlier


def test_the_limit_is_two_over_pi() -> None:
    """Two outcomes of a smooth law reveal 2/π of the noise's own divergence; three a little more."""
    assert bit_rdp(100.0, 2.0) / (2 / (2 * 100.0**2)) == pytest.approx(2 / math.pi, rel=1e-3)
    assert 2 / math.pi < argmax_rdp(30.0, 2.0) * 30.0**2 / 2 < 0.6405


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("order", [1.1, 2.0, 7.0, 50.0])
def test_never_above_the_noisy_totals(sigma: float, order: float) -> None:
    rounding = 1 + 1e-12
    assert 0 < argmax_rdp(sigma, order) <= order / sigma**2 * rounding
    assert 0 < bit_rdp(sigma, order) <= order / (2 * sigma**2) * rounding


def test_the_bit_is_the_worst_over_all_totals() -> None:
    """Against the finite maximum of the exact closed form, for one vote and for several."""
    from pate_fed.privacy.bounds.gnmax import exact_bit_worst_case
    from pate_fed.privacy.mechanisms.events import Protection

    for shift in (1, 3):
        protection = Protection(unit="hospital", votes_moved=shift)
        exact = exact_bit_worst_case(120, 60.0, 6.0, [2.0, 8.0], protection=protection)
        for order, value in zip((2.0, 8.0), exact, strict=True):
            assert value <= bit_rdp(6.0, order, shift=shift)
            assert value > 0.999 * bit_rdp(6.0, order, shift=shift)


def test_divergences_grow_with_the_order() -> None:
    rdp = [argmax_rdp(3.0, order) for order in (1.05, 1.5, 3.0, 6.0, 12.0)]
    assert rdp == sorted(rdp)
    # (α - 1) D is convex, so that a filter may interpolate between orders.
    moments = [(order - 1) * argmax_rdp(3.0, order) for order in (2.0, 3.0, 4.0)]
    assert moments[1] <= (moments[0] + moments[2]) / 2


@pytest.mark.parametrize("values", [(0.0, 2.0), (-1.0, 2.0), (math.nan, 2.0), (1.0, 1.0), (1.0, math.inf)])
def test_bad_numbers_are_refused(values: tuple[float, float]) -> None:
    for bound in (argmax_rdp, bit_rdp):
        with pytest.raises(InputError):
            bound(*values)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_winner_under_laplace_noise_stays_below_its_bound_and_comes_near(scale: float) -> None:
    rng, mass = np.random.default_rng(2), _laplace_masses(scale, round(40 * scale))
    orders = (1.5, 3.0, 8.0)
    highest = dict.fromkeys(orders, 0.0)
    for _ in range(300):
        n = rng.integers(0, max(3, round(2 * scale)), rng.integers(2, 5))
        moved = n + np.eye(len(n), dtype=np.int64)[1] - np.eye(len(n), dtype=np.int64)[0]
        p, q = winner_law(tuple(n), mass)[None], winner_law(tuple(moved), mass)[None]
        for order in orders:
            found = float(_divergences(p, q, order)[0]) / argmax_rdp(scale, order, kind=LAPLACE)
            highest[order] = max(highest[order], found)
    assert max(highest.values()) <= 1
    assert highest[3.0] > 0.7


@pytest.mark.parametrize("order", [1.2, 4.0])
@pytest.mark.parametrize("votes", [2, 3])
def test_votes_of_one_unit_on_any_classes_stay_below_their_bound(votes: int, order: float) -> None:
    """Every way in which 2 or 3 votes can move between classes, all from one to one other among them."""
    sigma, rng = 4.0, np.random.default_rng(votes)
    mass = gaussian_masses(sigma, 48)
    bound = argmax_rdp(sigma, order, shift=votes)
    assert bound < 0.9 * votes**2 * order / sigma**2
    worst = 0.0
    for _ in range(150):
        classes = int(rng.integers(2, 5))
        n = rng.integers(0, 6, classes)
        moved = n.copy()
        pairs = [(0, 1)] * votes if rng.random() < 0.3 else rng.integers(0, classes, (votes, 2))
        for a, b in pairs:
            moved[a] -= 1
            moved[b] += 1
        p, q = winner_law(tuple(n), mass)[None], winner_law(tuple(moved), mass)[None]
        worst = max(worst, float(_divergences(p, q, order)[0]))
    assert 0.4 * bound < worst <= bound


def test_a_unit_of_a_billion_votes_is_charged_as_its_totals() -> None:
    """A ledger may name as many; who verifies it must not run out of memory."""
    many = Protection(unit="hospital", votes_moved=10**9)
    cost = GNMax(num_teachers=9, num_classes=3, sigma=1e9).cost_asked(many)
    assert cost.rdp(Fraction(2)) == cost.as_totals.rdp(Fraction(2))
    assert moved_rdp(lambda a: argmax_rdp(3.0, a), 2.0, 10**9) == math.inf


@pytest.mark.parametrize("votes", [1, 2])
def test_votes_that_vanish_stay_below_their_bound(votes: int) -> None:
    sigma, mass, rng = 2.0, gaussian_masses(2.0, 26), np.random.default_rng(votes)
    hospital = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=votes)
    for order in (1.5, 4.0):
        cost = GNMax(num_teachers=9, num_classes=3, sigma=sigma).cost_asked(hospital)
        bound = float(cost.rdp(Fraction(order)))
        assert bound < float(cost.as_totals.rdp(Fraction(order)))
        worst = 0.0
        for _ in range(150):
            n = rng.integers(1, 7, int(rng.integers(2, 5)))
            less = n.copy()
            np.subtract.at(
                less, rng.integers(0, len(n), votes) if rng.random() < 0.5 else np.zeros(votes, int), 1
            )
            p, q = winner_law(tuple(n), mass)[None], winner_law(tuple(less), mass)[None]
            worst = max(worst, float(_divergences(p, q, order)[0]), float(_divergences(q, p, order)[0]))
        assert 0.5 * bound < worst <= bound


@pytest.mark.parametrize("kind", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize("scale", [0.4, 1.1, 3.0, 300.0])
def test_a_moved_vote_costs_no_less_than_one_that_vanishes(scale: float, kind: str) -> None:
    """A move's supremum has v to -∞ in it, so it covers votes that come or go with the number of teachers."""
    for order in (1.01, 4.0, 30.0) if scale < 100 else (1.7,):
        for votes in (1, 4):
            moved = argmax_rdp(scale, order, shift=votes, kind=kind)
            assert moved >= bit_rdp(scale, order, shift=votes, kind=kind)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("unit", ["record", "hospital"])
def test_a_unit_with_another_number_of_teachers_stays_below_its_bound(unit: str, adjacency: str) -> None:
    """Up to K teachers before and after, each with any vote: the winner, and the check's bit."""
    sigma, order, rng, mass = 4.0, 2.0, np.random.default_rng(8), gaussian_masses(4.0, 48)
    terms = make_terms(teachers_per_client=2, records_per_teacher=25, unit=unit, adjacency=adjacency)
    protection = protection_of(terms)
    mechanism = ConfidentGNMax(num_teachers=30, num_classes=3, threshold=4, sigma1=sigma, sigma2=sigma)
    costs = mechanism.cost_answered(protection), mechanism.cost_asked(protection)
    worst = [0.0, 0.0]
    for _ in range(150):
        counts = rng.integers(0 if protection.votes_vanish else 1, protection.votes_moved + 1, 2)
        if protection.votes_vanish:  # the hospital is there, or it is not
            counts[0] = 0
        others, shares = rng.integers(0, 6, 3), rng.permutation(np.eye(3))
        if rng.random() < 0.3:
            shares = np.full((3, 3), 1 / 3)
        pair = [tuple(others + rng.multinomial(k, row)) for k, row in zip(counts, shares, strict=False)]
        for here, there in itertools.permutations(pair):
            passed = [float(mass[48 + 4 - int(max(n)) :].sum()) for n in (here, there)]
            for place, (p, q) in enumerate(
                [
                    (winner_law(here, mass), winner_law(there, mass)),
                    (np.array([passed[0], 1 - passed[0]]), np.array([passed[1], 1 - passed[1]])),
                ]
            ):
                worst[place] = max(worst[place], float(_divergences(p[None], q[None], order)[0]))
    for found, cost in zip(worst, costs, strict=True):
        bound = float(cost.rdp(Fraction(order)))
        assert 0.5 * bound < found <= bound < float(cost.as_totals.rdp(Fraction(order)))


def test_sums_of_hospitals_shares_stay_below_their_bound() -> None:
    """Noise that is a sum of discrete Gaussians, also of more than are counted on."""
    party, hospitals, order = 1.5, 3, 4.0
    one, mass = gaussian_masses(party, 20), np.ones(1)
    for _ in range(hospitals):
        mass = np.convolve(mass, one)
    mechanism = DistributedGNMax(
        num_teachers=9, num_classes=3, threshold=None, sigma_party=party, least_honest=hospitals
    )
    cost = mechanism.cost_asked(Protection())
    bound, totals = float(cost.rdp(Fraction(order))), float(cost.as_totals.rdp(Fraction(order)))
    rng, worst = np.random.default_rng(5), 0.0
    for more in (mass, np.convolve(mass, one)):
        for _ in range(60):
            n = rng.integers(0, 7, 3)
            moved = n + np.array([-1, 1, 0])
            p, q = winner_law(tuple(n), more)[None], winner_law(tuple(moved), more)[None]
            worst = max(worst, float(_divergences(p, q, order)[0]))
    assert 0.9 * bound < worst <= bound < 0.75 * totals
    seen = hospital_noise(sigma_party=party, survivors=hospitals).cost(1, Protection(), num_classes=3)
    assert seen is not None and float(seen.rdp(Fraction(order))) >= totals  # the coordinator sees the totals
