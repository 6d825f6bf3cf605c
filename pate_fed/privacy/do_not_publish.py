"""The data-dependent ε of a run: a function of the votes, for those who may see the votes only.

It is never printed without "do not publish", never decides when a run stops, and stands in no ledger. What
may be published is the data-independent ε or the sanitised one (`pate_fed.privacy.sanitise`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.conversion import ConvertedEpsilon, to_epsilon
from pate_fed.privacy.events import RECORD, Protection
from pate_fed.privacy.gnmax import gnmax_rdp_total
from pate_fed.privacy.orders import DEFAULT_ORDERS, Floats, check_histograms, check_orders
from pate_fed.privacy.threshold import exact_bit_rdp

__all__ = ["data_dependent_epsilon_do_not_publish", "data_dependent_rdp"]


def data_dependent_rdp(
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    threshold: float | None,
    sigma1: float | None,
    sigma2: float,
    orders: ArrayLike = DEFAULT_ORDERS,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> Floats:
    """Data-dependent RDP of what Confident-GNMax released, of the mechanism with integer noise that ran.

    Each asked query pays the exact divergence of its answered bit (both directions), each answered one
    Theorem 6 with discrete tails, ties as losses (the forward direction, from the actual votes). Without
    `threshold` and `sigma1` it is plain GNMax. `checked` is what the check compared with the threshold where
    that was not the largest total (Interactive-GNMax: largest total less the student's expected votes).

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,) to (orders,).

    Raises:
        InputError: shapes that differ, totals that are no counts, or parameters out of range.
    """
    votes, grid = check_histograms(totals), check_orders(orders)
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (len(votes),):
        raise InputError(f"answered is {mask.dtype} {mask.shape}: one truth value for each query is meant")
    curve = gnmax_rdp_total(votes[mask], sigma2, grid, discrete=True, protection=protection)
    if (threshold is None) != (sigma1 is None):
        raise InputError("threshold and sigma1 go together: give both or neither")
    if threshold is None or sigma1 is None:
        return curve
    top = votes.max(axis=1) if checked is None else np.asarray(checked)
    if top.shape != (len(votes),):
        raise InputError(f"checked has the shape {top.shape}: one number for each query is meant")
    bits = exact_bit_rdp(top, threshold, sigma1, grid, discrete=True, protection=protection)
    curve += bits.sum(axis=0)
    return curve


def data_dependent_epsilon_do_not_publish(
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    threshold: float | None,
    sigma1: float | None,
    sigma2: float,
    delta: float,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> ConvertedEpsilon:
    """ε at δ from `data_dependent_rdp`. It reveals something about the votes: do not publish it.

    Raises:
        InputError: as `data_dependent_rdp`, or δ outside (0, 1).
    """
    curve = data_dependent_rdp(
        totals,
        answered,
        threshold=threshold,
        sigma1=sigma1,
        sigma2=sigma2,
        checked=checked,
        protection=protection,
    )
    return to_epsilon(DEFAULT_ORDERS, curve, delta)
