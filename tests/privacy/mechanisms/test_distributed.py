"""Noisy max of totals that hold the hospitals' own noise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InputError
from pate_fed.privacy import DistributedGNMax, SeededNoise
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise

REST: dict[str, Any] = {"num_teachers": 100, "num_classes": 3}


SIGHT = hospital_noise(sigma_party=4.0, survivors=10)


TOTALS = np.array([[70, 20, 10], [40, 30, 30], [10, 60, 30], [59, 41, 0], [0, 0, 100]])


DISTRIBUTED = DistributedGNMax(**REST, threshold=60.0, sigma_party=4.0, least_honest=8)


def test_distributed_answers_from_noisy_totals_and_pays_for_all_of_them() -> None:
    noisy = [[70, -3, 10], [40, 30, 30], [10, 130, 30], [80, 1, 1]]
    release = DISTRIBUTED.release(noisy, SeededNoise(0), max_answers=2, coordinator=SIGHT)
    assert release.label.tolist() == [0, -1, 1, -1]
    assert (release.event.asked, release.event.answered) == (4, 2)
    student, seen = release.event.cost().as_totals, release.event.coordinator_cost()
    assert seen is not None
    assert float(student.rho) == pytest.approx(4 / (16 * 8))
    assert float(seen.as_totals.rho) == pytest.approx(4 / (16 * 10))
    everything = replace(DISTRIBUTED, threshold=None)
    assert everything.release(noisy, SeededNoise(0), coordinator=SIGHT).answered.all()


def test_distributed_refuses_totals_with_less_noise_than_needed() -> None:
    for sight in (replace(SIGHT, survivors=7), replace(SIGHT, colluders=3), replace(SIGHT, sigma_party=3.9)):
        with pytest.raises(InputError, match="needed"):
            DISTRIBUTED.release(TOTALS, SeededNoise(0), coordinator=sight)
    for totals in ([[0.5, 1, 1]], [[1, 1]], [[2**40, 0, 0]], [1, 2, 3]):
        with pytest.raises(InputError, match="noisy totals"):
            DISTRIBUTED.release(totals, SeededNoise(0), coordinator=SIGHT)


@settings(deadline=None, derandomize=True)
@given(st.floats(0.5, 1e4), st.integers(1, 300), st.integers(0, 50))
def test_shares_of_honest_survivors_add_up(sigma: float, honest: int, colluders: int) -> None:
    share = party_sigma(sigma, parties=honest + colluders, colluders=colluders)
    assert Fraction(share) ** 2 * honest >= Fraction(sigma) ** 2
    assert share * share * honest == pytest.approx(sigma * sigma, rel=1e-12)


def test_no_honest_survivor_is_refused() -> None:
    with pytest.raises(InputError, match="none of 5 hospitals"):
        party_sigma(10.0, parties=5, colluders=5)
