"""Directions of the pool: what they are, and a cut that follows from no record."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.build import build_feature_map, feature_map_from_bytes
from pate_fed.learning.features.directions import DirectionFeatures, base_settings, directions_from_arrays
from pate_fed.learning.features.feature_map import DIRECTIONS, LINEAR, FeatureSettings, clipped

SETTINGS = FeatureSettings(name=DIRECTIONS, columns=(1, 1, 3), dimension=4)


def _rows(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.hstack([rng.normal(0, 1, (count, 2)), np.eye(3)[rng.integers(0, 3, count)]])


def _map() -> DirectionFeatures:
    made = build_feature_map(SETTINGS, _rows(300))
    assert isinstance(made, DirectionFeatures)
    return made


def test_features_are_centred_apart_and_of_length_1_in_the_pool() -> None:
    made = _map()
    assert base_settings(SETTINGS).name == LINEAR and made.base.settings == base_settings(SETTINGS)
    found = made.scaled(_rows(300)).astype(np.float64)
    constant, along = found[:, 0], found[:, 1:]
    assert constant.std() == 0 and constant[0] == pytest.approx(along[:, 0].std(), rel=0.01)
    assert np.abs(along.mean(axis=0)).max() < 0.01
    assert (along**2).sum(axis=1).mean() == pytest.approx(1, rel=0.01)
    together = along.T @ along / len(along)
    assert np.abs(together - np.diag(np.diag(together))).max() < 0.01
    assert (along < 0).any() and (np.diff(np.diag(together)) <= 1e-3).all()


def test_what_is_far_away_is_cut_and_missing_is_a_number() -> None:
    far = _map().features(np.array([[1e300, -1e300, 1, 0, 0], [np.nan, np.nan, 0, 0, 0]]))
    assert np.abs(far).max() <= 31 * SETTINGS.lattice == _map().largest < 2**15  # kept in 16 bits


def test_the_cut_grows_with_the_stated_records_alone() -> None:
    made, pool = _map(), _rows(300)
    cuts = [made.usual_lengths(records, 2, pool) for records in (1, 100, 10_000)]
    assert [most for most, _ in cuts] == sorted(most for most, _ in cuts) and cuts[0][0] == 1
    assert cuts[1][1] == 5 and cuts[2][0] < 10_000


@pytest.mark.parametrize("entry", [2**24, -(2**24), 2**31, 2**40])
def test_a_cut_holds_however_large_and_many_the_entries_are(entry: int) -> None:
    for shape in ((20_000, 2), (300, 2), (1, 1)):
        found = clipped(np.full(shape, entry, dtype=np.int64), 4096)
        assert sum(int(each) ** 2 for each in found.ravel()) <= 4096  # in Python's whole numbers


def test_a_map_inside_a_map_inside_a_map_is_none() -> None:
    inner = _map()
    arrays = load(inner.to_bytes())
    arrays["base"] = np.frombuffer(inner.to_bytes(), dtype=np.uint8)
    with pytest.raises(IntegrityError, match="damaged"):
        feature_map_from_bytes(save(arrays), digest=None)


def test_parts_that_do_not_fit_are_refused() -> None:
    made = _map()
    parts = {"turn": made.turn, "centre": made.centre}
    assert directions_from_arrays(SETTINGS, made.base, parts).digest == made.digest
    for wrong in ({"turn": made.turn[1:]}, {"centre": made.centre[1:]}, {"turn": made.turn * np.nan}):
        with pytest.raises(IntegrityError, match="do not fit"):
            directions_from_arrays(SETTINGS, made.base, parts | wrong)
    with pytest.raises(IntegrityError, match="damaged"):
        feature_map_from_bytes(made.to_bytes()[:-5], digest=made.digest)
