"""Samplers have the right law, at the right scale and no other; only one of them can be repeated."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.privacy import NoiseSource, SeededNoise, SystemNoise, noise_from_seed
from pate_fed.privacy.mechanisms.noise import SEEDED, SYSTEM

# The system's sampler cannot be seeded, so its tests fail by chance this often: never seen in practice.
CHANCE = 1e-9


@pytest.fixture(params=["system", "seeded"])
def source(request: pytest.FixtureRequest) -> NoiseSource:
    return SystemNoise() if request.param == "system" else SeededNoise(3)


def gaussian_law(sigma: float) -> NDArray[np.float64]:
    """Pr[x] for x = -reach..reach."""
    x = np.arange(-_reach(sigma), _reach(sigma) + 1)
    weights = np.exp(-0.5 * (x / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def laplace_law(scale: float) -> NDArray[np.float64]:
    x = np.arange(-_reach(4 * scale), _reach(4 * scale) + 1)
    weights = np.exp(-np.abs(x) / scale)
    return np.asarray(weights / weights.sum())


def _reach(scale: float) -> int:
    return math.ceil(12 * scale) + 2


def fit(draws: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """p-value of Pearson's χ² test, cells with few expected draws put together; both tails are looked at."""
    reach = len(law) // 2
    seen = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(law))
    edges, start, mass = [], 0, 0.0
    for cell, chance in enumerate(law):
        mass += chance
        if mass * len(draws) >= 30:
            edges.append((start, cell + 1))
            start, mass = cell + 1, 0.0
    edges[-1] = (edges[-1][0], len(law))
    expected = np.array([law[a:b].sum() for a, b in edges]) * len(draws)
    observed = np.array([seen[a:b].sum() for a, b in edges])
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("sigma", [0.8, 1.0, 3.7, 40.0])
def test_gaussian_accepts_its_scale_and_rejects_two_thirds_and_three_halves(
    source: NoiseSource, sigma: float
) -> None:
    draws = source.discrete_gaussian(4000, sigma=sigma)
    assert fit(draws, gaussian_law(sigma)) > CHANCE
    assert fit(draws, gaussian_law(sigma * 2 / 3)) < CHANCE
    assert fit(draws, gaussian_law(sigma * 3 / 2)) < CHANCE


@pytest.mark.parametrize("scale", [0.5, 1.0, 7.3, 20.0])
def test_laplace_accepts_its_scale_and_rejects_two_thirds_and_three_halves(
    source: NoiseSource, scale: float
) -> None:
    draws = source.discrete_laplace(4000, scale=scale)
    assert fit(draws, laplace_law(scale)) > CHANCE
    assert fit(draws, laplace_law(scale * 2 / 3)) < CHANCE
    assert fit(draws, laplace_law(scale * 3 / 2)) < CHANCE


def test_draws_are_independent_of_their_neighbours(source: NoiseSource) -> None:
    draws = source.discrete_gaussian((2000, 3), sigma=10.0).astype(float)
    for first, second in ((draws[:, 0], draws[:, 1]), (draws[:-1, 2], draws[1:, 2])):
        assert stats.pearsonr(first, second).pvalue > CHANCE


def test_shapes_and_types(source: NoiseSource) -> None:
    for shape in (0, 5, (0, 3), (4, 3), (2, 3, 4)):
        expected = (shape,) if isinstance(shape, int) else shape
        drawn = (
            source.discrete_gaussian(shape, sigma=2.0),
            source.discrete_laplace(shape, scale=2.0),
            source.tie_keys(shape),
        )
        assert {(values.shape, values.dtype) for values in drawn} == {(expected, np.dtype(np.int64))}


def test_extremes_stay_finite(source: NoiseSource) -> None:
    assert not source.discrete_gaussian(50, sigma=1e-6).any()
    assert not source.discrete_laplace(50, scale=1e-6).any()
    for wide in (source.discrete_gaussian(200, sigma=1e9), source.discrete_laplace(200, scale=1e9)):
        assert 1e8 < np.abs(wide.astype(float)).mean() < 1e10


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e-7, 1e10, "40", None, True])
def test_a_scale_that_is_none_is_refused(source: NoiseSource, scale: Any) -> None:
    with pytest.raises(InputError, match="sigma="):
        source.discrete_gaussian(3, sigma=scale)
    with pytest.raises(InputError, match="scale="):
        source.discrete_laplace(3, scale=scale)


def test_tie_keys_are_uniform(source: NoiseSource) -> None:
    keys = source.tie_keys((6000, 3))
    assert keys.min() >= 1 and keys.max() <= 2**62
    wins = np.bincount(keys.argmax(axis=1), minlength=3)
    assert stats.chisquare(wins).pvalue > CHANCE
    assert stats.kstest(keys.ravel() / 2**62, "uniform").pvalue > CHANCE


def test_seeded_noise_repeats_and_says_what_it_is() -> None:
    first, again, other = SeededNoise(1), SeededNoise(1), SeededNoise(2)
    draws = [n.discrete_gaussian(100, sigma=40.0) for n in (first, again, other)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    # Going on, it does not repeat itself.
    assert not np.array_equal(first.discrete_gaussian(100, sigma=40.0), draws[0])
    assert (first.kind, first.private) == (SEEDED, False)
    assert SEEDED == "not private: seeded noise"
    assert "1" in repr(first) and "rng" not in repr(first).lower()


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    with pytest.raises(InputError, match="seed="):
        SeededNoise(seed)


def test_system_noise_has_no_seed_and_does_not_repeat() -> None:
    assert not inspect.signature(SystemNoise).parameters
    np.random.seed(0)
    first = SystemNoise().discrete_gaussian(64, sigma=40.0), SystemNoise().discrete_laplace(64, scale=40.0)
    np.random.seed(0)
    again = SystemNoise().discrete_gaussian(64, sigma=40.0), SystemNoise().discrete_laplace(64, scale=40.0)
    assert not any(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert (SystemNoise().kind, SystemNoise().private) == (SYSTEM, True)


def test_forked_processes_draw_different_noise() -> None:
    program = (
        "import os, sys\n"
        "from pate_fed.privacy import SystemNoise\n"
        "SystemNoise().discrete_gaussian(4, sigma=40.0)\n"
        "child = os.fork()\n"
        "sys.stdout.write(' '.join(map(str, SystemNoise().discrete_gaussian(32, sigma=1e6))) + chr(10))\n"
        "sys.stdout.flush()\n"
        "os.waitpid(child, 0) if child else os._exit(0)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == 2 and lines[0] != lines[1]


def test_choice_by_seed() -> None:
    assert noise_from_seed(None) == SystemNoise()
    seeded = noise_from_seed(7)
    assert isinstance(seeded, SeededNoise) and seeded.seed == 7
    assert isinstance(seeded, NoiseSource) and isinstance(SystemNoise(), NoiseSource)
