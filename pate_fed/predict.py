"""`pate-fed predict`: a student's classes and probabilities for images in files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError

__all__ = ["predict_files", "read_pictures"]

BATCH = 500


def predict_files(
    student: Path, pictures: Sequence[Path], *, output: str = "text", device: str = "cpu"
) -> Iterator[str]:
    """One line an image: its file, its number in the file, the class and its probability; or a JSON object.

    `student` is a student.pt, which is read without running code, or a TorchScript file, which is a program:
    take one only from those you trust.

    Raises:
        InputError: a file is not there, or holds no images that fit the student.
        IntegrityError: the student is damaged.
    """
    predict = _torchscript(student) if student.suffix == ".ts" else _checkpoint(student, device)
    for path in pictures:
        images = read_pictures(path)
        for start in range(0, len(images), BATCH):
            shares = predict(images[start : start + BATCH], path)
            for number, row in enumerate(shares, start=start):
                label = int(row.argmax())
                if output == "json":
                    found = {"file": str(path), "image": number, "class": label}
                    yield json.dumps(found | {"probabilities": [round(float(p), 6) for p in row]})
                else:
                    yield f"{path}[{number}]: class {label}, probability {row[label]:.3f}"


def read_pictures(path: Path) -> NDArray[np.uint8]:
    """Images of a .npy, a .npz (its array `images`, or its only one), an idx file or a picture file.

    Shapes: uint8 (n, height, width, channels); an array without channels gets one.

    Raises:
        InputError: there is no such file, or no such images in it.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    names = "".join(path.suffixes).lower()
    if names.endswith((".npy", ".npz")):
        images = _array(path)
    elif "idx" in path.name or names.endswith(("ubyte", "ubyte.gz")):
        from pate_fed.data.idx import read_images

        images = read_images(path)
    else:
        images = _picture(path)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(
            f"{path}: holds {images.dtype} {images.shape}; uint8 (n, height, width, channels) is meant"
        )
    return images


def _array(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            names = found.files
            name = "images" if "images" in names else names[0]
            if len(names) > 1 and name != "images":
                raise InputError(f"{path}: holds {', '.join(names)}; one array, or one named images is meant")
            return np.asarray(found[name])
    except InputError:
        raise
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no array of images") from error


def _picture(path: Path) -> NDArray[np.uint8]:
    """One grey or colour picture as (1, height, width, 1 or 3)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            grey = picture.mode in ("1", "L", "LA", "I", "I;16")
            found = np.asarray(picture.convert("L" if grey else "RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise InputError(f"{path}: not a picture, .npy, .npz or idx file") from error
    return found[None, :, :, None] if found.ndim == 2 else found[None]


def _checkpoint(path: Path, device: str) -> Any:
    from pate_fed.learning import Student

    student = Student.load(path, device=device)

    def predict(images: NDArray[np.uint8], source: Path) -> NDArray[np.float32]:
        try:
            return student.predict_proba(images)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error

    return predict


def _torchscript(path: Path) -> Any:
    import torch

    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old; see learning/export.py
        try:
            model = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            raise IntegrityError(f"{path}: not a TorchScript file, or damaged") from error

    def predict(images: NDArray[np.uint8], source: Path) -> NDArray[np.float32]:
        try:
            with torch.inference_mode():
                return np.asarray(model(torch.from_numpy(np.array(images))).numpy(), dtype=np.float32)
        except RuntimeError as error:
            raise InputError(
                f"{source}: images {images.shape[1:]} do not fit the student of {path}"
            ) from error

    return predict
