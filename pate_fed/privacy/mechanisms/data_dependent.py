"""Data-dependent RDP and ε of a mechanism's releases: functions of the votes, for those who may see these.

The ε is never printed without "do not publish", never decides when a run stops, and stands in no ledger. What
may be published is the data-independent ε or the sanitised one (`pate_fed.privacy.mechanisms.sanitise`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, to_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.bounds.gnmax import exact_bit_rdp, gnmax_rdp_total
from pate_fed.privacy.bounds.lnmax import lnmax_log_q, lnmax_rdp_from_log_q
from pate_fed.privacy.checks import DEFAULT_ORDERS, Floats, check_histograms, check_orders
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from pate_fed.privacy.protection import RECORD, Protection

# The best order of a large spend is below 2.
_ORDERS: Floats = np.concatenate((np.arange(1.05, 2.0, 0.05), DEFAULT_ORDERS))


def data_dependent_rdp(
    mechanism: Mechanism,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    orders: ArrayLike = DEFAULT_ORDERS,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> Floats:
    """Data-dependent RDP of what the mechanism released, with the tails of the integer noise that ran.

    Each answered query pays Theorem 6 (P18) with ties as losses, or for LNMax the moments accountant's
    Theorem 3 (P17): the forward direction, from the actual votes. With a threshold each asked query pays the
    exact divergence of its answered bit too (both directions). `checked` is what the check compared with the
    threshold, the largest total where it is None; Interactive-GNMax needs it (largest total less the
    student's expected votes).

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,) to (orders,).

    Raises:
        InputError: shapes that differ, totals that are no counts, parameters out of range, or a mechanism
            whose exact totals nobody has.
    """
    votes, grid = check_histograms(totals), check_orders(orders)
    voted = votes[check_answered(answered, len(votes))]
    if isinstance(mechanism, LNMax):
        log_q = lnmax_log_q(voted, mechanism.scale, discrete=True)
        laplace: Floats = lnmax_rdp_from_log_q(log_q, protection.l1 / mechanism.scale, grid).sum(axis=0)
        return laplace
    if isinstance(mechanism, GNMax):
        return gnmax_rdp_total(voted, mechanism.sigma, grid, discrete=True, protection=protection)
    if not isinstance(mechanism, ConfidentGNMax):
        raise InputError(f"{mechanism.name}: no exact totals, so no data-dependent ε is known")
    if isinstance(mechanism, InteractiveGNMax) and checked is None:
        raise InputError("interactive-gnmax: `checked`, what its check looked at, is needed")
    top = votes.max(axis=1) if checked is None else np.asarray(checked)
    if top.shape != (len(votes),):
        raise InputError(f"checked has the shape {top.shape}: one number for each query is meant")
    curve = gnmax_rdp_total(voted, mechanism.sigma2, grid, discrete=True, protection=protection)
    bits = exact_bit_rdp(
        top, mechanism.threshold, mechanism.sigma1, grid, discrete=True, protection=protection
    )
    curve += bits.sum(axis=0)
    return curve


def data_dependent_epsilon_do_not_publish(
    mechanism: Mechanism,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    delta: float,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> ConvertedEpsilon:
    """ε at δ from `data_dependent_rdp`, never above the data-independent one.

    It reveals something about the votes: do not publish it.

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,).

    Raises:
        InputError: as `data_dependent_rdp`, or δ outside (0, 1).
    """
    curve = data_dependent_rdp(
        mechanism, totals, answered, orders=_ORDERS, checked=checked, protection=protection
    )
    found = to_epsilon(_ORDERS, curve, delta)
    mask = np.asarray(answered)
    # Each query's curve is capped at its own worst case, but all at one order; the ledger's best is another.
    spent = mechanism.cost(len(mask), int(mask.sum()), protection)
    return replace(found, epsilon=min(found.epsilon, epsilon_of(spent, delta)))


def check_answered(answered: ArrayLike, asked: int) -> NDArray[np.bool_]:
    """The answered bits as bool (asked,).

    Raises:
        InputError: another type or shape.
    """
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (asked,):
        raise InputError(f"answered is {mask.dtype} {mask.shape}: one truth value for each query is meant")
    return mask
