"""The accountant: totals that know no order, and an odometer that never runs back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mnist_events import MNIST, REST, event

from pate_fed.privacy import LNMax, epsilon_of, odometer, total_cost
from pate_fed.privacy.bounds.cost import Cost


def test_odometer_never_runs_backwards_and_ends_at_the_total() -> None:
    rng = np.random.default_rng(0)
    events = [event(MNIST, int(a) + 5, int(a)) for a in rng.integers(0, 30, size=40)]
    readings = odometer(events, 1e-5)
    assert readings == sorted(readings) and len(readings) == 40
    assert readings[-1] == pytest.approx(epsilon_of(total_cost(events), 1e-5), rel=1e-6)
    assert odometer([], 1e-5) == []
    paid = odometer(events, 1e-5, reserved=Cost(Fraction(1, 100)))
    assert all(more > less for more, less in zip(paid, readings, strict=True))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 4), st.floats(0.1, 4), st.integers(0, 50), st.integers(0, 50)),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_total_does_not_depend_on_the_order_of_its_parts(parts: list[Any], dice: Any) -> None:
    events = []
    for sigma1, sigma2, asked, answered in parts:
        mechanism = replace(MNIST, sigma1=sigma1, sigma2=sigma2)
        events.append(event(mechanism, asked, min(asked, answered)))
        events.append(event(LNMax(**REST, scale=sigma1), asked, asked))
    total = total_cost(events)
    dice.shuffle(events)
    assert total_cost(events) == total
    assert total.rdp(Fraction(3)) == sum((e.cost().rdp(Fraction(3)) for e in events), Fraction(0))
