"""Maps from the public pool: the same pool gives the same map, and a file is held to its digest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import build_feature_map, feature_map_from_bytes
from pate_fed.learning.features.feature_map import (
    BINS,
    DIRECTIONS,
    HOG,
    KERNEL,
    LINEAR,
    RANDOM,
    FeatureSettings,
)
from pate_fed.structure import from_plain, to_plain

TABLE = FeatureSettings(columns=(1, 3), dimension=6)
CASES = [FeatureSettings(name=name, dimension=6) for name in (KERNEL, HOG, RANDOM, DIRECTIONS)]
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
    # Histograms and a table of equal quantiles take nothing else from the pool.
    assert (other.digest == made.digest) == (settings.name in ("hog",))
    for damaged in (made.to_bytes()[:-9], b"{}", b"", made.to_bytes().replace(b"lattice", b"lettuce")):
        with pytest.raises(IntegrityError):
            feature_map_from_bytes(damaged, digest=made.digest)


def test_settings_stand_in_terms() -> None:
    settings = FeatureSettings(columns=(1, 4), cuts=((40.0, 50.0), ()))
    plain = json.loads(json.dumps(to_plain(settings)))
    assert from_plain(FeatureSettings, plain, where="terms") == settings
    for bad, words in (
        ({"name": "bins"}, "bins is for tables"),
        ({"name": "linear-and-kernel"}, "linear-and-kernel is for tables"),
        ({"name": "linear-and-kernel", "columns": (1,), "lattice": 31}, "at least 32"),
        ({"name": "hog", "columns": (1,)}, "for images"),
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
