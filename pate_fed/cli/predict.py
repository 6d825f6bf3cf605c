"""`pate-fed predict`: a student's classes and probabilities for images, or for a table's rows, in files."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.pictures import PICTURE_SUFFIXES, read_picture
from pate_fed.errors import InputError, IntegrityError

__all__ = ["predict_files", "read_pictures"]

BATCH = 500


@dataclass(frozen=True, slots=True)
class _Reader:
    """A student: how it reads a file, its class probabilities for what was read, its classes' names."""

    read: Callable[[Path], NDArray[Any]]
    shares: Callable[[NDArray[Any], Path], NDArray[np.float32]]
    names: tuple[str, ...] = ()


def predict_files(
    student: Path, files: Sequence[Path], *, output: str = "text", device: str = "cpu"
) -> Iterator[str]:
    """One line an image or row: its file, its number in the file, class and probability; or a JSON object.

    Of a folder every picture right in it, by name.

    `student` is a student.pt or a table's student.npz, which are read without running code, or a TorchScript
    file, which is a program: take one only from those you trust.

    Raises:
        InputError: a file is not there, or holds nothing that fits the student.
        IntegrityError: the student is damaged.
    """
    if device not in ("cpu", "auto") and student.suffix in (".npz", ".ts"):
        raise InputError(
            f"--device {device} would have no effect: {student.name} runs on the CPU; leave it out"
        )
    model = _student(student, device)
    kind = "row" if student.suffix == ".npz" else "image"
    for path in _inside(files, kind):
        inputs = model.read(path)
        for start in range(0, len(inputs), BATCH):
            shares = model.shares(inputs[start : start + BATCH], path)
            for number, row in enumerate(shares, start=start):
                label = int(row.argmax())
                name = {"name": model.names[label]} if len(model.names) == len(row) else {}
                if output == "json":
                    found = {"file": str(path), kind: number, "class": label, **name}
                    yield json.dumps(found | {"probabilities": [round(float(p), 6) for p in row]})
                else:
                    shown = _harmless(name["name"]) if name else label
                    yield f"{path}[{number}]: class {shown}, probability {row[label]:.3f}"


def _harmless(name: str) -> str:
    """A name from another's file, unable to steer the terminal."""
    return name if name.isprintable() else ascii(name)


def _inside(files: Sequence[Path], kind: str) -> Iterator[Path]:
    """The same files, with a folder's pictures in its place."""
    for path in files:
        if kind == "row" or not path.is_dir():
            yield path
            continue
        pictures = sorted(each for each in path.iterdir() if each.suffix.lower() in PICTURE_SUFFIXES)
        if not pictures:
            raise InputError(f"{path}: a folder without picture files ({', '.join(PICTURE_SUFFIXES)})")
        yield from pictures


def read_pictures(path: Path, channels: int | None = None) -> NDArray[np.uint8]:
    """Images of a .npy, a .npz (its array `images` or `x`, or its only one), an idx file or a picture file.

    Shapes: uint8 (n, height, width, channels); an array without channels gets one. A picture file is made
    grey or coloured where `channels` says which.

    Raises:
        InputError: there is no such file, or no such images in it.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    names = "".join(path.suffixes).lower()
    if names.endswith((".npy", ".npz")):
        images = _array(path)
    elif names.endswith(PICTURE_SUFFIXES):
        images = read_picture(path, channels)[None]
    elif "idx" in path.name or names.endswith(("ubyte", "ubyte.gz")):
        from pate_fed.data.idx import read_images

        images = read_images(path)
    else:
        try:
            images = read_picture(path, channels)[None]
        except InputError as error:
            raise InputError(f"{path}: not a picture, .npy, .npz or idx file") from error
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(
            f"{path}: holds {images.dtype} {images.shape}; uint8 (n, height, width, channels) is meant"
        )
    if not len(images):
        raise InputError(f"{path}: holds no image")
    return images


def _array(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            names = found.files
            name = next((each for each in ("images", "x") if each in names), names[0])
            if len(names) > 1 and name not in ("images", "x"):
                raise InputError(
                    f"{path}: holds {', '.join(names)}; one array, or one named images or x is meant"
                )
            return np.asarray(found[name])
    except InputError:
        raise
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no array of images") from error


def _student(path: Path, device: str) -> _Reader:
    if path.suffix == ".npz":
        return _forest(path)
    return _torchscript(path) if path.suffix == ".ts" else _checkpoint(path, device)


def _forest(path: Path) -> _Reader:
    """A table's student; what the columns mean is in the study.toml that its run left beside it."""
    from pate_fed.config.study import load_study
    from pate_fed.data import InputSpec, Schema, read_pool
    from pate_fed.learning.teachers.forests import Forest
    from pate_fed.structure import from_plain

    forest = Forest.load(path)
    beside = path.with_name("study.toml")
    table = load_study(beside).get("data", {}).get("table") if beside.is_file() else None
    if table is None:
        raise InputError(
            f"{beside}: no study of a table; keep it beside {path.name}: it says what the columns mean"
        )
    schema = from_plain(Schema, table, where=f"[data.table] of {beside}")
    if (schema.num_features, len(schema.classes)) != (len(forest.fill), forest.num_classes):
        raise InputError(f"{beside}: its [data.table] is not that of {path.name}")
    kind = InputSpec(classes=schema.classes, schema=schema)
    return _Reader(
        lambda file: read_pool(file, kind).inputs, lambda rows, _: forest.predict_proba(rows), schema.classes
    )


def _checkpoint(path: Path, device: str) -> _Reader:
    from pate_fed.learning.students.student import Student

    student = Student.load(path, device=device)

    def shares(images: NDArray[np.uint8], source: Path) -> NDArray[np.float32]:
        try:
            return student.predict_proba(images)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error

    return _Reader(lambda file: read_pictures(file, student.image_shape[2]), shares, student.class_names)


def _torchscript(path: Path) -> _Reader:
    import torch

    model = _loaded(path)
    # Files of before have neither.
    shape, names = tuple(getattr(model, "image_shape", ())), tuple(getattr(model, "class_names", ()))

    def shares(images: NDArray[np.uint8], source: Path) -> NDArray[np.float32]:
        try:
            with torch.inference_mode():
                return np.asarray(model(torch.from_numpy(np.array(images))).numpy(), dtype=np.float32)
        except (RuntimeError, torch.jit.Error) as error:
            wanted = f", which takes {shape}" if shape else ""
            raise InputError(
                f"{source}: images {images.shape[1:]} do not fit the student of {path}{wanted}"
            ) from error

    return _Reader(lambda file: read_pictures(file, shape[2] if shape else None), shares, names)


def _loaded(path: Path) -> Any:
    import torch

    from pate_fed.learning.files import is_whole

    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    data = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old; see learning/export.py
        try:
            if not is_whole(data):
                raise ValueError("checksum")
            return torch.jit.load(io.BytesIO(data), map_location="cpu")  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            raise IntegrityError(f"{path}: not a TorchScript file, or damaged") from error
