"""Rows of tables as features: knots, categories, and missing values."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from pate_fed.learning.features.build import build_feature_map, feature_map_from_bytes, fit_table_embedding
from pate_fed.learning.features.feature_map import KERNEL, LINEAR, FeatureSettings

BINS = FeatureSettings(name="bins", columns=(1, 2), cuts=((0.0, 10.0, 30.0), ()), lattice=100)


def test_a_number_counts_for_both_knots_around_it_by_the_roots_of_its_shares() -> None:
    made = build_feature_map(BINS, np.zeros((2, 3)))
    rows = np.array([[5.0, 1, 0], [-9.0, 0, 1], [99.0, 0, 0], [math.nan, 1, 0], [30.0, 0, 1], [14.0, 1, 0]])
    root = [math.floor(100 * math.sqrt(share)) for share in (0.5, 0.8, 0.2)]
    assert made.features(rows).tolist() == [
        [100, root[0], root[0], 0, 0, 100, 0, 0],
        [100, 100, 0, 0, 0, 0, 100, 0],
        [100, 0, 0, 100, 0, 0, 0, 100],  # beyond the last knot; no value of the category
        [100, 0, 0, 0, 100, 100, 0, 0],  # missing
        [100, 0, 0, 100, 0, 0, 100, 0],
        [100, 0, root[1], root[2], 0, 100, 0, 0],
    ]
    assert made.squared_norm == 3 * 100**2 >= (made.features(rows) ** 2).sum(axis=1).max()


def test_one_declared_knot_parts_a_column() -> None:
    settings = FeatureSettings(columns=(1,), cuts=((50.0,),), dimension=4)
    embedding = fit_table_embedding(settings, np.array([[49.0], [50.0], [80.0], [1.0]]))
    low, edge, high, least = embedding.encode(np.array([[49.0], [50.0], [80.0], [1.0]]))[:, 0]
    assert low == least < edge == high


def test_the_pools_mean_squared_distance_is_two_whatever_the_units() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(0, 1e6, (200, 1)), np.eye(3)[rng.integers(0, 3, 200)]], axis=1)
    settings = FeatureSettings(columns=(1, 3))
    embedding = fit_table_embedding(settings, rows)
    encoded = embedding.encode(rows)
    distances = ((encoded[:, None] - encoded) ** 2).sum(axis=2)
    assert distances.mean() == pytest.approx(2, rel=1e-3)
    rows[:, 0] /= 1e9
    assert fit_table_embedding(settings, rows).encode(rows) == pytest.approx(encoded, abs=1e-5)


def test_a_row_is_how_far_it_stands_from_the_pool_on_either_side_in_any_unit() -> None:
    rng = np.random.default_rng(0)
    settings = FeatureSettings(name=LINEAR, columns=(1, 2), lattice=2**14)
    pool = np.column_stack([rng.normal(50, 10, 400), np.eye(2)[rng.integers(0, 2, 400)]])
    rows = np.array([[60.0, 1, 0], [40.0, 0, 1], [50.0, 0, 0], [math.nan, 1, 0]])
    found = build_feature_map(settings, pool).scaled(rows)
    above, below, missing, first, second, none = found[:, 1:7].T
    assert (below[0], missing[0], second[0], none[0]) == (0, 0, 0, 0) and above[0] > 0.4 and first[0] > 0.4
    assert below[1] == pytest.approx(above[0], rel=0.05) and second[1] == pytest.approx(first[0], rel=0.05)
    assert none[2] > 0.4 and missing[3] > 0.4 and above[3] == below[3] == 0
    # Neither the unit nor one 999 for "unknown" changes what a row is.
    scale = np.array([1e-3, 1, 1])
    same = build_feature_map(settings, pool * scale).scaled(rows * scale)[:, :7]
    pool[7, 0] = 999.0
    assert same == pytest.approx(found[:, :7], abs=1e-3)
    assert build_feature_map(settings, pool).scaled(rows)[:, :7] == pytest.approx(found[:, :7], abs=0.02)


def test_numbers_of_any_size_in_the_pool_make_a_map_that_is_read_again() -> None:
    for column in (np.full(40, 1e308), np.full(40, 0.1), np.linspace(-1, 1, 40) * 5e307):
        pool = np.column_stack([column, np.arange(40.0)])
        made = build_feature_map(FeatureSettings(name=LINEAR, columns=(1, 1)), pool)
        assert feature_map_from_bytes(made.to_bytes(), digest=made.digest).digest == made.digest
        assert np.isfinite(made.scaled(pool)).all()
    assert (
        build_feature_map(FeatureSettings(name=LINEAR, columns=(1,)), np.full((9, 1), 0.1)).spread[0, 1] == 1
    )


@pytest.mark.parametrize("name", [KERNEL, LINEAR])
def test_a_flat_column_and_one_without_values_are_no_fault(name: str) -> None:
    pool = np.column_stack([np.full(6, 3.0), np.full(6, math.nan), np.arange(6.0)])
    made = build_feature_map(FeatureSettings(name=name, columns=(1, 1, 1)), pool)
    assert np.isfinite(made.scaled(np.array([[math.nan, 4.0, 2.0], [7.0, math.nan, math.nan]]))).all()


def test_tables_need_no_torch() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from pate_fed.learning.features.build import build_feature_map\n"
        "from pate_fed.learning.features.feature_map import FeatureSettings\n"
        "made = build_feature_map(FeatureSettings(columns=(1,)), np.arange(9.0)[:, None])\n"
        "assert made.features(np.zeros((1, 1))).shape == (1, 5)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
