"""The data-dependent ε of a run: a function of the votes, for those who may see the votes only.

It is never printed without "do not publish", never decides when a run stops, and stands in no ledger. What
may be published is the data-independent ε or the sanitised one (`pate_fed.privacy.bounds.sanitise`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, to_epsilon
from pate_fed.privacy.bounds.gnmax import gnmax_rdp_total
from pate_fed.privacy.bounds.lnmax import lnmax_log_q, lnmax_rdp_from_log_q
from pate_fed.privacy.bounds.orders import DEFAULT_ORDERS, Floats, check_histograms, check_orders
from pate_fed.privacy.bounds.threshold import exact_bit_rdp
from pate_fed.privacy.filter import epsilon_of
from pate_fed.privacy.mechanisms.events import RECORD, Mechanism, Protection
from pate_fed.privacy.mechanisms.gnmax import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax

__all__ = [
    "data_dependent_epsilon_do_not_publish",
    "data_dependent_rdp",
    "mechanism_epsilon_do_not_publish",
]

# The best order of a large spend is below 2.
_ORDERS: Floats = np.concatenate((np.arange(1.05, 2.0, 0.05), DEFAULT_ORDERS))


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
    curve = gnmax_rdp_total(
        _answered_votes(votes, answered), sigma2, grid, discrete=True, protection=protection
    )
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
        orders=_ORDERS,
        checked=checked,
        protection=protection,
    )
    return to_epsilon(_ORDERS, curve, delta)


def mechanism_epsilon_do_not_publish(
    mechanism: Mechanism,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    delta: float,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> ConvertedEpsilon:
    """The data-dependent ε of what any mechanism released, never above its data-independent one.

    LNMax by the moments accountant's Theorem 3 with the tails of integer noise, the others as
    `data_dependent_rdp`; Interactive-GNMax needs what its check looked at in `checked`. It reveals something
    about the votes: do not publish it.

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,).

    Raises:
        InputError: as `data_dependent_rdp`, or a mechanism whose exact totals nobody has.
    """
    terms: Any = {"delta": delta, "protection": protection}
    if isinstance(mechanism, LNMax):
        found = _lnmax_epsilon(mechanism, totals, answered, **terms)
    elif isinstance(mechanism, GNMax):
        found = data_dependent_epsilon_do_not_publish(
            totals, answered, threshold=None, sigma1=None, sigma2=mechanism.sigma, **terms
        )
    elif isinstance(mechanism, ConfidentGNMax):
        if isinstance(mechanism, InteractiveGNMax) and checked is None:
            raise InputError("interactive-gnmax: `checked`, what its check looked at, is needed")
        found = data_dependent_epsilon_do_not_publish(
            totals,
            answered,
            threshold=mechanism.threshold,
            sigma1=mechanism.sigma1,
            sigma2=mechanism.sigma2,
            checked=checked,
            **terms,
        )
    else:
        raise InputError(f"{mechanism.name}: no exact totals, so no data-dependent ε is known")
    mask = np.asarray(answered)
    flat = mechanism.cost_asked(protection) * len(mask) + mechanism.cost_answered(protection) * int(
        mask.sum()
    )
    return replace(found, epsilon=min(found.epsilon, epsilon_of(flat, delta)))


def _lnmax_epsilon(
    mechanism: LNMax, totals: ArrayLike, answered: ArrayLike, *, delta: float, protection: Protection
) -> ConvertedEpsilon:
    votes = _answered_votes(check_histograms(totals), answered)
    log_q = lnmax_log_q(votes, mechanism.scale, discrete=True)
    curves = lnmax_rdp_from_log_q(log_q, protection.l1 / mechanism.scale, _ORDERS)
    return to_epsilon(_ORDERS, curves.sum(axis=0), delta)


def _answered_votes(votes: NDArray[np.int64], answered: ArrayLike) -> NDArray[np.int64]:
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (len(votes),):
        raise InputError(f"answered is {mask.dtype} {mask.shape}: one truth value for each query is meant")
    voted: NDArray[np.int64] = votes[mask]
    return voted
