"""Glyph: the same pixels everywhere, and exactly the imbalance and wrong labels that were set."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.data import Dataset, GlyphSettings, load_dataset, pool_digest
from pate_fed.data.glyph import BLOCK, SIDE, draw_block, make_labels
from pate_fed.data.glyph_raster import DistanceMaps


def test_the_pixels_are_the_same_on_every_machine(small_glyph: Dataset) -> None:
    # Made with NumPy 2.4 and matplotlib 3.11, and again with NumPy 1.26, SciPy 1.11 and matplotlib 3.8. If
    # an image changes on purpose, raise VERSION in glyph.py, so that old caches are not taken for new ones.
    labels = sha256(small_glyph.private_labels.astype("<i8").tobytes()).hexdigest()
    assert (pool_digest(small_glyph.private_images)[:16], small_glyph.pool_digest[:16], labels[:16]) == GOLDEN


GOLDEN = ("de22f962ec02f726", "51d925234879e13d", "f4d9efad6fd38ca7")


def test_the_data_set_is_what_was_asked_for(small_glyph: Dataset) -> None:
    assert small_glyph.private_images.shape == (400, SIDE, SIDE, 1)
    assert small_glyph.public_images.shape == (100, SIDE, SIDE, 1)
    assert small_glyph.private_images.dtype == np.uint8
    assert small_glyph.class_names == ("A", "B", "C") and small_glyph.num_classes == 3
    assert small_glyph.num_queries == 90
    assert "seed 7" in small_glyph.details and "10 % of the private labels" in small_glyph.details


def test_every_image_shows_something_and_no_two_are_equal(small_glyph: Dataset) -> None:
    flat = np.asarray(small_glyph.private_images).reshape(400, -1)
    assert (flat.max(axis=1) > flat.mean(axis=1) + 30).all()
    assert len(np.unique(flat, axis=0)) == 400


def test_a_class_looks_more_like_itself_than_like_another(maps: DistanceMaps) -> None:
    clean = GlyphSettings(classes=3, distortion=0.0, noise=0.0)
    true = np.arange(BLOCK) % 3
    images = draw_block(clean, maps, "private", 0, true).reshape(BLOCK, -1) / 255.0
    means = np.stack([images[true == c].mean(axis=0) for c in range(3)])
    other = draw_block(clean, maps, "public", 0, true).reshape(BLOCK, 1, -1) / 255.0
    nearest = ((other - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == true).mean() > 0.85


@given(
    classes=st.integers(2, 150),
    private=st.integers(1, 3000),
    public=st.integers(2, 500),
    imbalance=st.floats(1, 100),
    wrong=st.floats(0, 0.9),
    seed=st.integers(0, 2**63 - 1),
)
@settings(deadline=None)
def test_shares_are_as_set(
    classes: int, private: int, public: int, imbalance: float, wrong: float, seed: int
) -> None:
    chosen = GlyphSettings(
        classes=classes, private=private, public=public, imbalance=imbalance, wrong_labels=wrong, seed=seed
    )
    for part, count in (("private", private), ("public", public)):
        labels = make_labels(chosen, part)
        sizes = np.bincount(labels.true, minlength=classes)
        weights = np.linspace(imbalance, 1, classes)
        assert sizes.sum() == len(labels.given) == count
        assert np.abs(sizes - count * weights / weights.sum()).max() <= 1.0 + 1e-6
        assert labels.given.min() >= 0 and labels.given.max() < classes
    assert np.array_equal(labels.true, labels.given)  # public labels are never wrong
    private_labels = make_labels(chosen, "private")
    assert (private_labels.true != private_labels.given).sum() == pytest.approx(wrong * private, abs=0.5001)


def test_wrong_labels_are_any_other_class() -> None:
    labels = make_labels(GlyphSettings(classes=4, private=30_000, wrong_labels=0.4), "private")
    shift = (labels.given - labels.true)[labels.given != labels.true] % 4
    assert np.bincount(shift, minlength=4)[1:] / len(shift) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert abs(np.corrcoef(labels.given != labels.true, np.arange(30_000))[0, 1]) < 0.03


def test_classes_are_in_random_order() -> None:
    true = make_labels(GlyphSettings(private=10_000), "private").true
    assert abs(np.corrcoef(true, np.arange(10_000))[0, 1]) < 0.05


def test_other_seeds_and_parts_draw_other_images(maps: DistanceMaps, small_settings: GlyphSettings) -> None:
    true = np.zeros(20, dtype=np.int64)
    first = draw_block(small_settings, maps, "private", 0, true)
    others = [
        draw_block(replace(small_settings, seed=8), maps, "private", 0, true),
        draw_block(small_settings, maps, "public", 0, true),
        draw_block(small_settings, maps, "private", 1, true),
    ]
    assert np.array_equal(first, draw_block(small_settings, maps, "private", 0, true))
    assert all(not np.array_equal(first, other) for other in others)


def test_a_block_that_is_not_full_is_the_start_of_a_full_one(
    maps: DistanceMaps, small_settings: GlyphSettings
) -> None:
    true = np.arange(BLOCK) % 3
    full = draw_block(small_settings, maps, "private", 2, true)
    assert np.array_equal(draw_block(small_settings, maps, "private", 2, true[:9]), full[:9])


def test_more_noise_and_distortion_change_more(maps: DistanceMaps) -> None:
    true = np.zeros(BLOCK, dtype=np.int64)

    def spread(**chosen: float) -> float:
        images = draw_block(GlyphSettings(classes=3, **chosen), maps, "private", 0, true)  # type: ignore[arg-type]
        return float(images.astype(np.float64).std(axis=0).mean())

    assert spread(distortion=0, noise=0) < spread(distortion=1, noise=0) < spread(distortion=1, noise=1)


def test_progress_is_told(tmp_path: Path, maps: DistanceMaps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pate_fed.data.glyph.make_distance_maps", lambda symbols: maps)
    heard: list[tuple[int, int]] = []
    chosen = GlyphSettings(classes=2, private=300, public=10)
    load_dataset("glyph", glyph=chosen, cache_dir=tmp_path, on_progress=lambda *now: heard.append(now))
    assert heard == [(0, 310), (256, 310), (300, 310), (310, 310)]
