"""RDP of a release with smooth sensitivity: the worst pair of Gaussians, and the paper's formula below it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from published import gnss_rdp_printed
from scipy.integrate import quad

from pate_fed.privacy.bounds.smooth import gnss_rdp


def divergence(order: float, shift: float, ratio: float, sigma: float) -> float:
    """Rényi divergence of N(0, σ²) from N(shift, (ratio σ)²), by integration."""

    def log_density(x: float, mean: float, scale: float) -> float:
        return -(((x - mean) / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))

    def inside(x: float) -> float:
        p, q = log_density(x, 0.0, sigma), log_density(x, shift, ratio * sigma)
        return math.exp(order * p + (1 - order) * q)

    spread = ratio * sigma / math.sqrt((1 - order) + order * ratio**2)  # of the integrand, a Gaussian
    middle = shift * (1 - order) / ((1 - order) + order * ratio**2)
    total, _ = quad(inside, middle - 12 * spread, middle + 12 * spread, epsabs=0, epsrel=1e-11, limit=200)
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 4.0, 14.0, 31.7])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.4])
def test_the_release_costs_what_its_worst_pair_diverges(order: float, share: float) -> None:
    beta, sigma = share / order, 5.0
    charged = gnss_rdp(order, beta=beta, sigma_ss=sigma)
    ratios = np.exp(np.linspace(-beta, beta, 9))
    found = [
        divergence(order, shift * min(1.0, ratio), ratio, sigma) for ratio in ratios for shift in (0.3, 1.0)
    ]
    assert max(found) == pytest.approx(charged, rel=1e-6)


def test_the_papers_formula_is_below_the_true_cost() -> None:
    """P18, Theorem 23 at the settings that α β = 0.4 gives: why it is not what is charged."""
    order, beta = 14.0, 0.4 / 14
    sigma = math.sqrt(order * math.exp(2 * beta) / 0.35)
    printed = gnss_rdp_printed(order, beta=beta, sigma_ss=sigma)
    true = divergence(order, math.exp(-beta), math.exp(-beta), sigma)
    assert printed == pytest.approx(0.4430, abs=1e-3)
    assert true == pytest.approx(0.729, abs=2e-3)
    assert gnss_rdp(order, beta=beta, sigma_ss=sigma) == pytest.approx(true, rel=1e-6)
