"""Tails of integer noise: brute force, far tails, ties as losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pate_fed.privacy.bounds.gnmax import gnmax_log_q
from pate_fed.privacy.bounds.noise_law import log_tail_gaussian, log_tail_gaussian_difference


def masses(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-math.ceil(12 * sigma) - 10, math.ceil(12 * sigma) + 11)
    p = np.exp(-((x / sigma) ** 2) / 2)
    return x, p / p.sum()


@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 2.3, 40.0])
def test_integer_tails_by_brute_force(sigma: float) -> None:
    x, p = masses(sigma)
    difference = np.convolve(p, p[::-1])
    k = np.arange(2 * x[0], 2 * x[-1] + 1)
    for gap in (-7, -1, 0, 1, 2, 3, round(2 * sigma), round(5 * sigma)):
        single = np.exp(log_tail_gaussian(np.array([gap]), sigma))[0]
        double = np.exp(log_tail_gaussian_difference(np.array([gap]), sigma))[0]
        assert single == pytest.approx(p[x >= gap].sum(), rel=1e-10, abs=1e-300)
        assert double == pytest.approx(difference[k >= gap].sum(), rel=1e-10, abs=1e-300)


def test_the_note_s_examples_of_ties_as_losses() -> None:
    for sigma, gap, discrete, continuous in ((1.0, 3, 0.0355, 0.0169), (40.0, 10, 0.4333, 0.4298)):
        votes = [[gap + 5, 5]]
        assert np.exp(gnmax_log_q(votes, sigma, discrete=True))[0] == pytest.approx(discrete, abs=5e-5)
        assert np.exp(gnmax_log_q(votes, sigma))[0] == pytest.approx(continuous, abs=1e-4)


def test_far_tails_do_not_underflow() -> None:
    tail = log_tail_gaussian_difference(np.array([5000]), 1.0)[0]
    assert tail == pytest.approx(stats.norm.logsf(5000 / math.sqrt(2)), rel=1e-3)
    assert np.isfinite(log_tail_gaussian(np.array([10**6]), 0.5)).all()
    assert log_tail_gaussian(np.array([-5000]), 1.0)[0] == 0.0


@pytest.mark.parametrize("gap", [0, 1, 100])
def test_wide_noise_needs_no_long_table(gap: int) -> None:
    assert np.exp(log_tail_gaussian(np.array([gap]), 1e8))[0] == pytest.approx(0.5, abs=1e-5)
