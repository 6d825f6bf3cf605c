"""RDP of releasing a number under Gaussian noise with smooth sensitivity (GNSS; P18, appendix B).

The cost is derived here, as the paper's is too small. P18 is arXiv 1802.08908; NRS07 is Nissim, Raskhodnikova
and Smith, STOC 2007.
"""

from __future__ import annotations

import math

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.special import chdtri, ndtri
from pate_fed.privacy.checks import check_delta, check_epsilon, is_number


def gnss_rdp(order: float, *, beta: float, sigma_ss: float) -> float:
    """RDP of releasing f(D) + SS_β(D) N(0, σ_ss²) at one order α, for α (1 - e^(-2β)) < 1.

    The divergence of two Gaussians whose standard deviations differ by a factor up to e^β and whose means
    differ by at most the smaller smooth sensitivity: with u = e^(-2β) and v = 1 - α + α u it is at most
    α u/(2 σ_ss² v) + (-α β - ½ ln v)/(α - 1), and the other direction of u is smaller. This is exact for the
    worst pair; P18's Theorem 23 as printed (`gnss_rdp_printed`) is below it where α β is above about 0.3.

    Raises:
        InputError: β below 0, σ_ss not above 0, or an order outside (1, 1/(1 - e^(-2β))).
    """
    beta = _check_release(beta, sigma_ss)
    most = -1 / math.expm1(-2 * beta) if beta > 0 else math.inf
    if not is_number(order) or not 1 < order < most:
        raise InputError(f"order={order!r}: must be above 1 and below 1/(1 - exp(-2 beta))={most:g}")
    narrower, wider = (_gaussian_pair(order, log_u, sigma_ss) for log_u in (-2 * beta, 2 * beta))
    return max(narrower, wider)


def _gaussian_pair(order: float, log_u: float, sigma_ss: float) -> float:
    """Divergence of N(0, 1) from N(d, u), both times σ_ss², for the largest d² = min(1, u)."""
    v = 1 + order * math.expm1(log_u)
    mean = order * min(1.0, math.exp(log_u)) / (2 * sigma_ss**2 * v)
    return mean + (order * log_u - math.log(v)) / (2 * (order - 1))


def gnss_rdp_printed(order: float, *, beta: float, sigma_ss: float) -> float:
    """P18, Theorem 23 as it is printed, to compare with published figures: it is too small.

    α e^(2β)/σ_ss² + (β α - ½ ln(1 - 2 α β))/(α - 1), for 1 < α < 1/(2β).

    Raises:
        InputError: β below 0, σ_ss not above 0, or an order outside (1, 1/(2β)).
    """
    _check_release(beta, sigma_ss)
    most = 1 / (2 * beta) if beta > 0 else math.inf
    if not is_number(order) or not 1 < order < most:
        raise InputError(f"order={order!r}: must be above 1 and below 1/(2 beta)={most:g}")
    variable = (beta * order - math.log1p(-2 * order * beta) / 2) / (order - 1)
    return order * math.exp(2 * beta) / sigma_ss**2 + variable


def _check_release(beta: float, sigma_ss: float) -> float:
    if not is_number(beta) or not 0 <= beta < math.inf:
        raise InputError(f"beta={beta!r}: must be finite and at least 0")
    if not is_number(sigma_ss) or not 0 < sigma_ss < math.inf:
        raise InputError(f"sigma_ss={sigma_ss!r}: must be finite and above 0")
    return float(beta)


def nrs_parameters(epsilon: float, delta: float) -> tuple[float, float]:
    """α and β of a pure (ε, δ) release with smooth sensitivity (NRS07, Lemma 2.9); for comparison only.

    α = √(t² + ε/2) - t with t = Φ^-1(1 - δ/2), β = ε/(2c) with c the upper δ/2 quantile of χ² with one
    degree of freedom.

    Raises:
        InputError: ε not above 0, or δ outside (0, 1).
    """
    epsilon, half = check_epsilon(epsilon), check_delta(delta) / 2
    t = -float(ndtri(half))
    # √(t² + ε/2) - t loses its digits where ε is small.
    alpha = (epsilon / 2) / (math.sqrt(t * t + epsilon / 2) + t)
    return alpha, epsilon / (2 * float(chdtri(1, half)))
