"""The plan that several modules look at, made once, and a plan's offers alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pate_fed.privacy import RECORD, Plan, Protection, plan
from pate_fed.privacy.planning.search import Offer, OfferSearch
from pate_fed.privacy.planning.vote_model import assumed_votes

Offers = Callable[..., list[Offer]]


@pytest.fixture(scope="session")
def usual() -> Plan:
    """Of 250 teachers and ten classes, for ε=2 at δ=1e-5."""
    return plan(num_teachers=250, num_classes=10, epsilon=2.0, delta=1e-5)


@pytest.fixture(scope="session")
def offers() -> Offers:
    """A plan's offers, without noise at the hospitals, other budgets and advice."""

    def offers(
        teachers: int,
        classes: int,
        epsilon: float,
        *,
        delta: float = 1e-5,
        agreement: float = 0.85,
        pool: int = 10_000,
        protection: Protection = RECORD,
    ) -> list[Offer]:
        votes = assumed_votes(agreement, classes, teachers)
        search = OfferSearch(votes, teachers, pool, protection, delta)
        return [found for name in ("confident-gnmax", "gnmax") if (found := search.offer(name, epsilon))]

    return offers
