"""CINIC-10 (Darlow, Crowley, Antoniou and Storkey 2018): folders train, valid and test of one folder a class.

The training part is private, the test part public; the validation part is not used. 32×32 PNG files in
colour; a grey one counts for all three.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Parts
from pate_fed.errors import InputError

__all__ = ["find_cinic"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("CINIC-10", "cinic-10", "cinic10", "CINIC10", ".")
SIDE = 32
PARTS = {"private": "train", "public": "test"}


def find_cinic(root: Path, *, download: bool) -> Parts:
    """The pictures of both parts, found but not yet read.

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
    return Parts(
        name="cinic10",
        key=digest.hexdigest()[:32],
        class_names=CLASSES,
        save=lambda empty: _save(paths, empty),
        most_queries=10_000,
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
            images[row] = _picture(path)
        np.save(empty / f"{side}_images.npy", images)
        np.save(empty / f"{side}_labels.npy", np.array([label for label, _ in found], dtype=np.int64))


def _picture(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except OSError as error:
        raise InputError(f"{path}: not a picture that can be read ({error})") from error
    if pixels.shape != (SIDE, SIDE, 3):
        raise InputError(f"{path}: {pixels.shape[1]}×{pixels.shape[0]} pixels; {SIDE}×{SIDE} is meant")
    return pixels
