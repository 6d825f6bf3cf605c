"""Bounds of papers that nothing here charges: what they print, to hold ours and the oracle's against.

Weighting the argmax by the chance of an answer, as the scripts of P18 (arXiv 1802.08908) do, averages ledgers
and bounds nothing; `joint_rdp` does, and costs a few percent more: Rényi divergence of a mixture over the
public bit, with the argmax bounded given that the bit says "answered". NRS07 is Nissim, Raskhodnikova and
Smith, STOC 2007; LDP is Tang et al., PoPETs 2022.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, ndtri

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import confident_rho, gaussian_dp_epsilon, round_up
from pate_fed.privacy.bounds.gnmax import effective_sigma, gnmax_rdp, gnmax_rdp_from_log_q, log_answered
from pate_fed.privacy.bounds.smooth import VoteMoves, check_release, gnmax_sensitivity, summed_curve
from pate_fed.privacy.checks import (
    Floats,
    check_count,
    check_delta,
    check_epsilon,
    check_histograms,
    check_orders,
    check_sigma,
    is_number,
)
from pate_fed.privacy.protection import RECORD, Protection


def joint_rdp(
    totals: ArrayLike,
    orders: ArrayLike,
    *,
    threshold: float,
    sigma1: float,
    sigma2: float,
    discrete: bool = False,
    data_dependent: bool = True,
    protection: Protection = RECORD,
) -> Floats:
    """RDP of each Confident-GNMax query before it is known whether it is answered.

    max over v' in {v-1, v, v+1} and both directions of
    1/(α-1) ln[(1-p)^α (1-p')^(1-α) + p^α p'^(1-α) e^((α-1) r(α))], with p the chance of an answer and r the
    argmax's curve: Theorem 6, of which only the forward direction is proven, or α/σ2² where not
    `data_dependent`, which is proven in both.

    Shapes: `totals` (queries, classes) to (queries, orders).

    Raises:
        InputError: totals that are no counts, or parameters out of range.
    """
    votes, grid = check_histograms(totals), check_orders(orders)
    if data_dependent:
        argmax = gnmax_rdp(votes, sigma2, grid, discrete=discrete, protection=protection)
    else:
        argmax = np.broadcast_to(grid / effective_sigma(sigma2, protection) ** 2, (len(votes), grid.size))
    top = votes.max(axis=1)
    here = log_answered(top, threshold, sigma1, discrete=discrete)
    worst = np.zeros(argmax.shape)
    for step in (-protection.top, 0, protection.top):
        there = log_answered(top + step, threshold, sigma1, discrete=discrete)
        np.maximum(worst, _mixture(here, there, argmax, grid), out=worst)
        np.maximum(worst, _mixture(there, here, argmax, grid), out=worst)
    return worst


def _mixture(p: tuple[Floats, Floats], q: tuple[Floats, Floats], argmax: Floats, orders: Floats) -> Floats:
    """The divergence of the law `p` of the bit from `q`, its "yes" widened by the argmax's curve."""
    yes, no = (orders * a[:, None] + (1 - orders) * b[:, None] for a, b in zip(p, q, strict=True))
    return np.logaddexp(no, yes + (orders - 1) * argmax) / (orders - 1)


def threshold_rdp(
    top: ArrayLike, threshold: float, sigma1: float, orders: ArrayLike, *, discrete: bool = False
) -> Floats:
    """Data-dependent RDP of the check by Theorem 6 (P18, section 4.2), at most α/(2σ1²); one-sided.

    Shapes: `top` scalar or (queries,) to (orders,) or (queries, orders).

    Raises:
        InputError: parameters out of range.
    """
    yes, no = log_answered(top, threshold, sigma1, discrete=discrete)
    return gnmax_rdp_from_log_q(np.minimum(yes, no), math.sqrt(2) * sigma1, orders)


def gnmax_local_sensitivity(
    totals: ArrayLike,
    sigma: float,
    order: float,
    *,
    num_teachers: int,
    weights: ArrayLike | None = None,
    integer_noise: bool = False,
) -> Floats:
    """Local-sensitivity curve of GNMax, Σ over queries of weight × LS_d (P18, Algorithms 4 and 5).

    LS_d bounds the local sensitivity of a query's b(q) at any votes within d moves, d from 0 to at least
    `num_teachers` - 1. With `integer_noise`
    every gap counts for one vote less, a bound on the tails of integer noise with ties as losses for σ >= 2.

    Shapes: `totals` (queries, classes), `weights` (queries,) to (distances,); see `summed_curve`.

    Raises:
        InputError: totals that are no counts or have more votes than teachers, weights that do not fit, or
            parameters out of range.
    """
    votes = check_histograms(totals)
    check_count("num_teachers", num_teachers, least=1)
    if len(votes) and votes.sum(axis=1).max() > num_teachers:
        raise InputError(f"a query has more votes than the {num_teachers} teachers")
    share = check_weights(weights, len(votes))
    pieces = gnmax_sensitivity(float(sigma), votes.shape[1], float(order))
    moves = VoteMoves(votes, sigma=pieces.sigma, margin=1 if integer_noise else 0)
    return summed_curve(moves, pieces, share, num_teachers)


def gnss_rdp_printed(order: float, *, beta: float, sigma_ss: float) -> float:
    """P18, Theorem 23 as it is printed, to compare with published figures: it is too small.

    α e^(2β)/σ_ss² + (β α - ½ ln(1 - 2 α β))/(α - 1), for 1 < α < 1/(2β).

    Raises:
        InputError: β below 0, σ_ss not above 0, or an order outside (1, 1/(2β)).
    """
    check_release(beta, sigma_ss)
    most = 1 / (2 * beta) if beta > 0 else math.inf
    if not is_number(order) or not 1 < order < most:
        raise InputError(f"order={order!r}: must be above 1 and below 1/(2 beta)={most:g}")
    variable = (beta * order - math.log1p(-2 * order * beta) / 2) / (order - 1)
    return order * math.exp(2 * beta) / sigma_ss**2 + variable


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


def pate_plus_plus_epsilon(
    num_queries: int,
    num_labelled: int,
    *,
    sigma1: float,
    sigma2: float,
    delta: float,
    order: float | None = None,
) -> tuple[float, float]:
    """ε and its order λ by PATE++'s Proposition 2 as printed; at the best order where none is given.

    ε = λ (|M|/(2σ1²) + |M_l|/σ2²) + ln(1/δ)/(λ-1); the best λ is 1 + √(ln(1/δ)/ρ).

    Raises:
        InputError: counts, noise, δ or order out of range, or nothing asked and no order given.
    """
    rho = confident_rho(num_queries, num_labelled, sigma1=sigma1, sigma2=sigma2)
    log_term = -math.log(check_delta(delta))
    if order is None:
        if rho == 0:
            raise InputError("num_queries=0: nothing was spent, so there is no best order; give one")
        order = 1 + math.sqrt(log_term / rho)
    best = float(check_orders(order)[0])
    return round_up(best * rho + log_term / (best - 1)), best


def noise_cluster_epsilon(sigma: float, delta: float) -> float:
    """ε of NoiseCluster (LDP, Theorem 1): Gaussian noise of `sigma` labels on the class counts of clusters.

    One label moves within one cluster, so L2 sensitivity √2; clusters are disjoint and do not compose. This
    is the published figure, of continuous noise: integer noise of the same σ can cost more, so
    `ClusterCounts` is held to `moved_count_delta`.

    Raises:
        InputError: σ or δ out of range.
    """
    return gaussian_dp_epsilon(math.sqrt(2) / check_sigma("sigma", sigma), delta)


def randomized_response_epsilon(num_classes: int, probability: float) -> float:
    """ε = ln((N-1) p/(1-p)) of keeping a label with probability p, else a uniform other one (LDP, Theorem 2).

    δ is 0.

    Raises:
        InputError: fewer than two classes, or p outside [1/N, 1).
    """
    check_count("num_classes", num_classes, least=2)
    if not is_number(probability) or not 1 / num_classes <= probability < 1:
        raise InputError(
            f"probability={probability!r}: must be at least 1/{num_classes} and below 1, or ε has no bound"
        )
    odds = math.log(num_classes - 1) + math.log(probability) - math.log1p(-probability)
    return round_up(odds)


def check_weights(weights: ArrayLike | None, queries: int) -> Floats:
    """One weight for each query, float64 (queries,): an answered bit, a probability, or 1 without weights.

    Raises:
        InputError: another length, NaN, or a weight below 0.
    """
    share = np.ones(queries) if weights is None else np.asarray(weights, dtype=np.float64)
    if share.shape != (queries,) or not (share >= 0).all():
        raise InputError(f"weights have the shape {share.shape}: one of at least 0 for each query is meant")
    return share
