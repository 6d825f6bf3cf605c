"""Kernel features: the kernel itself, and lengths that never pass the lattice's."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.learning.features.kernel import gaussian_kernel, rounded_down


def test_the_kernel_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    plain = [[np.exp(-np.sum((x - y) ** 2)) for y in b] for x in a]
    np.testing.assert_allclose(gaussian_kernel(a, b), plain, rtol=1e-9)
    assert gaussian_kernel(a, a).max() <= 1


@pytest.mark.parametrize("lattice", [64, 4096])
def test_no_record_is_longer_than_it_is_charged_for(lattice: int) -> None:
    rng = np.random.default_rng(1)
    found = np.maximum(rng.normal(size=(200, 7)), 0).astype(np.float32)
    found[1:] += 0.01
    found[0] = 0  # an input that is like none
    steps = rounded_down(found, lattice)
    squares = (steps**2).sum(axis=1)
    assert squares.max() <= lattice**2 and steps.min() >= 0
    assert squares[1:].min() > 0.8 * lattice**2 and squares[0] == (lattice // 8) ** 2
