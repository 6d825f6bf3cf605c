"""A-priori RDP of one query of Confident-GNMax, as one mechanism with classes + 1 outcomes.

Weighting the argmax by the chance of an answer, as the scripts of P18 (arXiv 1802.08908) do, averages ledgers
and bounds nothing; the joint divergence does, and costs a few percent more. Own derivation: Rényi divergence
of a mixture over the public bit, with the argmax bounded given that the bit says "answered".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.privacy.bounds.gnmax import effective_sigma, gnmax_rdp
from pate_fed.privacy.bounds.orders import Floats, check_histograms, check_orders
from pate_fed.privacy.bounds.threshold import log_answered
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
