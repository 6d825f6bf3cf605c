"""The value of few queries on a grid: above every real law's, by every rounding, and near the worst votes."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import winner_search
from numpy.typing import NDArray
from scipy.optimize import brentq
from winner_laws import winner_laws

from pate_fed.privacy import RECORD, GNMax, LNMax, capped_cost_epsilon
from pate_fed.privacy.bounds import control, values
from pate_fed.privacy.bounds.control import CheckedQuery, checked_epsilon
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, NoiseLaw
from pate_fed.privacy.bounds.values import Bit, Grid, Outcome, Query, Values, winner_of

Floats = NDArray[np.float64]
GRID, SIZE, CUT = Grid(0.05), 120, 1e-12
QUERY = CheckedQuery(threshold=5, sigma1=4.0, sigma2=1.5, teachers=6)


def at(value: Floats, r: Floats, grid: Grid = GRID) -> Floats:
    """The value at any r > 0: chords between the grid's places, and exchange below 1. By hand."""
    places = np.exp(grid.step * np.arange(len(value)))

    def from_one_on(r: Floats) -> Floats:
        found: Floats = np.interp(r, places, value)
        return found

    found: Floats = np.where(r >= 1, from_one_on(r), 1 - r + r * from_one_on(1 / np.clip(r, 1e-300, 1.0)))
    return found


def some_values(grid: Grid = GRID) -> list[Floats]:
    x = grid.step * np.arange(SIZE)
    return [
        np.zeros(SIZE),  # before the first outcome
        np.maximum(0.0, 0.4 - 0.1 * np.expm1(x)),  # one that bends once
        np.exp(-x) * 0.2 / (1 + x),
    ]


def made(value: Floats, p: Floats, q: Floats, grid: Grid = GRID) -> Floats:
    """E_p[f(r q/p)] at the grid's places, outcome by outcome; what a float takes for 0 adds 1e-300."""
    r = np.exp(grid.step * np.arange(SIZE))
    found = np.zeros(SIZE)
    for one, other in zip(p, q, strict=True):
        if one > 0:
            found += one * at(value, r * other / one, grid)
    return found


@pytest.mark.parametrize(("kind", "scale"), [(GAUSSIAN, 0.8), (GAUSSIAN, 5.0), (LAPLACE, 1.5)])
def test_no_votes_make_more_of_a_value_by_who_wins(kind: str, scale: float) -> None:
    """Two classes, three, two among a crowd, near and far outside of the lattice; moved to and fro."""
    winner, noise = winner_of(GRID, NoiseLaw(kind, scale), CUT), winner_search.Noise(kind, scale)
    rng = np.random.default_rng(1)
    for value in some_values():
        most, best = winner.most(value), np.zeros(SIZE)
        for wide in (1.0, 4.0, 30.0):
            u, v = np.rint(rng.normal(0, wide * scale + 1, (2, 60))).astype(np.int64)
            for law in (lambda u, v: noise.two(u - v), noise.crowd, noise.three):
                for p, q in zip(law(u, v), law(u - 1, v + 1), strict=True):
                    best = np.maximum(best, np.maximum(made(value, p, q), made(value, q, p)))
        assert (best <= most + 1e-15).all()
        assert most[0] - value[0] <= 1.1 * (best[0] - value[0])


@lru_cache(maxsize=10_000)
def released(votes: tuple[int, ...], query: CheckedQuery) -> Floats:
    """Law of what a query releases: no answer, or which of up to three classes wins."""
    noise, check = (winner_search.Noise(GAUSSIAN, sigma) for sigma in (query.sigma2, query.sigma1))
    refused = float(check.below(np.array(query.threshold - max(votes)))[0])
    if len(votes) == 2:
        law = noise.two(np.array([votes[0] - votes[1]]))[0]
    else:
        law = noise.three(*(np.array([each - votes[2]]) for each in votes[:2]))[0]
    return np.concatenate(([refused], (1 - refused) * law))


def moves(votes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Those with one vote moved."""
    found = []
    for a, b in itertools.permutations(range(len(votes)), 2):
        if votes[a]:
            found.append(tuple(each - (at == a) + (at == b) for at, each in enumerate(votes)))
    return found


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        CheckedQuery(threshold=4, sigma1=1.5, sigma2=1.0, teachers=5),
        CheckedQuery(threshold=7, sigma1=2.0, sigma2=1.5, teachers=5, two=True),
        CheckedQuery(threshold=40, sigma1=0.6, sigma2=1.5, teachers=4),  # hardly ever answered
        CheckedQuery(threshold=-40, sigma1=0.6, sigma2=1.5, teachers=4),  # always
    ],
)
def test_no_votes_make_more_of_a_value_by_a_whole_query(query: CheckedQuery, classes: int) -> None:
    """All histograms, abstaining teachers too, and all moves."""
    whole = _whole(query)
    every = [
        votes
        for votes in itertools.product(range(query.teachers + 1), repeat=2 if query.two else classes)
        if sum(votes) <= query.teachers
    ]
    for value in some_values():
        most = whole.most(value)
        for votes in every:
            for other in moves(votes):
                found = made(value, released(votes, query), released(other, query))
                assert (found <= most + 1e-15).all(), (votes, other)


def _whole(query: CheckedQuery) -> Outcome:
    return Query(GRID, CUT, **asdict(query))


def of_several(votes: NDArray[np.int64], moved: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Votes of which so many went from several classes to several, in half of the cases from two to one."""
    other = votes.copy()
    for row in other:
        for _ in range(moved):
            row[rng.choice(np.flatnonzero(row))] -= 1
            row[rng.integers(row.size)] += 1
    return other


@pytest.mark.parametrize(("moved", "scale"), [(2, 14.0), (3, 26.0), (1, 52.0)])
def test_no_several_votes_make_more_of_a_value_by_who_wins(moved: int, scale: float) -> None:
    """1,000 histograms of four classes, votes moved from several to several (Lemma 9); and more noise."""
    step = 0.3 * moved / scale
    rng, grid = np.random.default_rng(moved), Grid(step)
    winner = winner_of(grid, NoiseLaw(GAUSSIAN, scale), CUT, moved)
    assert 0 < winner.mixed < 1e-8
    votes = rng.multinomial(int(4 * scale), rng.dirichlet([3.0] * 4, 1000))
    votes[::2] = np.stack([votes[::2, 0]] * 2 + [*votes[::2, 2:].T], axis=1)
    p, q = (winner_laws(each, scale) for each in (votes, of_several(votes, moved, rng)))
    noise, gap = winner_search.Noise(GAUSSIAN, scale), np.arange(-3 * int(scale), 4 * int(scale))
    for value in some_values(grid):
        most = winner.most(value.copy())
        every = [(p, q), (q, p), (noise.two(gap), noise.two(gap - 2 * moved))]
        best = [
            np.max([made(value, *pair, grid) for pair in zip(*laws, strict=True)], axis=0) for laws in every
        ]
        assert (np.max(best, axis=0) <= most + 1e-7).all()
        assert most[0] - value[0] <= 1.15 * (best[2][0] - value[0])


@pytest.mark.parametrize(("moved", "sigma2"), [(2, 8.0), (3, 12.0), (1, 52.0)])
def test_no_several_votes_make_more_of_a_value_by_a_whole_query(moved: int, sigma2: float) -> None:
    """1,000 histograms likewise, ties and abstaining teachers among them, with the threshold's bit."""
    query = CheckedQuery(threshold=14, sigma1=9.0, sigma2=sigma2, teachers=24, votes=moved)
    whole, rng = _whole(query), np.random.default_rng(5)
    votes = rng.multinomial(24, rng.dirichlet([0.7] * 3, 1000))
    votes[::3] = rng.multinomial(12, [0.5, 0.5, 0.0], 334)
    votes[1::3, 0] = votes[1::3, 1] = 11
    votes[1::3, 2] = 2
    check, other = winner_search.Noise(GAUSSIAN, query.sigma1), of_several(votes, moved, rng)
    laws = []
    for each in (votes, other):
        refused = check.below(query.threshold - each.max(axis=1))[0][:, None]
        laws.append(np.concatenate((refused, (1 - refused) * winner_laws(each, sigma2)), axis=1))
    for value in some_values():
        most = whole.most(value.copy())
        best = np.max(
            [made(value, *pair) for p, q in zip(*laws, strict=True) for pair in ((p, q), (q, p))], axis=0
        )
        assert (best <= most + 1e-7).all()
        assert best[0] - value[0] >= 0.3 * (most[0] - value[0])


def test_more_noise_never_costs_more_where_the_lattice_gets_gaps() -> None:
    """Up to 50 votes each point is in a table, from there on every second one."""

    def stated(sigma: float) -> list[float]:
        query = partial(Query, threshold=20, sigma1=15.0, sigma2=sigma, teachers=25)
        known = [
            Values([make], variance=2 / sigma**2, near=0.5, delta=1e-5)
            for make in (query, partial(winner_of, law=NoiseLaw(GAUSSIAN, sigma)))
        ]
        return [each.epsilon((times,)) for each in known for times in (1, 8)]

    for one, two in pairwise(zip(*map(stated, (50.0, 50.1)), strict=True)):
        assert 0.97 * one[0] < one[1] < 1.0002 * one[0] and two[0] > two[1]


def exact_bits(sigma: float, reach: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Pr[Z >= j] and Pr[Z < j] in 40 digits, for j from -reach to reach."""
    mass = {z: mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for z in range(-60, 61)}
    whole = mpmath.fsum(mass.values())
    above = [mpmath.fsum(m for z, m in mass.items() if z >= j) / whole for j in range(-reach, reach + 1)]
    return [(each, 1 - each) for each in above]


def exact_stick(p: list[mpmath.mpf], q: list[mpmath.mpf], x: mpmath.mpf) -> mpmath.mpf:
    t = mpmath.exp(x)
    return mpmath.fsum(max(0, a - b / t) for a, b in zip(p, q, strict=True)) - max(0, 1 - 1 / t)


def short_by(rounding: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many sticks of bits are below what they are in 40 digits."""
    monkeypatch.setattr(values, "_ROUNDING", rounding)
    bit = Bit(GRID, NoiseLaw(GAUSSIAN, 2.0), CUT)
    half = len(bit.rows) // 2
    with mpmath.workdps(40):
        step = mpmath.mpf(GRID.step)
        laws = exact_bits(2.0, (half - 1) // 2 + 1)[1:]
        rows = zip(bit.rows, laws, laws[1:], strict=False)
        return sum(
            float(found) < exact_stick(list(p), list(q), (place - bit.span) * step) - mpmath.mpf("1e-38")
            for row, p, q in rows
            for place, found in enumerate(row)
        )


def test_every_stick_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is below the exact one; without what is added to chances many are."""
    assert short_by(values._ROUNDING, monkeypatch) == 0
    assert short_by(0.0, monkeypatch) > 10


def test_two_bits_reveal_what_enumeration_in_forty_digits_says() -> None:
    """The second bit's threshold is chosen after the first; from above, and within 1 %."""
    law = NoiseLaw(GAUSSIAN, 2.0)
    known = Values([partial(Bit, law=law)], variance=0.25, near=4.0, delta=1e-4)
    stated = known.epsilon((2,))
    with mpmath.workdps(40):
        laws = exact_bits(2.0, 16)
        pairs = [*pairwise(laws), *zip(laws[1:], laws, strict=False)]

        def delta(epsilon: float) -> mpmath.mpf:
            def after(p: mpmath.mpf, r: mpmath.mpf) -> mpmath.mpf:
                return p * max(sum(max(0, a - r * b) for a, b in zip(*each, strict=True)) for each in pairs)

            e = mpmath.exp(epsilon)
            return max(sum(after(p, e * q / p) for p, q in zip(*each, strict=True)) for each in pairs)

        assert delta(stated) <= 1e-4 < delta(stated * 0.99)


def winners(sigma: float, delta: float = 1e-5) -> Values:
    return Values(
        [partial(winner_of, law=NoiseLaw(GAUSSIAN, sigma))], variance=2 / sigma**2, near=5.0, delta=delta
    )


@pytest.mark.parametrize(
    "counts",
    [[1, 3, 20, 21, 60], pytest.param([1, 2, 3, 8, 19, 20, 21, 22, 60, 150], marks=pytest.mark.slow)],
)
def test_more_queries_never_cost_less(counts: list[int]) -> None:
    """Also where a Gaussian's profile goes on from the value of the last that is known state by state."""
    whole = [checked_epsilon(QUERY, count, 1e-5) for count in counts]
    alone = [capped_cost_epsilon(GNMax(sigma=5.0, classes=3).cost(n, n, RECORD), 1e-5) for n in counts]
    laplace = [capped_cost_epsilon(LNMax(scale=3.0, classes=3).cost(n, n, RECORD), 1e-5) for n in counts]
    for found in (whole, alone, laplace):
        assert all(one < two for one, two in pairwise(found))
    assert checked_epsilon(QUERY, 3, 1e-7) > whole[counts.index(3)]


def test_a_gaussian_stands_above_the_value_where_it_goes_on_from() -> None:
    """And what follows is above the value itself, which takes longer, and within 2 % of it."""
    known, slack = winners(5.0), 1e-7
    value, variance = known._value((20,)), known.variance((20,), slack)
    x = np.linspace(-0.999, 0.999, 4001) * known._grid.step * (len(value) - 1)
    places = np.exp(known._grid.step * np.arange(len(value)))
    r = np.exp(np.abs(x))
    stated = np.interp(r, places, value)
    mu = math.sqrt(variance)
    profile = np.array([values._near_profile(np.array([each]), variance)[0] for each in np.abs(x)])
    assert (stated <= profile + slack).all() and (stated > profile - 0.02).all()
    more = capped_cost_epsilon(GNMax(sigma=5.0, classes=3).cost(40, 40, RECORD), 1e-5)
    itself = Values(
        [partial(winner_of, law=NoiseLaw(GAUSSIAN, 5.0))], variance=2 / 25, near=8.0, delta=1e-5
    ).epsilon((40,))
    assert itself <= more <= 1.02 * itself
    assert gaussian_dp_epsilon(mu, 1e-5) >= known.epsilon((20,))
    assert known.variance((20,), 1e-30) == math.inf
    # Beyond the grid the value is kept, and slack that falls with r falls below it: that does not do there.
    last, tilted = known.last((20,)), (math.log(slack) + 2 * x[-1], 2.0)
    assert last > 0 and math.isfinite(known.variance((20,), last, *tilted))
    assert known.variance((20,), last * (1 - 1e-9), *tilted) == math.inf


@pytest.mark.parametrize("times", [2, 3, 5])
def test_few_labels_are_within_a_few_percent_of_what_votes_reach(times: int) -> None:
    """From below: the best that a search over votes, each query's by itself, finds."""
    noise, delta = winner_search.Noise(GAUSSIAN, 6.0), 1e-5
    gaps = np.arange(-58, 2, 3)  # a vote moves from the class behind
    here, there = noise.two(gaps), noise.two(gaps - 2)
    best = 0.0
    for one, other in itertools.product(range(len(gaps)), repeat=2):
        p, q = np.ones(1), np.ones(1)
        for at in (one, *[other] * (times - 1)):
            p, q = np.multiply.outer(p, here[at]).ravel(), np.multiply.outer(q, there[at]).ravel()

        def over(epsilon: float, p: Floats = p, q: Floats = q) -> float:
            return float(np.maximum(0.0, p - math.exp(epsilon) * q).sum()) - delta

        if over(best) > 0:
            best = float(brentq(over, best, 20.0))
    stated = capped_cost_epsilon(GNMax(sigma=6.0, classes=3).cost(times, times, RECORD), delta)
    print(f"{times} labels: {stated:.4f} is stated, {best:.4f} is reached: {stated / best:.3f}")
    assert best <= stated <= 1.05 * best


def test_where_no_table_reaches_control_stands() -> None:
    wide = CheckedQuery(threshold=200, sigma1=150.0, sigma2=20_000.0, teachers=250)
    several = CheckedQuery(threshold=5, sigma1=4.0, sigma2=1.5, teachers=6, votes=2)
    for query in (wide, several):
        assert control._few_queries(query, 1e-5) is None
        assert 0 < checked_epsilon(query, 3, 1e-5) < math.inf
