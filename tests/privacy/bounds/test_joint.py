"""The joint bound of a query: above its parts, below their worst case, and exact where it can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import joint_rdp

from pate_fed.errors import InputError
from pate_fed.privacy import Protection
from pate_fed.privacy.bounds.gnmax import exact_bit_rdp, gnmax_rdp, log_answered

ORDERS = np.array([1.5, 2.0, 5.0, 14.0, 32.0])
NOISE = {"sigma1": 30.0, "sigma2": 20.0}


@given(
    votes=st.lists(st.integers(0, 80), min_size=2, max_size=6),
    threshold=st.integers(0, 120),
    discrete=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_it_lies_between_the_bit_and_both_steps_in_full(
    votes: list[int], threshold: int, discrete: bool
) -> None:
    joint = joint_rdp([votes], ORDERS, threshold=threshold, discrete=discrete, **NOISE)[0]
    bit = exact_bit_rdp(max(votes), threshold, 30.0, ORDERS, discrete=discrete)
    argmax = gnmax_rdp([votes], 20.0, ORDERS, discrete=discrete)[0]
    assert (joint >= bit * (1 - 1e-9) - 1e-12).all()
    # Adaptive composition of both steps bounds the pair.
    assert (joint <= bit + argmax + 1e-12).all()


def test_an_average_of_ledgers_would_be_below_it() -> None:
    votes = [[70, 60, 40, 30, 20, 10, 8, 6, 4, 2]]
    noise = {"sigma1": 150.0, "sigma2": 40.0}
    joint = joint_rdp(votes, ORDERS, threshold=200, **noise)[0]
    chance = math.exp(float(log_answered(70, 200, 150.0)[0]))
    average = exact_bit_rdp(70, 200, 150.0, ORDERS) + chance * gnmax_rdp(votes, 40.0, ORDERS)[0]
    assert (joint > average * (1 - 1e-9)).all()


def test_always_answered_is_plain_gnmax() -> None:
    votes = [[50, 30, 20]]
    joint = joint_rdp(votes, ORDERS, threshold=-(10**4), **NOISE)[0]
    np.testing.assert_allclose(joint, gnmax_rdp(votes, 20.0, ORDERS)[0], rtol=1e-9)


def test_the_data_independent_argmax_bounds_the_data_dependent_one() -> None:
    votes = [[100, 5, 3]]
    loose = joint_rdp(votes, ORDERS, threshold=60, data_dependent=False, **NOISE)
    tight = joint_rdp(votes, ORDERS, threshold=60, **NOISE)
    assert (tight < loose).all()
    three = Protection(votes_moved=3)
    assert (joint_rdp(votes, ORDERS, threshold=60, protection=three, **NOISE) > tight).all()


@pytest.mark.parametrize("change", [{"sigma1": 0.0}, {"sigma2": math.inf}, {"threshold": math.nan}])
def test_bad_parameters_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        joint_rdp([[3, 2]], ORDERS, **{"threshold": 2.0, **NOISE, **change})


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="two classes"):
        joint_rdp([[3]], ORDERS, threshold=2, **NOISE)
