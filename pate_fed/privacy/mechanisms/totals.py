"""Vote totals: their checks, and the integer steps that the mechanisms share."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.mechanisms.noise import NoiseSource

Ints = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


def check_totals(totals: ArrayLike, *, num_teachers: int, num_classes: int) -> Ints:
    """The totals as int64 (queries, classes).

    A row may sum to less than `num_teachers`, as hospitals may fail, and to more, where one of them lies
    under masks: to refuse that would tell it about the others' votes. No count passes `num_teachers`.

    Raises:
        InputError: not rectangular, not whole numbers, another number of classes, or a count that is negative
            or above `num_teachers`. The message carries no votes.
    """
    try:
        array = np.asarray(totals)
    except ValueError as error:
        raise InputError("totals are not rectangular: every query needs one count for each class") from error
    if array.dtype.kind not in "iu":
        raise InputError(f"totals are {array.dtype}, not whole numbers: counts of votes are meant")
    if array.ndim != 2 or array.shape[1] != num_classes:
        raise InputError(f"totals have the shape {array.shape}, not (queries, {num_classes})")
    if array.size and array.min() < 0:
        raise InputError("totals hold a negative count")
    if array.size and array.max() > num_teachers:
        raise InputError(f"a query has more votes than the {num_teachers} teachers")
    return array.astype(np.int64, copy=False)


def check_predictions(predictions: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The student's probabilities as float64 (queries, classes).

    Raises:
        InputError: another shape than the totals, or rows that are no probabilities.
    """
    try:
        shares = np.asarray(predictions, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("predictions are not a rectangular array of numbers") from error
    if shares.shape != shape:
        raise InputError(f"predictions have the shape {shares.shape}, not {shape} as the totals")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InputError("predictions hold a value that is not a probability from 0 to 1")
    if (np.abs(shares.sum(axis=1) - 1) > 1e-3).any():
        raise InputError("predictions of a query do not sum to 1")
    return shares


def noisy_argmax(votes: Ints, noise: Ints, source: NoiseSource) -> Ints:
    """The class with the largest noisy total of every query; ties are broken uniformly at random.

    Shapes: `votes` and `noise` int64 (queries, classes); the result int64 (queries,).
    """
    noisy = votes + noise
    best = noisy == noisy.max(axis=1, keepdims=True)
    label: Ints = np.where(best, source.tie_keys(noisy.shape), 0).argmax(axis=1)
    return label


def stop_after(passed: NDArray[np.bool_], max_answers: int | None) -> int:
    """How many queries are asked: up to and with the one that gives the last answer, or all."""
    if max_answers is None:
        return len(passed)
    most = check_count("max_answers", max_answers)
    where = np.flatnonzero(passed)
    if len(where) < most:
        return len(passed)
    return int(where[most - 1]) + 1 if most else 0


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """The array, made read-only."""
    array.setflags(write=False)
    return array
