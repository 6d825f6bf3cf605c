"""Checks of single values that the whole room shares; each error names the value and what would be right."""

from __future__ import annotations

import math

import numpy as np

from pate_fed.errors import InputError

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
