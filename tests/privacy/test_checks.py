"""Checks of single values: what passes comes back as a plain number, what does not is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pate_fed import privacy
from pate_fed.errors import InputError
from pate_fed.privacy import bounds
from pate_fed.privacy.bounds import (
    control,
    conversion,
    cost,
    gaussian,
    gnmax,
    gnss,
    hockey_stick,
    joint,
    lnmax,
    outcomes,
    profiles,
    smooth,
    threshold,
)
from pate_fed.privacy.checks import (
    check_count,
    check_delta,
    check_epsilon,
    check_scale,
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
    assert len(privacy.__all__) <= 30
    rooms = (
        *(control, conversion, cost, gaussian, gnmax, gnss),
        *(hockey_stick, joint, lnmax, outcomes, profiles, smooth, threshold),
    )
    listed = [re.findall(r"`(\w+)`", part) for part in (bounds.__doc__ or "").split("\n- ")[1:]]
    by_name = {room.__name__.rpartition(".")[2]: room for room in rooms}
    assert {module for module, *_ in listed} == set(by_name)
    for module, *names in listed:
        assert names and all(getattr(by_name[module], name).__doc__ for name in names)
