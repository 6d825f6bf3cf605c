"""What every data set promises: read-only maps, a digest of the pool, names in its errors."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import psutil
import pytest

from pate_fed.data import (
    DATASETS,
    Dataset,
    GlyphSettings,
    first_equal,
    load_dataset,
    pool_digest,
    release_pages,
    repeated_inputs,
)
from pate_fed.errors import InputError


def test_arrays_are_read_only_maps_of_files(small_glyph: Dataset) -> None:
    for array in (
        small_glyph.private_images,
        small_glyph.private_labels,
        small_glyph.public_images,
        small_glyph.public_labels,
    ):
        assert isinstance(array, np.memmap) and not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_second_load_draws_nothing(
    small_glyph: Dataset, small_settings: GlyphSettings, glyph_cache: Path
) -> None:
    again = load_dataset(
        "glyph",
        glyph=small_settings,
        cache_dir=glyph_cache,
        on_progress=lambda *_: pytest.fail("drawn again"),
    )
    assert again.pool_digest == small_glyph.pool_digest
    assert np.array_equal(again.private_images, small_glyph.private_images)


def test_other_settings_are_another_entry(small_glyph: Dataset, glyph_cache: Path) -> None:
    other = load_dataset(
        "glyph", glyph=GlyphSettings(classes=2, private=20, public=10), cache_dir=glyph_cache
    )
    assert len(other.private_labels) == 20 and other.pool_digest != small_glyph.pool_digest


def test_the_digest_is_over_shape_type_and_bytes(small_glyph: Dataset) -> None:
    pool = np.array(small_glyph.public_images)
    assert small_glyph.pool_digest == pool_digest(pool)
    by_hand = sha256("uint8 100×28×28×1\n".encode() + pool.tobytes()).hexdigest()
    assert by_hand == small_glyph.pool_digest
    assert pool_digest(np.asfortranarray(pool)) == small_glyph.pool_digest
    changed = pool.copy()
    changed[-1, 27, 27, 0] ^= 1
    others = [changed, pool[:-1], pool[::-1], pool.reshape(100, 14, 56, 1)]
    assert len({small_glyph.pool_digest, *map(pool_digest, others)}) == 5


@pytest.mark.parametrize("wrong", [np.zeros((2, 28, 28), np.uint8), np.zeros((2, 28, 28, 1), np.float32)])
def test_a_digest_of_something_else_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match="uint8"):
        pool_digest(wrong)


def test_a_misspelt_name_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--dataset 'mnits' is unknown: .* did you mean mnist\?"):
        load_dataset("mnits", cache_dir=tmp_path)
    assert DATASETS[0] == "glyph"


def test_a_repr_shows_counts_and_no_data(small_glyph: Dataset) -> None:
    assert repr(small_glyph) == "Dataset('glyph', classes=3, private=400, public=100)"


def test_the_same_is_the_same_whatever_its_zeros_and_gaps(small_glyph: Dataset) -> None:
    images = np.array(small_glyph.public_images)
    images[5] = images[2]
    images[7] = images[2]
    assert np.flatnonzero(repeated_inputs(replace(small_glyph, public_images=images))).tolist() == [5, 7]
    rows = np.array([[0.0, np.nan], [-0.0, np.nan], [1.0, 0.0], [0.0, 1.0]])
    assert repeated_inputs(replace(small_glyph, public_images=rows)).tolist() == [False, True, False, False]
    assert first_equal(replace(small_glyph, public_images=rows)).tolist() == [0, 0, 2, 3]


def test_pages_of_a_map_are_given_back_and_read_again(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.ones((4096, 4096), np.uint8))
    large, process = np.load(tmp_path / "large.npy", mmap_mode="r"), psutil.Process()
    whole = int(large.sum())
    held = process.memory_info().rss
    release_pages(large)
    assert process.memory_info().rss < held - 8 * 2**20
    assert int(large.sum()) == whole
    release_pages(np.ones(3))  # no map: nothing
