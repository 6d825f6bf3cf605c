"""CINIC-10 (Darlow, Crowley, Antoniou and Storkey 2018): folders train, valid and test of one folder a class.

The training part is private, the test part public; the validation part is not used. 32×32 PNG files in
colour; a grey one counts for all three.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.pictures import read_picture
from pate_fed.data.source import DatasetSource
from pate_fed.errors import InputError

# Those of CIFAR-10, in its order.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("CINIC-10", "cinic-10", "cinic10", "CINIC10", ".")
SIDE = 32
PARTS = {"private": "train", "public": "test"}


def find_cinic(root: Path, *, download: bool) -> DatasetSource:
    """The source of CINIC-10 below a folder, both parts.

    Raises:
        InputError: a folder is missing or empty; the error names it.
    """
    folder = next((root / name for name in FOLDERS if (root / name / "train").is_dir()), None)
    if folder is None:
        asked = "--download cannot fetch it; " if download else ""
        raise InputError(
            f"--dataset cinic10 in {root}: folders train and test of pictures are looked for there and in "
            f"{', '.join(FOLDERS[:-1])}; {asked}unpack CINIC-10.tar.gz and name its folder with --data-dir"
        )
    paths = {side: _paths(folder / part) for side, part in PARTS.items()}
    digest = sha256()
    for side, found in paths.items():
        for label, path in found:
            digest.update(f"{side} {label} {path.name} {path.stat().st_size}\n".encode())
    return DatasetSource(
        name="cinic10",
        key=digest.hexdigest()[:32],
        class_names=CLASSES,
        save=lambda empty: _save(paths, empty),
        max_queries=10_000,
    )


def _paths(folder: Path) -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    for label, name in enumerate(CLASSES):
        pictures = sorted((folder / name).glob("*.png"))
        if not pictures:
            raise InputError(
                f"{folder / name}: holds no .png files; CINIC-10 has pictures of each class there"
            )
        found += [(label, path) for path in pictures]
    # In an order that does not go by class, the same everywhere.
    order = np.random.Philox(key=10).random_raw(len(found)).argsort(kind="stable")
    return [found[place] for place in order.tolist()]


def _save(paths: dict[str, list[tuple[int, Path]]], empty: Path) -> None:
    for side, found in paths.items():
        images = np.empty((len(found), SIDE, SIDE, 3), dtype=np.uint8)
        for row, (_, path) in enumerate(found):
            images[row] = _pixels(path)
        np.save(empty / f"{side}_images.npy", images)
        np.save(empty / f"{side}_labels.npy", np.array([label for label, _ in found], dtype=np.int64))


def _pixels(path: Path) -> NDArray[np.uint8]:
    pixels = read_picture(path, channels=3)
    if pixels.shape[:2] != (SIDE, SIDE):
        raise InputError(f"{path}: {pixels.shape[1]}×{pixels.shape[0]} pixels; {SIDE}×{SIDE} is meant")
    return pixels
