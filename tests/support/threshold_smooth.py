"""The check's local sensitivity as P18 states it, which its authors' figures are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError

Floats = NDArray[np.float64]


def threshold_local_sensitivity(rdp_by_top: ArrayLike, top: ArrayLike) -> Floats:
    """Local-sensitivity curve of the threshold check, Σ over queries of LS_d (P18, appendix B).

    `rdp_by_top[v]` is the check's RDP at one order where the largest total is v = 0..n: one table serves all
    queries. LS_d is the largest change by one vote at v - d or v + d, 0 beyond 0..n.

    Shapes: `rdp_by_top` (n + 1,), `top` int (queries,) to (n,).

    Raises:
        InputError: no table, or a total outside it.
    """
    table, votes = np.asarray(rdp_by_top, dtype=np.float64), np.atleast_1d(np.asarray(top))
    most = table.size - 1
    if table.ndim != 1 or most < 1 or not np.isfinite(table).all():
        raise InputError("the check's RDP must be a list of finite numbers for 0..n votes")
    if votes.dtype.kind not in "iu" or (votes.size and not 0 <= votes.min() <= votes.max() <= most):
        raise InputError(f"the largest totals must be whole numbers from 0 to {most}")
    jump = np.abs(np.diff(table))
    at = np.maximum(np.append(jump, 0.0), np.append(0.0, jump))
    total = np.zeros(most)
    values, times = np.unique(votes, return_counts=True)
    for value, count in zip(values, times, strict=True):
        down, up = at[value::-1], at[value:]
        curve = np.zeros(most + 1)
        curve[: down.size] = down
        curve[: up.size] = np.maximum(curve[: up.size], up)
        # At the farthest distance of all, n moves, there is no further one to protect.
        curve[max(value, most - value) :] = 0.0
        total += count * curve[:most]
    return total
