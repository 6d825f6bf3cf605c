"""Two label-DP baselines in closed form: features are public, one label changes.

LDP is Tang et al., PoPETs 2022. Each spends its ε once a label; anything computed from the privatised labels
is post-processing.
"""

from __future__ import annotations

import math

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import round_up
from pate_fed.privacy.bounds.gaussian import gaussian_dp_epsilon
from pate_fed.privacy.bounds.orders import check_sigma
from pate_fed.privacy.checks import check_count, check_epsilon, is_number

__all__ = ["noise_cluster_epsilon", "randomized_response_epsilon", "randomized_response_probability"]


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


def randomized_response_probability(num_classes: int, epsilon: float) -> float:
    """How often a label is kept at ε: p = e^ε/(e^ε + N - 1).

    Raises:
        InputError: fewer than two classes, or ε not above 0.
    """
    check_count("num_classes", num_classes, least=2)
    return 1 / (1 + (num_classes - 1) * math.exp(-check_epsilon(epsilon)))


def noise_cluster_epsilon(sigma: float, delta: float) -> float:
    """ε of NoiseCluster (LDP, Theorem 1): Gaussian noise of `sigma` labels on the class counts of clusters.

    One label moves within one cluster, so L2 sensitivity √2; clusters are disjoint and do not compose. This
    is the published figure, of continuous noise: integer noise of the same σ can cost more, so
    `pate_fed.label_dp.NoiseCluster`, which draws that, holds its σ to `discrete_delta` too.

    Raises:
        InputError: σ or δ out of range.
    """
    return gaussian_dp_epsilon(math.sqrt(2) / check_sigma("sigma", sigma), delta)
