"""CINIC-10: folders of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import load_dataset
from pate_fed.errors import InputError


def test_cinic10_is_a_folder_of_pictures(tmp_path: Path) -> None:
    from PIL import Image

    from pate_fed.data.cinic import CLASSES

    rng = np.random.default_rng(0)
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / "CINIC-10" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 200, (32, 32, 3), dtype=np.uint8)
                pixels[0, 0] = 20 * label
                Image.fromarray(pixels).save(folder / f"cifar10-{part}-{number}.png")
    grey = tmp_path / "CINIC-10" / "train" / "frog" / "n0.png"
    Image.fromarray(np.full((32, 32), 120, dtype=np.uint8)).save(grey)
    found = load_dataset("cinic10", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert len(found.private_labels) == 31 and len(found.public_labels) == 20
    assert np.array_equal(found.private_images[:, 0, 0, 0], 20 * found.private_labels)
    assert found.class_names == CLASSES and not np.array_equal(
        found.public_labels, np.sort(found.public_labels)
    )

    Image.new("RGB", (16, 32)).save(grey)
    with pytest.raises(InputError, match=r"n0\.png: 16×32 pixels"):
        load_dataset("cinic10", data_dir=tmp_path, cache_dir=tmp_path / "other")
    for picture in (tmp_path / "CINIC-10" / "test" / "ship").iterdir():
        picture.unlink()
    with pytest.raises(InputError, match=r"ship: holds no \.png"):
        load_dataset("cinic10", data_dir=tmp_path, cache_dir=tmp_path / "other")
    with pytest.raises(InputError, match="--download cannot fetch it"):
        load_dataset("cinic10", data_dir=tmp_path / "cache", download=True, cache_dir=tmp_path / "other")
