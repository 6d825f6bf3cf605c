"""Integer sums with discrete Gaussian noise on every entry: the exact Gaussian δ of one release.

Theorem (docs/proofs/class-sums.md). Whole numbers of any dimension d whose neighbours are at most Δ apart in
the L2 norm, with independent discrete Gaussian noise of σ on each, have ε(δ) of at most

    2τ + ε_μ(δ e^-τ),   μ = Δ / √(σ² - 2),   τ = 3e-17 d,

where ε_μ is the exact ε of the continuous Gaussian mechanism (Balle and Wang 2018, Theorem 8). The noise is
within a factor e^±τ of continuous Gaussian noise of variance σ² - 2, rounded at random (Peikert 2010, Theorem
3.1), and rounding reads no data. A sum of h discrete Gaussians of σ/√h adds to τ how far it is from one.
"""

from __future__ import annotations

import math
from fractions import Fraction

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN
from pate_fed.privacy.checks import check_count, check_scale

LEAST_SIGMA = 2.0  # below, random rounding would take half of the noise
ROUNDED = 2  # variance of the random rounding
_SLACK = Fraction(3, 10**17)  # of ln of a ratio, for each entry: 2η/(1 - η), η = 2 exp(-4π²) (1 + 1e-30)


def sums_cost(*, squared: int, sigma: float, entries: int, distance: Fraction = Fraction(0)) -> OutcomeCost:
    """Cost of one release of whole numbers, `entries` of them, with noise of `sigma` on each.

    `squared` is the squared L2 sensitivity, in the numbers' own units. `distance` bounds ln of the ratio of
    one entry's noise to the discrete Gaussian, where it is a sum of hospitals' shares. Beside other releases
    it is ρ = squared/(2σ²) (arXiv 2004.00010, Theorem 14), and a quarter of the distance of all entries
    (arXiv 2102.06387, Proposition 14).

    Raises:
        InputError: a sensitivity or a number of entries below 1, or σ below 2.
    """
    check_count("squared", squared, least=1), check_count("entries", entries, least=1)
    if check_scale("sigma", sigma) < LEAST_SIGMA:
        raise InputError(f"sigma={sigma!r}: must be at least {LEAST_SIGMA:g} of the lattice's steps")
    variance = Fraction(sigma) ** 2
    # 1/μ, rounded down: 2^-50 is more than a root and a quotient can be off.
    scale = math.sqrt((variance - ROUNDED) / squared) * (1 - 2**-50)
    return OutcomeCost(
        of="sums",
        kind=GAUSSIAN,
        scale=scale,
        votes=1,
        totals=Fraction(squared) / (2 * variance) + distance * entries / 4,
        distance=(_SLACK + distance) * entries,
    )
