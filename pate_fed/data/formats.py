"""Find and read the public data sets: idx files ourselves, SVHN and CIFAR through torchvision, and pictures.

The training part is private, the test part public, as in the papers. torchvision checks the MD5 of SVHN's and
CIFAR-10's files before it opens them, which matters for CIFAR: its files are pickles. CINIC-10 is a folder of
pictures.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.cifar_names import FINE_THINGS
from pate_fed.data.cinic import find_cinic
from pate_fed.data.dataset import Parts
from pate_fed.data.idx import read_images, read_labels
from pate_fed.errors import InputError

__all__ = ["find_parts"]

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]

_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """A public data set: its files and the folders, below the data folder, where they may lie."""

    title: str
    torchvision: str
    class_names: tuple[str, ...]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    most_queries: int = 9_000


KINDS = {
    "mnist": KnownFormat("MNIST", "MNIST", _DIGITS, _IDX, ("MNIST/raw", "raw", ".")),
    "fashion-mnist": KnownFormat(
        "Fashion-MNIST", "FashionMNIST", _CLOTHES, _IDX, ("FashionMNIST/raw", "raw", ".")
    ),
    "svhn": KnownFormat(
        "SVHN",
        "SVHN",
        _DIGITS,
        ("train_32x32.mat", "test_32x32.mat"),
        ("SVHN", "svhn", "."),
        most_queries=10_000,
    ),
    "cifar10": KnownFormat(
        "CIFAR-10",
        "CIFAR10",
        _THINGS,
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
        ("cifar-10-batches-py", "CIFAR10/cifar-10-batches-py", "cifar10/cifar-10-batches-py", "."),
    ),
    "cifar100": KnownFormat(
        "CIFAR-100",
        "CIFAR100",
        FINE_THINGS,
        ("train", "test", "meta"),
        ("cifar-100-python", "CIFAR100/cifar-100-python", "cifar100/cifar-100-python", "."),
    ),
}


def find_parts(name: str, *, data_dir: Path | None, download: bool, downloads: Path) -> Parts:
    """The files of one of `KINDS`, found but not yet read.

    Args:
        name: a key of `KINDS`.
        data_dir: where to look; None: `PATE_FED_DATA`, else only `downloads`.
        download: fetch what is not found.
        downloads: where downloads go that were given no `data_dir`.

    Raises:
        InputError: no such folder, or files that are missing; the error names them and where it looked.
    """
    root = _data_dir(data_dir) or downloads
    if name == "cinic10":
        return find_cinic(root, download=download)
    kind = KINDS[name]
    paths = _find(kind, root)
    if paths is None and download:
        _download(kind, root)
        paths = _find(kind, root)
    if paths is None:
        raise InputError(_missing(name, kind, root, given=root != downloads))
    found = paths
    return Parts(
        name=name,
        key=_digest(found),
        class_names=kind.class_names,
        save=lambda folder: _save(name, found, folder),
        most_queries=kind.most_queries,
    )


def _data_dir(data_dir: Path | None) -> Path | None:
    source = "--data-dir"
    if data_dir is None:
        source, text = "PATE_FED_DATA", os.environ.get("PATE_FED_DATA")
        data_dir = Path(text) if text else None
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(f"{source} {data_dir}: no such folder")
    return data_dir


def _find(kind: KnownFormat, root: Path) -> tuple[Path, ...] | None:
    """The data set's files in the first folder that has all of them; gzip or plain where they are idx."""
    for folder in kind.folders:
        paths = []
        for file in kind.files:
            choices = (root / folder / f"{file}.gz", root / folder / file)
            paths += [path for path in choices if path.is_file()][:1]
        if len(paths) == len(kind.files):
            return tuple(paths)
    return None


def _missing(name: str, kind: KnownFormat, root: Path, *, given: bool) -> str:
    files = [f"{file}.gz" if kind.files is _IDX else file for file in kind.files]
    places = [str(root / folder) for folder in kind.folders]
    where = f"--data-dir {root} (or PATE_FED_DATA)" if given else "no --data-dir and no PATE_FED_DATA"
    archive = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}.get(name)
    hint = f" ({archive} unpacked)" if archive else ""
    lacking = _lacking(kind, root)
    return (
        f"{kind.title} with {where}: its files {', '.join(files)} are looked for in "
        f"{', '.join(places)}{lacking}; "
        f"give the folder with --data-dir{hint}, or fetch them with pate-fed data {name} --download"
    )


def _lacking(kind: KnownFormat, root: Path) -> str:
    for folder in kind.folders:
        there = [
            any((root / folder / f"{file}{end}").is_file() for end in ("", ".gz")) for file in kind.files
        ]
        if any(there):
            absent = [file for file, found in zip(kind.files, there, strict=True) if not found]
            return f"; {root / folder} lacks {', '.join(absent)}"
    return ", and none is there"


def _digest(paths: tuple[Path, ...]) -> str:
    total = sha256()
    for path in paths:
        try:
            with path.open("rb") as handle:
                total.update(f"{path.name} {file_digest(handle, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return total.hexdigest()[:32]


def _save(name: str, paths: tuple[Path, ...], folder: Path) -> None:
    read: Callable[[str, tuple[Path, ...]], tuple[Part, Part]]
    read = _from_idx if KINDS[name].files is _IDX else _from_torchvision
    for side, (images, labels) in zip(("private", "public"), read(name, paths), strict=True):
        np.save(folder / f"{side}_images.npy", images)
        np.save(folder / f"{side}_labels.npy", labels)


def _from_idx(name: str, paths: tuple[Path, ...]) -> tuple[Part, Part]:
    classes = len(KINDS[name].class_names)
    private, public = (_idx_part(paths[at], paths[at + 1], classes) for at in (0, 2))
    if private[0].shape[1:] != public[0].shape[1:]:
        raise InputError(
            f"{paths[2]}: images of {_size(public[0])}, but those in {paths[0].name} are {_size(private[0])}"
        )
    return private, public


def _idx_part(images_path: Path, labels_path: Path, classes: int) -> Part:
    images, labels = read_images(images_path), read_labels(labels_path, num_classes=classes)
    if len(images) != len(labels):
        raise InputError(
            f"{images_path}: {len(images)} images, but {labels_path.name} holds {len(labels)} labels"
        )
    return images[..., None], labels


def _size(images: NDArray[np.uint8]) -> str:
    return "×".join(map(str, images.shape[1:3]))


def _from_torchvision(name: str, paths: tuple[Path, ...]) -> tuple[Part, Part]:
    from torchvision import datasets

    folder = paths[0].parent
    if name == "svhn":
        _verify(dict(entry[1:] for entry in datasets.SVHN.split_list.values()), paths)
        return _svhn(datasets.SVHN(folder, split="train")), _svhn(datasets.SVHN(folder, split="test"))
    cifar = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    md5 = {**dict(cifar.train_list), **dict(cifar.test_list), cifar.meta["filename"]: cifar.meta["md5"]}
    _verify(md5, paths)

    class Here(cifar):  # type: ignore[misc, valid-type]
        base_folder = folder.name  # the files may lie in a folder of another name

    return _cifar(Here(folder.parent, train=True)), _cifar(Here(folder.parent, train=False))


def _verify(md5: dict[str, str], paths: tuple[Path, ...]) -> None:
    from torchvision.datasets.utils import check_integrity

    for path in paths:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        if not check_integrity(str(path), md5[path.name]):
            raise InputError(
                f"{path}: the file is damaged or another version: its MD5 is not {md5[path.name]}"
            )


def _svhn(part: Any) -> Part:
    return np.ascontiguousarray(part.data.transpose(0, 2, 3, 1)), part.labels.astype(np.int64)


def _cifar(part: Any) -> Part:
    return np.ascontiguousarray(part.data), np.asarray(part.targets, dtype=np.int64)


def _download(kind: KnownFormat, root: Path) -> None:
    from torchvision import datasets

    cls = getattr(datasets, kind.torchvision)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            if kind.torchvision == "SVHN":
                for split in ("train", "test"):
                    cls(root / "SVHN", split=split, download=True)
            else:
                cls(root, download=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"--download: {kind.title} could not be fetched into {root} ({error}); fetch its files by hand "
            "and name their folder with --data-dir"
        ) from error
