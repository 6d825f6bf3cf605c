"""Spending a budget: close to it, never above, by noise or by counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.privacy.planning.spend import OpenStudy, round_up, spend


def _study(error: float, *, most: int = 10_000, least: float = 0.0) -> OpenStudy:
    """A study whose ε is that of a Gaussian, about, and whose estimate errs by a factor."""
    return OpenStudy(
        price=lambda sigma, labels: math.sqrt(labels) / sigma * (1 + 0.1 / sigma),
        about=lambda sigma, labels: error * labels / sigma**2,
        room=lambda epsilon: epsilon**2,
        most_labels=most,
        least_sigma=least,
    )


@given(st.integers(1, 20_000), st.floats(0.05, 20.0), st.floats(0.5, 2.0))
def test_the_budget_is_spent_and_never_passed(labels: int, epsilon: float, error: float) -> None:
    found = spend(_study(error), epsilon=epsilon, labels=labels)
    assert found is not None and 1 <= found.labels <= 10_000
    assert found.epsilon <= epsilon
    assert found.epsilon == _study(error).price(found.sigma, found.labels)
    if found.labels >= 200 or found.sigma < 100:
        assert found.epsilon > 0.98 * epsilon


def test_no_less_noise_is_taken_than_allowed_and_no_more_labels_than_there_are() -> None:
    found = spend(_study(1.0, most=50, least=7.0), epsilon=100.0, labels=500)
    assert found is not None and (found.sigma, found.labels) == (7.0, 50) and found.epsilon < 100.0


def test_where_nothing_fits_there_is_nothing() -> None:
    study = OpenStudy(
        price=lambda sigma, labels: 5.0, about=lambda sigma, labels: 1.0, room=lambda e: e, most_labels=9
    )
    assert spend(study, epsilon=2.0, labels=3) is None


@pytest.mark.parametrize(
    ("sigma", "shown"), [(1.23411, 1.235), (79.0, 79.0), (0.0123456, 0.01235), (99.999, 100.0)]
)
def test_noise_is_rounded_up(sigma: float, shown: float) -> None:
    assert round_up(sigma) == shown
    assert round_up(161.0, digits=2) == 170.0 and round_up(math.inf) == math.inf
