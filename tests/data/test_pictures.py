"""Picture files: 8 bits a channel or refused, and damage named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pate_fed.data.pictures import pictures_in, read_arrays, read_image_file, read_picture
from pate_fed.errors import InputError


@pytest.mark.parametrize("picture", [np.full((6, 5), 4000, np.uint16), np.full((6, 5), 4.0, np.float32)])
def test_more_than_8_bits_are_not_clipped(picture: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(picture).save(tmp_path / "0.tif")
    with pytest.raises(InputError, match=r"0\.tif: an image of mode .* more than 8 bits"):
        read_picture(tmp_path / "0.tif")


@pytest.mark.parametrize("suffix", ["bmp", "pgm", "tif", "png", "jpg"])
def test_damaged_pictures_are_named(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"0.{suffix}"
    Image.fromarray(np.arange(30, dtype=np.uint8).reshape(6, 5)).save(file)
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        torn = np.frombuffer(whole, dtype=np.uint8).copy()
        torn[rng.integers(0, min(len(torn), 60), 4)] = rng.integers(0, 256, 4)
        file.write_bytes(torn.tobytes())
        try:
            read_picture(file)
        except InputError as error:
            assert f"0.{suffix}" in str(error)


def test_a_picture_is_grey_or_coloured_as_is_asked(tmp_path: Path) -> None:
    grey = np.arange(30, dtype=np.uint8).reshape(6, 5)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(read_picture(tmp_path / "grey.png")[..., 0], grey)
    assert np.array_equal(
        read_picture(tmp_path / "grey.png", channels=3), np.repeat(grey[..., None], 3, axis=2)
    )
    Image.fromarray(np.full((6, 5, 3), 90, dtype=np.uint8)).save(tmp_path / "colour.PNG")
    assert read_picture(tmp_path / "colour.PNG").shape == (6, 5, 3)
    assert (read_picture(tmp_path / "colour.PNG", channels=1) == 90).all()
    (tmp_path / "notes.txt").touch()
    assert [each.name for each in pictures_in(tmp_path)] == ["colour.PNG", "grey.png"]


def test_images_are_found_in_numpy_files(tmp_path: Path) -> None:
    images = np.arange(60, dtype=np.uint8).reshape(2, 6, 5)
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "one.npz", anything=images[..., None])
    np.savez(tmp_path / "named.npz", y=np.zeros(2), x=images)
    for name in ("a.npy", "one.npz", "named.npz"):
        assert np.array_equal(read_image_file(tmp_path / name), images[..., None])
    assert set(read_arrays(tmp_path / "named.npz")) == {"x", "y"}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros(1), "b": np.zeros(1)}, "holds a, b; one array, or one named images or x"),
        ({}, "holds nothing"),
        ({"x": np.zeros((1, 6, 5))}, "uint8"),
        ({"x": np.zeros((0, 6, 5), dtype=np.uint8)}, "holds no image"),
        ({"x": np.array([{}], dtype=object)}, "holds no arrays that can be read"),
    ],
)
def test_a_file_without_such_images_is_named(
    arrays: dict[str, np.ndarray], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=words):
        read_image_file(tmp_path / "a.npz")
