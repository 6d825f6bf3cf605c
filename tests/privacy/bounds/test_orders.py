"""Orders, totals and noise as every bound takes them: what is accepted, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.orders import (
    DEFAULT_ORDERS,
    check_histograms,
    check_orders,
    check_sigma,
    check_weights,
)


def test_orders_are_accepted_as_lists_and_whole_numbers() -> None:
    assert check_orders([2, 3]).dtype == np.float64
    assert check_orders(5).tolist() == [5.0]


def test_the_default_orders_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        DEFAULT_ORDERS[0] = 7.0


@pytest.mark.parametrize(
    "totals",
    [
        [[3, -1]],
        [[0.5, 1.5]],
        [[math.nan, 1]],
        [[math.inf, 1]],
        [[1, 2], [3]],
        [[1], [2]],
        [[["a", "b"]]],
        [["3", "4"]],
        [[True, False]],
        np.zeros((2, 2, 2)),
    ],
)
def test_totals_that_are_no_counts_are_refused(totals: object) -> None:
    with pytest.raises(InputError, match="totals"):
        check_histograms(totals)  # type: ignore[arg-type]


def test_the_message_holds_no_votes() -> None:
    with pytest.raises(InputError) as caught:
        check_histograms([[123456, -654321]])
    assert "123456" not in str(caught.value) and "654321" not in str(caught.value)


def test_whole_floats_and_single_histograms_are_counts() -> None:
    assert check_histograms([5.0, 3.0]).tolist() == [[5, 3]]
    assert check_histograms(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("sigma", [0, -1.0, math.inf, math.nan, None, "40", True])
def test_noise_out_of_range_is_refused(sigma: object) -> None:
    with pytest.raises(InputError, match="sigma="):
        check_sigma("sigma", sigma)  # type: ignore[arg-type]


ORDERS = [1.5, 2.0, 5.0, 14.0, 40.0, 200.0]


VOTES = np.array([[250, 0, 0], [0, 200, 50], [84, 83, 83], [10, 10, 230], [125, 125, 0]])


@pytest.mark.parametrize("weights", [[1.0], [-1.0] * 5, [math.nan] * 5])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        check_weights(weights, len(VOTES))
