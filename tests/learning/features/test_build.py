"""Maps from the public pool: the same pool gives the same map, and a file is held to its digest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import build_feature_map, drawn_alike, feature_map_from_bytes
from pate_fed.learning.features.feature_map import (
    BINS,
    DIRECTIONS,
    KERNEL,
    LINEAR,
    FeatureSettings,
)
from pate_fed.structure import from_plain, to_plain

TABLE = FeatureSettings(columns=(1, 3), dimension=6)
CASES = [FeatureSettings(name=name, dimension=6) for name in (KERNEL, DIRECTIONS)]
CASES += [
    TABLE,
    replace(TABLE, name=LINEAR),
    replace(TABLE, name=BINS, bins=3),
    replace(TABLE, name=DIRECTIONS),
]


def _pool(settings: FeatureSettings, count: int = 30) -> NDArray[np.generic]:
    rng = np.random.default_rng(0)
    if not settings.columns:
        return rng.integers(0, 256, (count, 10, 10, 1), dtype=np.uint8)
    values = np.eye(4)[rng.integers(0, 4, count)][:, :3]  # the fourth is missing
    return np.concatenate([rng.normal(0, 1, (count, 1)), values], axis=1)


@pytest.mark.parametrize("settings", CASES, ids=lambda each: f"{each.name}{len(each.columns)}")
def test_a_map_comes_back_from_its_file_and_no_other_does(settings: FeatureSettings) -> None:
    pool = _pool(settings)
    made = build_feature_map(settings, pool)
    again = feature_map_from_bytes(made.to_bytes(), digest=made.digest)
    assert build_feature_map(settings, pool).digest == again.digest == made.digest
    assert (again.features(pool) == made.features(pool)).all()
    assert made.features(pool).shape == (30, made.dimension)
    with pytest.raises(IntegrityError, match="SHA-256"):
        feature_map_from_bytes(made.to_bytes(), digest="00" * 32)
    other = build_feature_map(settings, _pool(settings, 40))
    assert other.digest != made.digest
    for damaged in (made.to_bytes()[:-9], b"{}", b"", made.to_bytes().replace(b"lattice", b"lettuce")):
        with pytest.raises(IntegrityError):
            feature_map_from_bytes(damaged, digest=made.digest)


def test_rows_drawn_from_sums_are_like_the_records_that_made_them() -> None:
    knots = tuple(np.linspace(0, 10, 6).tolist())
    settings = FeatureSettings(name=BINS, columns=(1, 1, 2), cuts=(knots, knots, ()), lattice=1024)
    rng, count = np.random.default_rng(0), 20_000
    labels = (rng.uniform(size=count) < 0.2).astype(np.int64)
    spread = np.where(labels, rng.uniform(4, 10, count), rng.uniform(0, 6, count))
    at_knots = np.where(labels, 8.0, 2.0)
    at_knots[::10] = np.nan
    kinds = np.eye(3)[np.where(labels, 1, rng.integers(0, 3, count))][:, :2]  # the third is missing
    rows = np.column_stack([spread, at_knots, kinds])
    features = build_feature_map(settings, rows)
    sums = features.contributions(rows, labels, num_classes=2)
    noise = rng.normal(0, 2 * 1024, sums.shape).astype(np.int64)
    drawn = drawn_alike(features, sums + noise)
    assert np.array_equal(drawn, drawn_alike(features, sums + noise), equal_nan=True)
    for column in (0, 1):
        own, theirs = (each[:, column][np.isfinite(each[:, column])] for each in (drawn, rows))
        assert own.mean() == pytest.approx(theirs.mean(), abs=0.15)
        assert own.std() == pytest.approx(theirs.std(), rel=0.06)
    assert np.isnan(drawn[:, 1]).mean() == pytest.approx(0.1, abs=0.02)
    assert np.isin(drawn[:, 1], (2.0, 8.0, np.nan)).mean() > 0.85  # what lies at knots stays there
    assert drawn[:, 2:].mean(axis=0) == pytest.approx(kinds.mean(axis=0), abs=0.03)
    # Columns go together as classes make them.
    both = [np.nanmean(each[each[:, 1] > 5, 0]) for each in (drawn, rows)]
    assert both[0] == pytest.approx(both[1], abs=0.2)


def test_rows_are_drawn_of_noise_alone_and_of_no_other_map() -> None:
    settings = FeatureSettings(name=BINS, columns=(1, 2), cuts=((0.0, 1.0), ()))
    features = build_feature_map(settings, _pool(settings)[:, :3])
    for sums in (np.zeros, np.ones, lambda shape, dtype: np.full(shape, -5, dtype)):
        drawn = drawn_alike(features, sums((features.dimension, 3), dtype=np.int64))
        assert len(drawn) and features.features(drawn).max() <= settings.lattice
    with pytest.raises(InputError, match="of 'bins' alone"):
        drawn_alike(build_feature_map(TABLE, _pool(TABLE)), np.zeros((7, 2), dtype=np.int64))


def test_settings_stand_in_terms() -> None:
    settings = FeatureSettings(columns=(1, 4), cuts=((40.0, 50.0), ()))
    plain = json.loads(json.dumps(to_plain(settings)))
    assert from_plain(FeatureSettings, plain, where="terms") == settings
    for bad, words in (
        ({"name": "bins"}, "bins is for tables"),
        ({"name": "linear-and-kernel"}, "linear-and-kernel is for tables"),
        ({"name": "linear-and-kernel", "columns": (1,), "lattice": 31}, "at least 32"),
        ({"columns": (1,), "cuts": ((1.0,), (2.0,))}, "2 for 1 columns"),
        ({"columns": (1,), "cuts": ((2.0, 1.0),)}, "do not rise"),
        ({"name": "pixels"}, "one of kernel"),
    ):
        with pytest.raises(InputError, match=words):
            FeatureSettings(**bad)


def test_a_pool_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(n, 4\)"):
        build_feature_map(TABLE, np.zeros((5, 3)))
    with pytest.raises(InputError, match="at least 2"):
        build_feature_map(TABLE, np.zeros((1, 4)))


def test_private_records_have_no_part_in_a_map() -> None:
    """What is fitted comes from the pool: knots at its quantiles, or as they were declared."""
    made = build_feature_map(replace(TABLE, name="bins", bins=3), _pool(TABLE))
    knots = np.quantile(_pool(TABLE)[:, 0], (np.arange(3) + 0.5) / 3)
    assert json.loads(made.to_bytes())["knots"][0] == pytest.approx(knots.tolist())
    declared = replace(TABLE, name="bins", cuts=((0.0, 1.0), ()))
    assert json.loads(build_feature_map(declared, _pool(TABLE)).to_bytes())["knots"] == [[0.0, 1.0], []]
