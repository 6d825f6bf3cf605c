"""Checks of the whole room: bad input is an InputError that names the value and what would be right."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError

Floats = NDArray[np.float64]

# Half steps where the best order of a usual run lies, and a sparse reach for very small spends.
DEFAULT_ORDERS: Floats = np.concatenate(
    (np.arange(2.0, 101.0, 0.5), np.logspace(np.log10(100.0), np.log10(500.0), 100))
)
DEFAULT_ORDERS.flags.writeable = False

# Noise scales in votes between which int64 arithmetic stays exact and a cost stays a finite float.
SCALE_LIMITS = (1e-6, 1e9)


def is_number(value: object) -> bool:
    """Whether the value is a plain or NumPy number, and no truth value."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_count(name: str, value: int, *, least: int = 0) -> int:
    """The value as a plain int.

    Raises:
        InputError: not a whole number, or below `least`.
    """
    try:
        whole = value.__index__()
    except AttributeError:
        whole = least - 1
    if isinstance(value, bool) or whole < least:
        raise InputError(f"{name}={value!r}: must be a whole number of at least {least}")
    return whole


def check_scale(name: str, value: float) -> float:
    """The scale as a float.

    Raises:
        InputError: not a number, not finite, or outside 1e-6..1e9 votes (int64 arithmetic stays exact there).
    """
    low, high = SCALE_LIMITS
    if not is_number(value):
        raise InputError(f"{name}={value!r}: a number of votes between {low:g} and {high:g} is meant")
    if not low <= value <= high:
        raise InputError(f"{name}={value!r}: must be a finite number of votes between {low:g} and {high:g}")
    return float(value)


def check_threshold(threshold: float) -> float:
    """The threshold in votes as a float.

    Raises:
        InputError: not a number, or beyond 10^9 votes (int64 arithmetic stays exact there).
    """
    if not is_number(threshold) or not abs(threshold) <= SCALE_LIMITS[1]:
        raise InputError(f"threshold={threshold!r}: must be a number of votes, 1e9 at most")
    return float(threshold)


def check_delta(delta: float) -> float:
    """δ as a float.

    Raises:
        InputError: not a number above 0 and below 1.
    """
    if not is_number(delta) or not 0 < delta < 1:
        raise InputError(f"delta={delta!r}: must be above 0 and below 1, such as 1e-5")
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    """An ε budget as a float.

    Raises:
        InputError: not a finite number above 0.
    """
    if not is_number(epsilon) or not 0 < epsilon < math.inf:
        raise InputError(f"epsilon={epsilon!r}: must be a finite budget above 0")
    return float(epsilon)


def _numbers(name: str, values: ArrayLike) -> Floats:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} are not rectangular") from error
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} are {array.dtype}, not numbers")
    return array.astype(np.float64)


def check_orders(orders: ArrayLike) -> Floats:
    """The Rényi orders as float64 (orders,); lists, whole numbers and a single order are accepted.

    Raises:
        InputError: none, more than one axis, or an order that is not finite and above 1.
    """
    array = np.atleast_1d(_numbers("orders", orders))
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"orders have the shape {array.shape}: a list of at least one order is meant")
    wrong = array[~(np.isfinite(array) & (array > 1))]
    if wrong.size:
        raise InputError(f"order={wrong[0]:g}: every Rényi order must be finite and above 1")
    return array


def check_curve(orders: ArrayLike, rdp: ArrayLike) -> tuple[Floats, Floats]:
    """Orders and the RDP at each of them, float64 of one length.

    Raises:
        InputError: another length, NaN, or a value below 0.
    """
    grid, curve = check_orders(orders), np.atleast_1d(_numbers("RDP values", rdp))
    if curve.shape != grid.shape:
        raise InputError(
            f"{grid.size} orders and RDP values of the shape {curve.shape}: one for each is meant"
        )
    if not (curve >= 0).all():
        raise InputError("an RDP value is negative or not a number")
    return grid, curve


def check_log_q(log_q: ArrayLike) -> Floats:
    """Logarithms of probabilities as float64, one number or (queries,).

    Raises:
        InputError: more axes, NaN, or a value above 0.
    """
    given = np.asarray(log_q, dtype=np.float64)
    if given.ndim > 1 or not (given <= 0).all():
        raise InputError("ln q must be one number or a list, none of them above 0 or not a number")
    return given


def check_sigma(name: str, sigma: float) -> float:
    """A noise parameter in votes as a float.

    Raises:
        InputError: not a finite number above 0.
    """
    if not is_number(sigma) or not 0 < sigma < np.inf:
        raise InputError(f"{name}={sigma!r}: must be a finite number of votes above 0")
    return float(sigma)


def check_histograms(totals: ArrayLike) -> NDArray[np.int64]:
    """Vote totals as int64 (queries, classes); one histogram becomes one query.

    Whole numbers stored as floats are accepted, as published vote files have them. The message of an error
    carries no votes.

    Raises:
        InputError: not rectangular, fewer than two classes, or a count that is negative, fractional, NaN or
            above 2^53.
    """
    counted = isinstance(totals, np.ndarray) and totals.dtype == np.int64
    array = np.atleast_2d(totals if counted else _numbers("totals", totals))
    if array.ndim != 2 or array.shape[1] < 2:
        raise InputError(f"totals have the shape {array.shape}: (queries, classes) with two classes or more")
    if not (array.min(initial=0) >= 0 and array.max(initial=0) <= 2.0**53):
        raise InputError("totals hold a count that is negative, not a number or beyond counting")
    whole = array.astype(np.int64, copy=False)
    if not counted and (whole != array).any():
        raise InputError("totals hold a fraction: counts of votes are whole")
    return whole
