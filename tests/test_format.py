"""ε is shown by one rule: rounded up, never down, with digits left where it is small."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.format import (
    VERSION,
    accuracy_text,
    delta_text,
    epsilon_json,
    epsilon_text,
    share_text,
    wilson_interval,
)

epsilons = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(epsilons)
def test_what_is_shown_or_stored_is_never_less(epsilon: float) -> None:
    assert epsilon <= float(epsilon_text(epsilon)) <= epsilon * 1.001 + math.ulp(0) + 1e-3 * (epsilon >= 0.1)
    stored = epsilon_json(epsilon)
    assert stored is not None and epsilon <= stored <= epsilon * 1.001 + math.ulp(0)


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [
        (0.00012345, "0.0001235"),
        (1e-9, "1e-9"),
        (0.0, "0"),
        (0.05, "0.05"),
        (0.1, "0.1"),
        (0.99991, "1"),
        (1.00001, "1.001"),
        (3.9, "3.9"),
        (236.961, "236.961"),
        (236.9611, "236.962"),
        (1e30, "1" + 30 * "0"),
        (math.inf, "unbounded"),
        (math.nan, "unbounded"),
        (None, "unbounded"),
    ],
)
def test_an_epsilon_in_text(epsilon: float | None, shown: str) -> None:
    assert epsilon_text(epsilon) == shown


@pytest.mark.parametrize("epsilon", [0.00012345, 0.05, 1.25])
def test_a_numpy_float_is_shown_as_a_float(epsilon: float) -> None:
    assert epsilon_text(np.float64(epsilon)) == epsilon_text(epsilon)
    assert epsilon_json(np.float64(epsilon)) == epsilon_json(epsilon)


def test_an_epsilon_for_programs() -> None:
    assert [epsilon_json(value) for value in (1.0000001, 2.5, 0.1, 5e-324)] == [1.000001, 2.5, 0.1, 5e-324]
    assert epsilon_json(0.00012345) == 0.0001235
    assert epsilon_json(math.inf) is epsilon_json(math.nan) is epsilon_json(None) is None


def test_a_delta_in_text() -> None:
    for delta, shown in (
        *((1e-5, "1e-5"), (1 / 90_000, "1.12e-5"), (9.996e-6, "1e-5"), (2e-12, "2e-12")),
        *((0.001, "0.001"), (0.5, "0.5"), (0.12341, "0.124"), (0.0, "0")),
    ):
        assert delta_text(delta) == shown


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (93, 95), (500, 1000)])
def test_the_interval_is_wilsons(right: int, count: int) -> None:
    """Its ends are the shares p whose own normal interval just holds what was found."""
    for end in wilson_interval(right / count, count):
        if 1e-9 < end < 1 - 1e-9:
            z = abs(right / count - end) / math.sqrt(end * (1 - end) / count)
            assert z == pytest.approx(1.959964, abs=1e-5)
    low, high = wilson_interval(right / count, count)
    assert 0 <= low <= right / count <= high <= 1 and low < high


def test_an_accuracy_has_its_number_and_interval() -> None:
    assert accuracy_text(0.852, 1000) == "85.2 % right (n 1,000, 82.9 to 87.3 %)"
    assert accuracy_text(0.5) == "50 % right" and accuracy_text(None, 10) == "-"


def test_a_small_test_is_counted_and_gets_no_digits_that_it_does_not_know() -> None:
    assert accuracy_text(0.8, 15, majority=8 / 15) == "12 of 15 right (55 to 93 %; majority 53 %)"
    assert accuracy_text(127 / 150, 150) == "85 % right (n 150, 78 to 90 %)"
    assert accuracy_text(1.0, 99).startswith("99 of 99 right (96 to 100 %")


def test_a_share_short_of_all_is_not_shown_as_all() -> None:
    assert share_text(299 / 300, 300) == "99.7 %" and share_text(1.0, 300) == "100 %"
    assert share_text(1 / 300, 300) == "0.3 %" and share_text(0.0, 300) == "0 %"
    assert share_text(0.5, 999) == "50 %" and share_text(0.5, 1000) == "50.0 %" and share_text(None) == "-"
    assert wilson_interval(1.0, 4) == pytest.approx((0.5101, 1.0), abs=1e-4)
    assert wilson_interval(0.0, 4)[0] == 0.0


def test_the_package_has_the_version_that_its_code_tells() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == VERSION
