"""Totals with the hospitals' own noise have the variance that the ledger charges for, whoever drops out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from pate_fed.errors import InputError
from pate_fed.privacy import DistributedGNMax, SeededNoise, SystemNoise
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.secure_sum import add_noise_share

LENGTH, N, SIGMA = 4000, 6, 12.0


def _fits(noise: Any, variance: float, *, chance: float = 1e-6) -> bool:
    """Two-sided chi-square test of the variance of centred draws."""
    statistic = float((noise.astype(float) ** 2).sum()) / variance
    low, high = chi2.ppf([chance / 2, 1 - chance / 2], noise.size)
    return bool(low < statistic < high)


def _noisy(votes: Any, sigma_party: float, seed: int) -> Any:
    shares = [
        add_noise_share(row, SeededNoise(1000 * seed + i).discrete_gaussian, sigma_party=sigma_party)
        for i, row in enumerate(votes)
    ]
    return np.stack(shares)


@pytest.mark.parametrize(
    "drop", [{}, {"mask": [5]}, {"share": [0], "mask": [3]}, {"consent": [1], "unmask": [2]}]
)
def test_totals_have_the_variance_that_is_charged(drop: Any, federation: Any, vectors: Any) -> None:
    share = party_sigma(SIGMA, parties=N - 2)
    votes = vectors(N, LENGTH, most=1)
    parties, noisy = federation(N), _noisy(votes, share, seed=len(drop))
    batch = parties.until("unmask", noisy, drop=drop)
    total = batch.total()
    survivors = [parties.names.index(name) for name in batch.survivors]
    charged = hospital_noise(sigma_party=share, survivors=len(survivors)).variance
    assert charged is not None and charged >= SIGMA**2
    noise = total - votes[survivors].sum(axis=0)
    assert _fits(noise, float(charged))
    for wrong in (2 / 3, 3 / 2):
        assert not _fits(noise, float(charged) * wrong**2)
    assert abs(noise.mean()) < 6 * math.sqrt(float(charged) / LENGTH)


def test_colluders_leave_the_variance_that_is_charged_with_them(federation: Any, vectors: Any) -> None:
    """Two hospitals tell the coordinator their noise; it subtracts it, and the ledger has counted on that."""
    share = party_sigma(SIGMA, parties=N - 1, colluders=2)
    votes = vectors(N, LENGTH, most=1)
    noisy = _noisy(votes, share, seed=9)
    total = federation(N).total(noisy, drop={"mask": [5]})
    left = total - votes[:5].sum(axis=0) - (noisy[:2] - votes[:2]).sum(axis=0)
    charged = hospital_noise(sigma_party=share, survivors=5, colluders=2).variance
    assert charged is not None and charged >= SIGMA**2
    assert _fits(left, float(charged))
    everyone = hospital_noise(sigma_party=share, survivors=5).variance
    assert everyone is not None and not _fits(left, float(everyone))


def test_noise_of_the_system_has_the_same_variance(federation: Any, vectors: Any) -> None:
    pytest.importorskip("opendp")
    votes, share = vectors(4, 1000, most=1), party_sigma(SIGMA, parties=4)
    noisy = np.stack(
        [add_noise_share(row, SystemNoise().discrete_gaussian, sigma_party=share) for row in votes]
    )
    assert _fits(federation(4).total(noisy) - votes.sum(axis=0), SIGMA**2, chance=1e-9)


def test_noisy_totals_go_straight_to_the_mechanism(federation: Any) -> None:
    """Six hospitals agree on class 1 of every query; its noisy total passes the threshold and wins."""
    share = party_sigma(4.0, parties=N)
    mechanism = DistributedGNMax(
        num_teachers=600, num_classes=3, threshold=300, sigma_party=share, least_honest=N
    )
    votes = np.zeros((N, 20, 3), dtype=np.int64)
    votes[:, :, 1] = 100
    noisy = np.stack([_noisy(votes[i : i + 1], share, seed=i + 1)[0] for i in range(N)]).reshape(N, -1)
    totals = federation(N).total(noisy).reshape(20, 3)
    sight = hospital_noise(sigma_party=share, survivors=N)
    release = mechanism.release(totals, SeededNoise(0), coordinator=sight)
    assert release.answered.all() and (release.label == 1).all()
    assert release.event.coordinator_cost() is not None


def test_too_little_noise_is_refused_before_any_is_drawn() -> None:
    def never(shape: tuple[int, ...], /, *, sigma: float) -> Any:
        raise AssertionError

    for sigma in (1.41, 0.0, -3.0, math.nan, math.inf):
        with pytest.raises(InputError, match="sigma_party="):
            add_noise_share(np.zeros(3, dtype=np.int64), never, sigma_party=sigma)


def test_a_source_that_gives_something_else_is_refused() -> None:
    for wrong in (np.zeros(2, dtype=np.int64), np.zeros(3), np.zeros((3, 1), dtype=np.int64)):
        with pytest.raises(InputError, match="source of noise"):
            add_noise_share(
                np.zeros(3, dtype=np.int64), lambda shape, *, sigma, wrong=wrong: wrong, sigma_party=2.0
            )
