"""A record's features follow from that record alone, to the bit: what docs/proofs/class-sums.md rests on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureMap, FeatureSettings
from pate_fed.learning.features.kernel import WholeMatrix, row_kernel, row_product, whole

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (1300, 16, 16, 1)).astype(np.uint8)
COLUMNS = (1, 1, 3, 1)
ROWS = np.concatenate(
    [RNG.normal(size=(1300, 2)), np.eye(3)[RNG.integers(0, 3, 1300)], RNG.normal(size=(1300, 1)) ** 3], axis=1
)
ROWS[::7, 0] = np.nan
MAPS = {
    "kernel of images": (FeatureSettings(dimension=130), IMAGES),
    "random features of images": (FeatureSettings(name="random-features", dimension=130), IMAGES),
    "hog": (FeatureSettings(name="hog"), IMAGES),
    "kernel of rows": (FeatureSettings(columns=COLUMNS, dimension=130), ROWS),
    "bins": (FeatureSettings(name="bins", columns=COLUMNS), ROWS),
}


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with threadpool_limits(request.param):
        yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=list(MAPS), scope="module")
def made(request: pytest.FixtureRequest) -> tuple[FeatureMap, NDArray[np.generic], NDArray[np.int64]]:
    settings, inputs = MAPS[request.param]
    found = build_feature_map(settings, inputs[:300])
    with threadpool_limits(1):
        return found, inputs, found.features(inputs)


def test_a_record_has_the_same_features_beside_any_others(
    made: tuple[FeatureMap, NDArray[np.generic], NDArray[np.int64]], threads: int
) -> None:
    """Permuted, split into batches of every size, repeated, alone; with one and with two threads."""
    found, inputs, alike = made
    order = RNG.permutation(len(inputs))
    assert np.array_equal(found.features(inputs[order]), alike[order])
    start = 0
    for size in (1, 2, 3, 5, 16, 17, 31, 64, 100, 250, 251, 500):
        batch = slice(start, start + size)
        assert np.array_equal(found.features(inputs[batch]), alike[batch]), size
        start += size // 2 + 1
    assert np.array_equal(found.features(inputs[np.full(70, 9)]), alike[np.full(70, 9)])


def test_products_of_rows_are_exact_and_near_to_the_plain_ones(threads: int) -> None:
    a, b = RNG.normal(size=(400, 700)), RNG.normal(size=(700, 90))
    a /= np.abs(a).max()
    product = row_product(a, WholeMatrix.of(b), most=1.0)
    assert np.abs(product - a @ b).max() < 1e-3  # of entries of some 7
    exact = whole(a, 8, most=1.0).astype(np.int64).astype(object) @ whole(b, 8, most=8.0).astype(np.int64)
    doubles = whole(a, 8, most=1.0) @ whole(b, 8, most=8.0)
    assert (exact == doubles.astype(np.int64)).all()
    z, points = RNG.normal(size=(300, 40)) / 3, RNG.normal(size=(50, 40)) / 3
    plain = np.exp(-((z[:, None] - points) ** 2).sum(axis=2))
    assert np.abs(row_kernel(z, points) - plain).max() < 1e-4


@pytest.mark.parametrize("terms", [1, 7, 700, 100_000])
def test_no_sum_of_products_leaves_what_doubles_hold(terms: int) -> None:
    """The largest entries that there can be: the product is the whole number that it should be."""
    a, b = np.full((1, terms), 1.0), np.full((terms, 1), 1.0)
    assert row_product(a, WholeMatrix.of(b), most=1.0)[0, 0] == terms
    far = np.full((1, terms), 1e9)
    assert row_kernel(far, np.zeros((1, terms)))[0, 0] == np.exp(-256.0 * terms)
