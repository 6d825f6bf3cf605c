"""GNMax when only the outcome is seen, not the noisy totals: a smaller bound, unreviewed and off by default.

Own derivation, not from a paper and not reviewed; no ledger, filter or planner uses it. When a vote moves
from class i to class j the largest noisy total of the others has the same law, so it may as well be released:
what remains is who of i, j and the others wins. The supremum over where i and j stand is
searched, not proven.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp, ndtr

from pate_fed.privacy.bounds.orders import Floats, check_orders, check_sigma

__all__ = ["outcome_only_rdp_unreviewed"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(240)
_STARTS = ((0.0, 0.0), (2.0, 2.0), (4.0, 3.0), (3.0, 4.0), (6.0, 6.0), (0.0, 3.0), (3.0, 0.0), (12.0, 12.0))


def _log_outcomes(first: float, second: float) -> Floats:
    """Log-chances that i, j or neither wins, where i and j stand so many deviations above the others."""
    low = max(0.0, max(first, second) - 12.0)
    high = max(first, second, 0.0) + 12.0
    t = (high - low) / 2 * _NODES + (high + low) / 2
    step = (high - low) / 2 * _WEIGHTS
    density = np.exp(-((t - np.array([[first], [second]])) ** 2) / 2) / np.sqrt(2 * np.pi)
    wins = (step * density * ndtr(t - np.array([[second], [first]]))).sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.append(np.log(wins), log_ndtr(-first) + log_ndtr(-second))


def _divergence(first: float, second: float, vote: float, order: float) -> float:
    here, there = _log_outcomes(first, second), _log_outcomes(first - vote, second + vote)
    usable = np.isfinite(here) & np.isfinite(there)
    terms = order * here[usable] + (1 - order) * there[usable]
    return float(logsumexp(terms)) / (order - 1)


def outcome_only_rdp_unreviewed(sigma: float, order: float) -> float:
    """Largest RDP at `order` of one query's outcome that a search finds; about 0.64 α/σ² for large σ.

    The divergence is symmetric in the direction of the move, as i and j may change places.

    Raises:
        InputError: σ or the order out of range.
    """
    vote, alpha = 1 / check_sigma("sigma", sigma), float(check_orders(order)[0])
    best = 0.0
    for start in _STARTS:
        found = minimize(
            lambda at: -_divergence(at[0], at[1], vote, alpha),
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-3, "fatol": 1e-12, "maxiter": 200},
        )
        best = max(best, -float(found.fun))
    return best
