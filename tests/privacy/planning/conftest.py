"""The plan that several modules look at, made once."""

from __future__ import annotations

import pytest

from pate_fed.privacy import Plan, plan


@pytest.fixture(scope="session")
def usual() -> Plan:
    """Of 250 teachers and ten classes, for ε=2 at δ=1e-5."""
    return plan(num_teachers=250, num_classes=10, epsilon=2.0, delta=1e-5)
