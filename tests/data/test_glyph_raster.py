"""Distance maps of the fonts' outlines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import load_dataset
from pate_fed.data.glyph import GRID, INNER, SYMBOLS, DistanceMaps, fonts_digest, make_distance_maps
from pate_fed.errors import InputError


def test_masters_are_signed_distances(maps: DistanceMaps) -> None:
    assert maps.distance.shape[1:] == (GRID, GRID) and maps.distance.dtype == np.float32
    assert maps.first[-1] == len(maps.distance) and (np.diff(maps.first) == 20).all()
    steps = np.abs(np.diff(maps.distance, axis=1))
    assert steps.max() <= 1.001  # a distance changes by no more than the step
    inside = maps.distance < 0
    sides = [np.ptp(np.nonzero(one)[axis]) + 1 for one in inside for axis in (0, 1)]
    assert max(sides) in (INNER, INNER + 1)
    assert (maps.distance[:, :, 0] > 5).all()  # the margin lies outside


@pytest.mark.slow
def test_all_fonts_have_all_symbols() -> None:
    everything = make_distance_maps(SYMBOLS)
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 150
    assert np.diff(everything.first).min() >= 10
    ink = (everything.distance < 0).sum(axis=(1, 2))
    assert ink.min() > 40


def test_missing_fonts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pate_fed.data.glyph._font_folder", lambda: tmp_path)
    fonts_digest.cache_clear()
    with pytest.raises(InputError, match=r"DejaVuSans\.ttf: the font is missing"):
        load_dataset("glyph", cache_dir=tmp_path / "cache")
