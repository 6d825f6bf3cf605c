"""The noise of Gaussian votes that a budget buys, of which benchmarks and tests ask."""

from __future__ import annotations

from pate_fed.privacy import GNMax
from pate_fed.reproduce.measures import least_noise


def affordable_sigma2(labels: int, *, epsilon: float, delta: float) -> float:
    """The least σ2 (to 0.1 votes) at which so many labels, of a mechanism that answers every query, cost ε.

    Raises:
        InputError: there is none.
    """
    return least_noise(
        lambda sigma2: GNMax(num_teachers=1, num_classes=2, sigma=sigma2),  # its cost has neither in it
        queries=labels,
        epsilon=epsilon,
        delta=delta,
    )
