"""Clipped contributions: however records look, a unit moves a sum by no more than is charged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.features import feature_map as module
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureMap, FeatureSettings, Pull, clip_rows, clipped
from pate_fed.learning.features.residuals import ClassPull, ResidualPull, WholePull
from pate_fed.privacy.mechanisms.class_sums import squared_sensitivity
from pate_fed.privacy.protection import Protection

Ints = NDArray[np.int64]

COLUMNS = (1, 3, 1, 2)
HOSTILE = (math.nan, -3.4e38, 3.4e38, 0.0, 1.0, -1e-300, 1e300, math.inf, -math.inf)


class Hostile(FeatureMap):
    """A map whose numbers are anything at all, as a fault in one might make them."""

    settings = FeatureSettings(lattice=100, columns=(1,) * 5)
    dimension, squared_norm, digest = 5, 100**2 + 7, "hostile"

    def to_bytes(self) -> bytes:
        """Nothing."""
        return b""

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """The inputs themselves."""
        return np.asarray(inputs, dtype=np.int64)


def _maps() -> list[FeatureMap]:
    rows = _rows(np.random.default_rng(5), 60)
    maps = [
        build_feature_map(FeatureSettings(name=name, columns=COLUMNS, lattice=lattice), rows)
        for name in ("kernel", "linear-and-kernel", "bins")
        for lattice in (16 if name != "linear-and-kernel" else 32, 1024)
    ]
    images = np.random.default_rng(1).integers(0, 256, (40, 12, 12, 1), dtype=np.uint8)
    return [*maps, build_feature_map(FeatureSettings(dimension=15), images)]


def _rows(rng: np.random.Generator, count: int, *, hostile: bool = False) -> NDArray[np.float64]:
    rows = np.zeros((count, sum(COLUMNS)))
    rows[:, [0, 4]] = rng.normal(0, 3, (count, 2))
    rows[np.arange(count), 1 + rng.integers(0, 3, count)] = 1
    rows[np.arange(count), 5 + rng.integers(0, 2, count)] = 1
    if hostile:
        where = rng.random(rows.shape) < 0.5
        rows[where] = rng.choice(HOSTILE, int(where.sum()))
    return rows


def _inputs(feature_map: FeatureMap, rng: np.random.Generator, count: int) -> NDArray[Any]:
    if isinstance(feature_map, Hostile):
        size = 10 ** rng.integers(0, 18)
        return rng.integers(-size, size, (count, 5))
    if feature_map.settings.columns:
        return _rows(rng, count, hostile=True)
    kinds = rng.integers(0, 3, count)
    images = rng.integers(0, 256, (count, 12, 12, 1), dtype=np.uint8)
    images[kinds == 0], images[kinds == 1] = 0, 255
    return images


@pytest.mark.parametrize("feature_map", [Hostile(), *_maps()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
def test_a_unit_moves_the_sum_by_no_more_than_is_charged(feature_map: FeatureMap, adjacency: str) -> None:
    rng = np.random.default_rng(7)
    charged = squared_sensitivity(feature_map.squared_norm, Protection(adjacency=adjacency))
    reached = 0
    with np.errstate(all="ignore"):
        for _ in range(4 if feature_map.settings.columns == () else 40):
            inputs, labels = _inputs(feature_map, rng, 8), rng.integers(0, 3, 8)
            groups = np.array([0, 1, 1, 1, 2, 3, 3, 4])  # patients of one to three records
            whole = feature_map.contributions(inputs, labels, num_classes=3, groups=groups)
            patient = rng.integers(0, 5)
            kept = groups != patient
            other = feature_map.contributions(inputs[kept], labels[kept], num_classes=3, groups=groups[kept])
            if adjacency == "replace-one":
                new = _inputs(feature_map, rng, 4), rng.integers(0, 3, 4)
                other = other + feature_map.contributions(*new, num_classes=3, groups=np.zeros(4, dtype=int))
            assert whole.min() >= 0
            moved = int(((whole - other).astype(object) ** 2).sum())
            assert moved <= charged
            reached = max(reached, moved)
    assert reached > 0.1 * charged  # else it would test nothing


def test_two_records_of_different_classes_reach_the_charge() -> None:
    feature_map = Hostile()
    one = np.array([[100, 0, 0, 0, 0]])
    first, second = (feature_map.contributions(one, np.array([y]), num_classes=2) for y in (0, 1))
    moved = int(((first - second) ** 2).sum())
    assert moved == 2 * 100**2 <= squared_sensitivity(feature_map.squared_norm, Protection())


def test_a_hospital_moves_the_sum_by_no_more_than_its_units() -> None:
    feature_map, rng = Hostile(), np.random.default_rng(2)
    for records in (1, 3, 50):
        inputs, labels = rng.integers(0, 90, (records, 5)), rng.integers(0, 3, records)
        whole = feature_map.contributions(inputs, labels, num_classes=3, most_units=4)
        assert int((whole**2).sum()) <= 16 * feature_map.squared_norm
        plain = feature_map.contributions(inputs, labels, num_classes=3)
        assert (whole == plain).all() == (int((plain**2).sum()) <= 16 * feature_map.squared_norm)


def test_contributions_are_the_plain_sum_where_nothing_is_clipped() -> None:
    for feature_map in _maps():
        rng = np.random.default_rng(3)
        inputs = _inputs(feature_map, rng, 20)
        labels = rng.integers(0, 4, 20)
        with np.errstate(all="ignore"):
            features = feature_map.features(inputs)
            found = feature_map.contributions(inputs, labels, num_classes=4, groups=np.arange(20))
        assert (features >= 0).all()
        assert (found == features.T @ np.eye(4, dtype=np.int64)[labels]).all()
        assert found.max() <= feature_map.largest_entry(20)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1)])
def test_clipping_never_lengthens_and_stays_near(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        squared = int(rng.integers(1, 10**6))
        rows = rng.integers(0, 10 ** int(rng.integers(1, 9)), shape)
        found = clip_rows(rows, squared)
        lengths = (found.astype(object) ** 2).sum(axis=1)
        assert (lengths <= squared).all() and (found >= 0).all()
        short = (rows.astype(object) ** 2).sum(axis=1) <= squared
        assert (found[short] == rows[short]).all()
        whole = clipped(rows, squared)
        assert int((whole.astype(object) ** 2).sum()) <= squared
    long = clip_rows(np.array([[30_000, 40_000]]), 1000**2)
    assert long.tolist() == [[706, 706]]  # each entry by itself first, so that no square can overflow
    assert clipped(np.array([[30_000, 40_000]]), 1000**2).tolist() == [[600, 800]]


def test_what_does_not_fit_together_is_refused() -> None:
    feature_map = Hostile()
    rows = np.ones((3, 5), dtype=np.int64)
    with pytest.raises(InputError, match="whole numbers"):
        feature_map.contributions(rows, np.array([0, 1]), num_classes=2)
    with pytest.raises(InputError, match="none of the classes 0 to 1"):
        feature_map.contributions(rows, np.array([0, 1, 2]), num_classes=2)
    with pytest.raises(InputError, match="groups"):
        feature_map.contributions(rows, np.array([0, 1, 1]), num_classes=2, groups=np.array([1]))


def _plainly(
    feature_map: FeatureMap, inputs: Ints, labels: Ints, groups: Ints | None, pull: Pull | None
) -> Ints:
    """What each patient adds by itself, one after another: as it was before patients were taken together."""
    features = feature_map.features(inputs)
    pulls = np.eye(3, dtype=np.int64)[labels] if pull is None else pull(features, labels)
    if groups is None:
        return np.asarray(features.T.astype(np.float64) @ pulls.astype(np.float64)).astype(np.int64)
    squared_norm = feature_map.squared_norm * (1 if pull is None else pull.length**2)
    total = np.zeros((feature_map.dimension, 3), dtype=np.int64)
    for patient in np.unique(groups):
        own = groups == patient
        added = (features[own].T.astype(np.float64) @ pulls[own].astype(np.float64)).astype(np.int64)
        total += added if own.sum() == 1 else clipped(added, squared_norm)
    return total


_WEIGHTS = np.random.default_rng(4).normal(size=(5, 3))
_PULLS = {
    "none": None,
    "class": ClassPull(num_classes=3, length=7),
    "residual": ResidualPull(weights=_WEIGHTS, squared_norm=100**2 + 7, length=10, unit=20),
    "whole": WholePull(weights=_WEIGHTS, lattice=100, length=10, unit=20),
}


@pytest.mark.parametrize("pull", _PULLS.values(), ids=_PULLS.keys())
@pytest.mark.parametrize("sizes", [(1000, 250, 2**18), (7, 3, 1), (2, 1, 60)], ids=str)
def test_patients_taken_together_add_what_each_adds_alone(
    pull: Pull | None, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in zip(("_CHUNK", "_BLOCK", "_ENTRIES"), sizes, strict=True):
        monkeypatch.setattr(module, name, size)
    feature_map, rng = Hostile(), np.random.default_rng(11)
    for count, most in ((0, 3), (1, 1), (60, 1), (60, 3), (90, 70), (90, 10**9)):
        inputs, labels = rng.integers(-30, 120, (count, 5)), rng.integers(0, 3, count)
        groups = rng.integers(0, most, count) * 10**9
        want = _plainly(feature_map, inputs, labels, groups, pull)
        kept = feature_map.features(inputs).astype(np.int16)
        for order in (np.arange(count), rng.permutation(count)):
            given: dict[str, Any] = {"num_classes": 3, "groups": groups[order], "pull": pull}
            for more in ({}, {"kept": kept[order]}):
                found = feature_map.contributions(inputs[order], labels[order], **given, **more)
                assert isinstance(pull, WholePull) or np.array_equal(found, want)
                assert np.abs(found - want).max() <= count  # what is no whole number is cut in each chunk
        halves = [groups < most // 2 * 10**9, groups >= most // 2 * 10**9]
        parts = [
            feature_map.contributions(inputs[half], labels[half], num_classes=3, groups=groups[half])
            for half in halves
        ]
        assert np.array_equal(sum(parts), _plainly(feature_map, inputs, labels, groups, None))


def test_patients_sums_beyond_what_doubles_hold_are_cut_exactly() -> None:
    rng = np.random.default_rng(1)
    for size in (10, 2**20, 2**26, 2**31, 2**40):
        own = rng.integers(-size, size, (40, 5, 3))
        norms = {int((own[0].astype(object) ** 2).sum()) + more for more in (-1, 0, 1)} | {size, size**2 + 1}
        for norm in norms:
            want = np.stack([clipped(each, norm) for each in own])
            assert np.array_equal(module._clipped_each(own.copy(), norm), want)
