"""Checks of single values: what passes comes back as a plain number, what does not is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from published import check_weights

from pate_fed import privacy
from pate_fed.errors import InputError
from pate_fed.privacy import bounds
from pate_fed.privacy.bounds import control, conversion, cost, gnmax, hockey_stick, smooth
from pate_fed.privacy.checks import (
    DEFAULT_ORDERS,
    check_count,
    check_delta,
    check_epsilon,
    check_histograms,
    check_orders,
    check_scale,
    check_sigma,
    check_threshold,
    is_number,
)


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (lambda value: check_count("it", value), np.int64(7)),
        (lambda value: check_scale("it", value), np.float32(2.5)),
        (check_threshold, -200),
        (check_delta, 1e-5),
        (check_epsilon, 1),
    ],
)
def test_numbers_pass_as_plain_ones(check: Callable[[Any], float], good: Any) -> None:
    assert check(good) == good and type(check(good)) in (int, float)
    for bad in (math.nan, math.inf, None, "2", True, [1]):
        with pytest.raises(InputError):
            check(bad)


def test_bounds_of_a_count_and_of_noise() -> None:
    assert check_count("it", 3, least=3) == 3
    with pytest.raises(InputError, match="at least 3"):
        check_count("it", 2, least=3)
    for bad in (1e-7, 1e10, 0.0, -1.0):
        with pytest.raises(InputError, match="1e-06 and 1e\\+09"):
            check_scale("it", bad)
    assert is_number(np.int8(1)) and not is_number(np.bool_(True))


def test_public_names_are_there() -> None:
    assert all(getattr(privacy, name).__doc__ for name in privacy.__all__)
    assert len(privacy.__all__) <= 32  # two for mechanisms of others, which import nothing else
    rooms = (cost, control, conversion, gnmax, hockey_stick, smooth)
    listed = [re.findall(r"`(\w+)`", part) for part in (bounds.__doc__ or "").split("\n- ")[1:]]
    by_name = {room.__name__.rpartition(".")[2]: room for room in rooms}
    assert {module for module, *_ in listed} == set(by_name)
    for module, *names in listed:
        assert names and all(getattr(by_name[module], name).__doc__ for name in names)


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
