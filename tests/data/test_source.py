"""A data set's source: what it is before anything is read, and the arrays that it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset, GlyphSettings, glyph
from pate_fed.data.glyph import glyph_source
from pate_fed.data.glyph_raster import DistanceMaps


def test_a_source_names_its_data_and_writes_the_four_arrays(
    small_settings: GlyphSettings,
    small_glyph: Dataset,
    maps: DistanceMaps,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(glyph, "make_distance_maps", lambda symbols: maps)
    source = glyph_source(small_settings)
    assert (source.name, source.class_names, source.max_queries) == ("glyph", ("A", "B", "C"), 9_000)
    source.save(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        *("private_images", "private_labels", "public_images", "public_labels")
    ]
    assert np.array_equal(np.load(tmp_path / "public_images.npy"), small_glyph.public_images)


def test_a_source_of_other_data_has_another_key(small_settings: GlyphSettings) -> None:
    others = (small_settings, small_settings, replace(small_settings, seed=8))
    assert len({glyph_source(settings).key for settings in others}) == 2
