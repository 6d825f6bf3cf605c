"""The contact sheet is a picture with the data set's images in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset, contact_sheet
from pate_fed.data.dataset import _BESIDE, _HEAD
from pate_fed.data.glyph import SYMBOLS
from pate_fed.errors import InputError

_ROW, _TILE = 60, 56  # pixels of an image of 28 with its gap, and without


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(path)[..., :3] * 255).astype(np.uint8)


def test_the_sheet_shows_the_images_of_each_class(small_glyph: Dataset, tmp_path: Path) -> None:
    contact_sheet(small_glyph, tmp_path / "sheet.png")
    sheet = pixels(tmp_path / "sheet.png")
    assert sheet.shape == (2 * _HEAD + 3 * _ROW, (sum(_BESIDE) + 12) * _ROW, 3)
    for label in range(3):
        first = np.flatnonzero(small_glyph.private_labels == label)[:2]
        for place, image in enumerate(small_glyph.private_images[first, :, :, 0]):
            left, top = (_BESIDE[0] + place) * _ROW, 2 * _HEAD + label * _ROW
            tile = sheet[top : top + _TILE, left : left + _TILE, 0]
            assert np.abs(tile.astype(int) - np.kron(image, np.ones((2, 2), int))).max() <= 1


def test_names_counts_and_digest_are_written(small_glyph: Dataset, tmp_path: Path) -> None:
    sheets = []
    for chosen in (small_glyph, replace(small_glyph, class_names=("Ж", "♪", "$"), pool_digest="0" * 64)):
        contact_sheet(chosen, tmp_path / "sheet.png")
        sheets.append(pixels(tmp_path / "sheet.png"))
    differ = (sheets[0] != sheets[1]).any(axis=2)
    names, digest = differ[2 * _HEAD :, : _BESIDE[0] * _ROW], differ[50 : 2 * _HEAD]
    assert names.sum() > 50 and digest.sum() > 50
    assert not differ[:50].any()


def test_every_symbol_has_a_picture_in_the_names_fonts(small_glyph: Dataset, tmp_path: Path) -> None:
    # Warnings are errors here: matplotlib would warn of a symbol that none of its fonts has.
    names = tuple("".join(SYMBOLS[start::3]) for start in range(3))
    contact_sheet(replace(small_glyph, class_names=names), tmp_path / "sheet.png")
    assert pixels(tmp_path / "sheet.png").std() > 20


def test_colour_images_and_empty_classes_are_shown(small_glyph: Dataset, tmp_path: Path) -> None:
    red = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    red[..., 0] = 200
    colour = replace(small_glyph, private_images=red, private_labels=np.zeros(4, dtype=np.int64), details="")
    contact_sheet(colour, tmp_path / "sheet.png")
    sheet = pixels(tmp_path / "sheet.png")
    assert (sheet == (200, 0, 0)).all(axis=2).sum() == 4 * 64 * 64


def test_a_sheet_that_cannot_be_written_is_an_error(small_glyph: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--preview .*nowhere"):
        contact_sheet(small_glyph, tmp_path / "nowhere" / "sheet.png")
