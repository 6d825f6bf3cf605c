"""Kernel features: the kernel itself, and lengths that never pass the lattice's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.kernel import AnchorFeatures, gaussian_kernel, rounded_down
from pate_fed.learning.features.settings import FeatureSettings


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


def test_anchors_are_turned_once_for_a_process_and_never_by_another_map_s_root() -> None:
    rng = np.random.default_rng(2)
    pool, other = rng.normal(size=(40, 2)), rng.normal(size=(40, 2))
    settings = FeatureSettings(columns=(1, 1))
    first, same = build_feature_map(settings, pool), build_feature_map(settings, pool)
    assert isinstance(first, AnchorFeatures) and isinstance(same, AnchorFeatures)
    assert first._root is same._root
    for chosen, points in ((settings, other), (replace(settings, whitening=0.5), pool)):
        found = build_feature_map(chosen, points)
        assert isinstance(found, AnchorFeatures) and not np.allclose(found._root, first._root)
    assert np.array_equal(build_feature_map(settings, pool).steps(other), first.steps(other))
