"""The lemma's hypothesis: a record's features follow from that record alone, to the bit, by every map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import (
    BINS,
    KERNEL,
    LINEAR,
    FeatureMap,
    FeatureSettings,
    clipped,
)
from pate_fed.learning.features.kernel import WholeMatrix, row_kernel, row_product, whole

Inputs = NDArray[np.uint8] | NDArray[np.float64]

RECORDS, IMAGES = 135, 23  # no multiples of a vector's length


def _images(count: int, shape: tuple[int, int, int], key: int) -> NDArray[np.uint8]:
    """Noise, and images that are dark and nearly flat."""
    found = np.random.default_rng(key).integers(0, 256, (count, *shape), dtype=np.uint8)
    found[::3] //= 9
    return found


def _rows(count: int, key: int) -> NDArray[np.float64]:
    found = np.random.default_rng(key).normal(size=(count, 6))
    found[::5, 2] = np.nan
    found[1] = 1e30  # far from all that is public
    return found


def _made(name: str) -> tuple[FeatureMap, Inputs]:
    """A map by its name and what it is for, with records for it."""
    kind, _, what = name.partition(" of ")
    if what == "tables":
        settings = FeatureSettings(name=kind, columns=(1,) * 6)
        return build_feature_map(settings, _rows(300, 1)), _rows(RECORDS, 2)
    shape = {"grey images": (13, 17, 1), "colours": (12, 10, 3)}[what]
    settings = FeatureSettings(name=kind, dimension=90)
    return build_feature_map(settings, _images(200, shape, 1)), _images(IMAGES, shape, 2)


MAPS = (
    *(f"{KERNEL} of {what}" for what in ("grey images", "colours")),
    *(f"{kind} of tables" for kind in (KERNEL, LINEAR, BINS)),
)


@pytest.fixture
def threads() -> Iterator[None]:
    """Torch's number of threads, as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", MAPS)
def test_neither_other_records_nor_threads_change_a_bit_of_one_s_features(name: str) -> None:
    features, records = _made(name)
    most = len(records)
    alone = np.concatenate([features.features(records[row : row + 1]) for row in range(most)])
    order = np.random.default_rng(3).permutation(most)
    for count in (1, 2):
        torch.set_num_threads(count)
        with threadpool_limits(count):
            for size in (2, 7, 33, most):
                split = [features.features(records[at : at + size]) for at in range(0, most, size)]
                assert np.array_equal(np.concatenate(split), alone), (count, size)
            assert np.array_equal(features.features(records[order]), alone[order])
            repeated = np.repeat(np.arange(0, most, 9), 5)
            assert np.array_equal(features.features(records[repeated]), alone[repeated])
            assert np.array_equal(features.features(records[::-2]), alone[::-2])


def test_a_hospitals_sum_is_the_sum_of_what_each_record_adds_alone() -> None:
    features, records = _made(f"{KERNEL} of tables")
    labels = np.arange(RECORDS) % 3
    total = features.contributions(records, labels, num_classes=3)
    for label in range(3):
        own = sum(features.features(records[row : row + 1])[0] for row in range(label, RECORDS, 3))
        assert np.array_equal(total[:, label], own)
    less = features.contributions(records[1:], labels[1:], num_classes=3)
    assert np.array_equal((total - less)[:, 0], features.features(records[:1])[0])


def test_products_of_rows_are_exact_and_near_to_the_plain_ones() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(400, 700)), rng.normal(size=(700, 90))
    a /= np.abs(a).max()
    product = row_product(a, WholeMatrix.of(b), most=1.0)
    assert np.abs(product - a @ b).max() < 1e-3  # of entries of some 7
    exact = whole(a, 8, most=1.0).astype(np.int64).astype(object) @ whole(b, 8, most=8.0).astype(np.int64)
    doubles = whole(a, 8, most=1.0) @ whole(b, 8, most=8.0)
    assert (exact == doubles.astype(np.int64)).all()
    z, points = rng.normal(size=(300, 40)) / 3, rng.normal(size=(50, 40)) / 3
    plain = np.exp(-((z[:, None] - points) ** 2).sum(axis=2))
    assert np.abs(row_kernel(z, points) - plain).max() < 1e-4


@pytest.mark.parametrize("terms", [1, 7, 700, 100_000])
def test_no_sum_of_products_leaves_what_doubles_hold(terms: int) -> None:
    """The largest entries that there can be: the product is the whole number that it should be."""
    a, b = np.full((1, terms), 1.0), np.full((terms, 1), 1.0)
    assert row_product(a, WholeMatrix.of(b), most=1.0)[0, 0] == terms
    far = np.full((1, terms), 1e9)
    assert row_kernel(far, np.zeros((1, terms)))[0, 0] == np.exp(-256.0 * terms)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_patients_are_clipped_each_by_itself_however_many_are_computed_at_once(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, records = _made(f"{BINS} of tables")
    rng = np.random.default_rng(6)
    labels, patients = rng.integers(0, 3, RECORDS), rng.integers(0, 90, RECORDS)
    patients[:40] = 7  # one with more records than a small chunk
    want = np.zeros((features.dimension, 3), dtype=np.int64)
    for patient in np.unique(patients):
        rows = np.flatnonzero(patients == patient)
        own = np.zeros_like(want)
        for row in rows:
            own[:, labels[row]] += features.features(records[row : row + 1])[0]
        want += clipped(own, features.squared_norm)
    monkeypatch.setattr("pate_fed.learning.features.feature_map._CHUNK", chunk)
    assert np.array_equal(features.contributions(records, labels, num_classes=3, groups=patients), want)
