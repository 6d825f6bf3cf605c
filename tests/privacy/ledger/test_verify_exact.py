"""The second tier of the independent verifier, beside what is stated and votes that an adversary may give."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import winner_search
from scipy.stats import binom

from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, LNMax, capped_cost_epsilon
from pate_fed.privacy.bounds.control import CheckedQuery, checked_epsilon
from pate_fed.privacy.ledger import verify_exact, verify_independent


@pytest.mark.parametrize(
    ("mechanism", "asked", "answered", "delta"),
    [
        (GNMax(sigma=6.0, classes=3), 4, 4, 1e-7),
        (GNMax(sigma=6.0, classes=3), 80, 80, 1e-5),
        (LNMax(scale=1.5, classes=3), 3, 3, 1e-7),
        (ConfidentGNMax(classes=3, threshold=8, sigma1=6.0, sigma2=4.0, num_teachers=12), 6, 4, 1e-5),
        (ConfidentGNMax(classes=3, threshold=8, sigma1=6.0, sigma2=4.0, num_teachers=12), 90, 40, 1e-7),
    ],
)
def test_the_second_tier_is_within_one_percent_and_three_beyond_sixty_outcomes(
    mechanism: Any, asked: int, answered: int, delta: float
) -> None:
    """And never below votes of two classes that are nearly level at every query.

    Beyond, it begins with a Gaussian where what is stated goes on from the value of 20 queries.
    """
    stated = capped_cost_epsilon(mechanism.cost(asked, answered, RECORD), delta)
    charge = mechanism.name, mechanism.parameters(), asked, answered
    protection = asdict(RECORD)
    terms = {"protection": protection, "delta": delta, "sanitise": None}
    first, _ = verify_independent.own_epsilon(terms, [charge])
    own = min(first, verify_exact.votes_epsilon([charge], protection, delta, first, honest=False))
    assert own <= (1.01 if asked <= verify_exact.EVERY_STATE else 1.035) * stated
    noise = "laplace" if mechanism.name == "lnmax" else "gaussian"
    given = mechanism.parameters()
    level = two_classes(noise, given.get("sigma2", given.get("sigma", given.get("scale"))))
    k = np.arange(answered + 1)
    p, q = binom.logpmf(k, answered, level), binom.logpmf(k, answered, 1 - level)
    assert np.maximum(0.0, np.exp(p) - np.exp(own + q)).sum() <= delta


@pytest.mark.parametrize(
    ("teachers", "threshold", "sigma1", "sigma2", "asked", "delta", "classes"),
    [
        (278, 206, 1.63, 0.934, 10, 7.6e-5, 10),
        (50, 40, 30.0, 8.0, 100, 1e-5, 10),
        (50, 60, 30.0, 8.0, 100, 1e-5, 2),
        (250, 300, 200.0, 40.0, 1500, 1e-5, 2),
        pytest.param(250, 200, 150.0, 40.0, 1250, 1e-5, 10, marks=pytest.mark.slow),
        pytest.param(50, 40, 30.0, 8.0, 600, 1e-7, 10, marks=pytest.mark.slow),
    ],
)
def test_an_honest_figure_of_whole_queries_is_not_called_wrong(
    teachers: int, threshold: int, sigma1: float, sigma2: float, asked: int, delta: float, classes: int
) -> None:
    """Where T is far above a tie, so that bit and winner together are far below the two apart; or many."""
    two = classes == 2
    query = CheckedQuery(threshold=threshold, sigma1=sigma1, sigma2=sigma2, teachers=teachers, two=two)
    stated = checked_epsilon(query, asked, delta)
    given = {"sigma1": sigma1, "sigma2": sigma2, "threshold": threshold, "num_teachers": teachers}
    charge = "confident-gnmax", {**given, "num_classes": classes}, asked, asked
    first = 1.12 * stated  # about what the first tier knows of them apart
    own = verify_exact.votes_epsilon([charge], asdict(RECORD), delta, first, honest=True)
    near = 1.05 if asked <= verify_exact.EVERY_STATE else 1.08  # of which 1.1 is asked
    assert 0.98 * stated <= own <= near * stated


def test_what_it_cannot_know_has_no_figure_and_nothing_released_costs_nothing() -> None:
    """Without the number of teachers the first tier stands: the stated ε may be of honest votes."""
    given = {"sigma1": 6.0, "sigma2": 4.0, "threshold": 8}

    def found(name: str, given: dict[str, Any], asked: int, answered: int) -> float:
        charge = name, given, asked, answered
        return verify_exact.votes_epsilon([charge], asdict(RECORD), 1e-5, 5.0, honest=True)

    assert found("confident-gnmax", given, 3, 3) == np.inf
    assert found("confident-gnmax", {**given, "num_teachers": 5}, 3, 3) == np.inf  # far above all votes
    assert found("my_mechanism:Median", {"sigma": 4.0}, 3, 3) == np.inf
    assert found("gnmax", {"sigma": 4.0}, 3, 0) == 0.0


@pytest.mark.parametrize("scale", [0.9, 3.0])
def test_a_winner_s_places_hold_wherever_the_votes_are(scale: float) -> None:
    """The gain of each law, far outside the lattice too, is below the rows' that stand for such votes."""
    grid = verify_exact.Grid(0.1, 40)
    winner = verify_exact.Winner(grid, "gaussian", scale, 1)
    windows = grid.windows(np.maximum(0.0, 0.3 - 0.1 * grid.x), winner.span)
    noise, (gap_a, gap_b, high) = winner_search.Noise("gaussian", scale), winner.places
    known = winner.rows @ windows
    far = np.unique(np.rint(scale * np.array([-40, -12, -9, -5, -2, -1, 0, 1, 2, 4, 8, 9, 10, 12, 25])))
    for u in far.astype(int):
        for v in far.astype(int):
            here, there = (noise.crowd(np.array([u + d]), np.array([v - d])) for d in (0, -1))
            gain = (grid.sticks(here.T, there.T, winner.span) @ windows)[0]
            sides = [gap_a >= u - v, gap_b >= v - u] + [high <= max(u, v)] * bool(abs(max(u, v)) < 8 * scale)
            for side in sides:
                most = known[side].max(axis=0, initial=0.0) + verify_exact.SLACK
                assert (gain <= most).all(), (u, v)


def two_classes(noise: str, scale: float) -> float:
    """The chance that the one ahead by a vote wins; a vote that moves makes it the chance to lose."""
    z = np.abs(np.arange(-400, 401)) / scale
    mass = np.exp(-(z * z / 2 if noise == "gaussian" else z))
    apart = np.convolve(mass / mass.sum(), mass / mass.sum())
    return float(apart[800:].sum() + apart[799] / 2)
