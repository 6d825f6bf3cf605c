"""Find and read the public data sets: idx files ourselves, SVHN and CIFAR through torchvision, and pictures.

The training part is private, the test part public, as in the papers. torchvision checks the MD5 of SVHN's and
CIFAR's files before it opens them, which matters for CIFAR: its files are pickles. CINIC-10 is a folder of
pictures.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.pictures import read_labelled_images, read_picture
from pate_fed.data.source import DatasetSource
from pate_fed.errors import InputError, naming_mismatch, naming_refusal

# CINIC-10 (Darlow, Crowley, Antoniou and Storkey 2018): folders train, valid and test of one folder a
# class.
#
# The training part is private, the test part public; the validation part is not used. 32×32 PNG files in
# colour; a grey one counts for all three.


# Those of CIFAR-10, in its order.
_TEN_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CINIC_FOLDERS = ("CINIC-10", "cinic-10", "cinic10", "CINIC10", ".")
_CINIC_SIDE = 32
_CINIC_PARTS = {"private": "train", "public": "test"}


def find_cinic(root: Path, *, download: bool) -> DatasetSource:
    """The source of CINIC-10 below a folder, both parts; InputError names a missing or empty folder."""
    folder = next((root / name for name in _CINIC_FOLDERS if (root / name / "train").is_dir()), None)
    if folder is None:
        asked = "--download cannot fetch it; " if download else ""
        raise InputError(
            f"--dataset cinic10 in {root}: folders train and test of pictures are looked for there and in "
            f"{', '.join(_CINIC_FOLDERS[:-1])}; {asked}unpack CINIC-10.tar.gz and "
            "name its folder with --data-dir"
        )
    paths = {side: _cinic_paths(folder / part) for side, part in _CINIC_PARTS.items()}
    digest = sha256()
    for side, found in paths.items():
        for label, path in found:
            digest.update(f"{side} {label} {path.name} {path.stat().st_size}\n".encode())
    return DatasetSource(
        name="cinic10",
        key=digest.hexdigest()[:32],
        class_names=_TEN_CLASSES,
        save=lambda empty: _save_cinic(paths, empty),
        max_queries=10_000,
    )


def _cinic_paths(folder: Path) -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    for label, name in enumerate(_TEN_CLASSES):
        pictures = sorted((folder / name).glob("*.png"))
        if not pictures:
            raise InputError(
                f"{folder / name}: holds no .png files; CINIC-10 has pictures of each class there"
            )
        found += [(label, path) for path in pictures]
    # In an order that does not go by class, the same everywhere.
    order = np.random.Philox(key=10).random_raw(len(found)).argsort(kind="stable")
    return [found[place] for place in order.tolist()]


def _save_cinic(paths: dict[str, list[tuple[int, Path]]], empty: Path) -> None:
    for side, found in paths.items():
        images = np.empty((len(found), _CINIC_SIDE, _CINIC_SIDE, 3), dtype=np.uint8)
        for row, (_, path) in enumerate(found):
            images[row] = _cinic_pixels(path)
        np.save(empty / f"{side}_images.npy", images)
        np.save(empty / f"{side}_labels.npy", np.array([label for label, _ in found], dtype=np.int64))


def _cinic_pixels(path: Path) -> NDArray[np.uint8]:
    pixels = read_picture(path, channels=3)
    if pixels.shape[:2] != (_CINIC_SIDE, _CINIC_SIDE):
        raise InputError(
            f"{path}: {pixels.shape[1]}×{pixels.shape[0]} pixels; {_CINIC_SIDE}×{_CINIC_SIDE} is meant"
        )
    return pixels


Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images and their labels

_IDX = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
_DIGITS = tuple("0123456789")
_CLOTHES = tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","))
# CIFAR-100's fine classes, in the order of its labels (Krizhevsky 2009).
_FINE_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()
)


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """A public data set: its files, and the folders below the data folder where they may lie."""

    title: str
    torchvision: str  # its class there
    class_names: tuple[str, ...]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    max_queries: int = 9_000
    archive: str | None = None  # that the files are unpacked from


def _cifar_folders(name: str, folder: str) -> tuple[str, ...]:
    return (folder, f"{name.upper()}/{folder}", f"{name}/{folder}", ".")


FORMATS = {
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
        max_queries=10_000,
    ),
    "cifar10": KnownFormat(
        "CIFAR-10",
        "CIFAR10",
        _TEN_CLASSES,
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
        _cifar_folders("cifar10", "cifar-10-batches-py"),
        archive="cifar-10-python.tar.gz",
    ),
    "cifar100": KnownFormat(
        "CIFAR-100",
        "CIFAR100",
        _FINE_CLASSES,
        ("train", "test", "meta"),
        _cifar_folders("cifar100", "cifar-100-python"),
        archive="cifar-100-python.tar.gz",
    ),
}


def find_source(name: str, *, data_dir: Path | None, download: bool, downloads: Path) -> DatasetSource:
    """The source of a public data set, a key of `FORMATS` or cinic10, whose files are found but not yet read.

    They are looked for in `data_dir`, else `PATE_FED_DATA`, else `downloads`, to which a `download` goes.

    Raises:
        InputError: no such folder, or files that are missing; the error names them and where it looked.
    """
    root = _data_dir(data_dir) or downloads
    if name == "cinic10":
        return find_cinic(root, download=download)
    known = FORMATS[name]
    paths = _find(known, root)
    if paths is None and download:
        _download(known, root)
        paths = _find(known, root)
    if paths is None:
        raise InputError(_missing(name, known, root, given=root != downloads))
    found = paths
    return DatasetSource(
        name=name,
        key=_digest(found),
        class_names=known.class_names,
        save=lambda folder: _save(known, found, folder),
        max_queries=known.max_queries,
    )


def _data_dir(data_dir: Path | None) -> Path | None:
    option = "--data-dir"
    if data_dir is None:
        option, text = "PATE_FED_DATA", os.environ.get("PATE_FED_DATA")
        data_dir = Path(text) if text else None
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(f"{option} {data_dir}: no such folder")
    return data_dir


def _files_in(folder: Path, known: KnownFormat) -> dict[str, Path]:
    """Those of its files that the folder has, by name; gzip or plain where they are idx."""
    choices = ((file, folder / f"{file}{suffix}") for file in known.files for suffix in ("", ".gz"))
    return {file: path for file, path in choices if path.is_file()}  # gzip where there are both


def _find(known: KnownFormat, root: Path) -> tuple[Path, ...] | None:
    """The data set's files in the first folder that has all of them."""
    for folder in known.folders:
        found = _files_in(root / folder, known)
        if len(found) == len(known.files):
            return tuple(found.values())
    return None


def _missing(name: str, known: KnownFormat, root: Path, *, given: bool) -> str:
    files = [f"{file}.gz" if known.files is _IDX else file for file in known.files]
    places = [root / folder for folder in known.folders]
    where = f"--data-dir {root} (or PATE_FED_DATA)" if given else "no --data-dir and no PATE_FED_DATA"
    lacking = ", and none is there"
    for place in places:
        if found := _files_in(place, known):
            lacking = f"; {place} lacks {', '.join(file for file in known.files if file not in found)}"
            break
    return (
        f"{known.title} with {where}: its files {', '.join(files)} are looked for in "
        f"{', '.join(map(str, places))}{lacking}; give the folder with --data-dir"
        f"{f' ({known.archive} unpacked)' if known.archive else ''}, or fetch them with "
        f"flower-simulation --dataset {name} --download --dry-run"
    )


def _digest(paths: tuple[Path, ...]) -> str:
    total = sha256()
    for path in paths:
        with naming_refusal(f"{path}: cannot be read"):
            with path.open("rb") as handle:
                total.update(f"{path.name} {file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:32]


def _save(known: KnownFormat, paths: tuple[Path, ...], folder: Path) -> None:
    read = _from_idx if known.files is _IDX else _from_torchvision
    for part, (images, labels) in zip(("private", "public"), read(known, paths), strict=True):
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", labels)


def _from_idx(known: KnownFormat, paths: tuple[Path, ...]) -> tuple[Labelled, Labelled]:
    classes = len(known.class_names)
    private, public = (read_labelled_images(*paths[at : at + 2], num_classes=classes) for at in (0, 2))
    ours, others = ("×".join(map(str, images.shape[1:3])) for images, _ in (public, private))
    if ours != others:
        raise InputError(f"{paths[2]}: images of {ours}, but those in {paths[0].name} are {others}")
    return private, public


def _from_torchvision(known: KnownFormat, paths: tuple[Path, ...]) -> tuple[Labelled, Labelled]:
    with naming_mismatch():
        from torchvision import datasets

    folder, reader = paths[0].parent, getattr(datasets, known.torchvision)
    if known.torchvision == "SVHN":
        _verify(dict(entry[1:] for entry in reader.split_list.values()), paths)
        return _svhn(reader(folder, split="train")), _svhn(reader(folder, split="test"))
    md5 = {**dict(reader.train_list), **dict(reader.test_list), reader.meta["filename"]: reader.meta["md5"]}
    _verify(md5, paths)

    class Here(reader):  # type: ignore[misc, valid-type]
        base_folder = folder.name  # the files may lie in a folder of another name

    return _cifar(Here(folder.parent, train=True)), _cifar(Here(folder.parent, train=False))


def _verify(md5: dict[str, str], paths: tuple[Path, ...]) -> None:
    with naming_mismatch():
        from torchvision.datasets.utils import check_integrity

    for path in paths:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        if not check_integrity(str(path), md5[path.name]):
            raise InputError(
                f"{path}: the file is damaged or another version: its MD5 is not {md5[path.name]}"
            )


def _svhn(part: Any) -> Labelled:
    return np.ascontiguousarray(part.data.transpose(0, 2, 3, 1)), part.labels.astype(np.int64)


def _cifar(part: Any) -> Labelled:
    return np.ascontiguousarray(part.data), np.asarray(part.targets, dtype=np.int64)


def _download(known: KnownFormat, root: Path) -> None:
    with naming_mismatch():
        from torchvision import datasets

    fetch = getattr(datasets, known.torchvision)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            if known.torchvision == "SVHN":
                for split in ("train", "test"):
                    fetch(root / "SVHN", split=split, download=True)
            else:
                fetch(root, download=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"--download: {known.title} could not be fetched into {root} ({error}); fetch its files by hand "
            "and name their folder with --data-dir"
        ) from error
