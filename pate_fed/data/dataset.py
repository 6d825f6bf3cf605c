"""Data sets: private records, public inputs and what names them, loaded into a cache of memory maps."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.source import DatasetSource, GlyphSettings, build_once, cache_root, read_manifest
from pate_fed.errors import InputError
from pate_fed.structure import nearest

DATASETS: tuple[str, ...] = ("glyph", "fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "cinic10")

OnBlock = Callable[[int, int], None]

_ARRAYS = ("private_images", "private_labels", "public_images", "public_labels")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Private and public part of a data set, as a simulation has them; a real hospital has its own records.

    Attributes:
        name: one of `DATASETS`.
        num_classes: labels are 0 to `num_classes` - 1.
        class_names: one a class, for people.
        private_images: `uint8 (private, height, width, channels)`, read-only.
        private_labels: `int64 (private,)`, as the hospitals know them: some may be wrong.
        public_images: `uint8 (public, height, width, channels)`, read-only.
        public_labels: `int64 (public,)`, true; to measure with, never to learn from.
        num_queries: the first so many public images may be asked about and learnt from, the rest only test.
        pool_digest: `pool_digest(public_images)`.
        details: what the data were made with, for a caption.
        owners: `int64 (private,)`, the party of each record, where files say so; None: records are dealt out.
        patients: `int64 (private,)`, equal for records of one patient, in whichever party; None: not named.
        public_patients: `int64 (public,)`, the same of the public inputs.
        most_label: the greatest label where they are no classes (`Schema.most_label`).
        shape: of an input, where rows stand for arrays of other shapes; else ().

    Rows of numbers stand in place of images as `float64 (n, features)`.
    """

    name: str
    num_classes: int
    class_names: tuple[str, ...]
    private_images: NDArray[Any]
    private_labels: NDArray[np.int64]
    public_images: NDArray[Any]
    public_labels: NDArray[np.int64]
    num_queries: int
    pool_digest: str
    details: str = ""
    owners: NDArray[np.int64] | None = None
    patients: NDArray[np.int64] | None = None
    public_patients: NDArray[np.int64] | None = None
    shape: tuple[int, ...] = ()
    most_label: int | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input, as a network of the user's own gets it."""
        return self.shape or tuple(int(each) for each in self.public_images.shape[1:])

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, classes={self.num_classes}, private={len(self.private_labels)}, "
            f"public={len(self.public_labels)})"
        )


def load_dataset(
    name: str,
    *,
    glyph: GlyphSettings | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    cache_dir: Path | None = None,
    on_progress: OnBlock | None = None,
) -> Dataset:
    """Load a data set, as memory maps of files that are written into the user's cache on first use.

    Args:
        name: one of `DATASETS`. `glyph` is drawn on this machine; the others are read from files.
        glyph: settings of `glyph`; the other data sets ignore them.
        data_dir: folder of the data files; None: the environment variable `PATE_FED_DATA`.
        download: let torchvision fetch files that are missing, into `data_dir` or else into the cache.
        cache_dir: None: `PATE_FED_CACHE`, else `$XDG_CACHE_HOME/pate_fed`, else `~/.cache/pate_fed`.
        on_progress: called with (images done, images in all) while Glyph is drawn.

    Raises:
        InputError: an unknown name, files that are missing or damaged, or a cache that cannot be written.
    """
    if name not in DATASETS:
        hint = nearest(name, DATASETS)
        raise InputError(f"--dataset {name!r} is unknown: one of {', '.join(DATASETS)}{hint}")
    root = cache_root(cache_dir)
    if name == "glyph":
        from pate_fed.data.glyph import glyph_source

        source = glyph_source(glyph or GlyphSettings(), on_progress)
    else:
        from pate_fed.data.formats import find_source

        source = find_source(name, data_dir=data_dir, download=download, downloads=root / "downloads")
    folder = build_once(root, name, source.key, lambda empty: _save(source, empty))
    return _open(source, folder)


def _save(source: DatasetSource, folder: Path) -> str:
    source.save(folder)
    return pool_digest(_array(folder, "public_images"))


def _open(source: DatasetSource, folder: Path) -> Dataset:
    arrays: dict[str, Any] = {name: _array(folder, name) for name in _ARRAYS}
    public = len(arrays["public_labels"])
    return Dataset(
        name=source.name,
        num_classes=len(source.class_names),
        class_names=source.class_names,
        num_queries=min(source.max_queries, max(1, public * 9 // 10)),
        pool_digest=read_manifest(folder).pool_digest,
        details=source.details,
        **arrays,
    )


def _array(folder: Path, name: str) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: the cached file cannot be read ({error}); delete the folder {folder}"
        ) from error
    return array


def release_pages(array: NDArray[Any]) -> None:
    """Have this process hold nothing of a memory map, until it reads of it again; else nothing."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.base.madvise(mmap.MADV_DONTNEED)


# Freed memory goes back to the system, which the C library would keep for what is needed next.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE, _LARGEST = 4 * 2**20, 32 * 2**20


def release_memory(*, forget: bool = False) -> None:
    """Give freed memory back to the system, which glibc keeps for the next array; elsewhere nothing.

    With `forget` also what `spare` holds in this process.
    """
    for let_go in _SPARED if forget else ():
        let_go()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def spare(let_go: Callable[[], None]) -> None:
    """Have `let_go` called where memory is needed: of what is kept only to be quicker."""
    _SPARED.add(let_go)


_SPARED: set[Callable[[], None]] = set()


@contextmanager
def returning_memory() -> Iterator[None]:
    """Inside, arrays of 4 MiB and more go back to the system when they are freed, where glibc is.

    They take longer to make, so this is for few of them.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    release_memory()
    if choose is not None:
        choose(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        if choose is not None:  # the most that glibc itself would have come to
            choose(_MMAP_THRESHOLD, _LARGEST)
            choose(_TRIM_THRESHOLD, 2 * _LARGEST)
        release_memory()


def pool_digest(images: NDArray[Any]) -> str:
    """SHA-256 over shape, dtype and bytes, in hexadecimal: what names a pool of public inputs.

    Args:
        images: `uint8 (n, height, width, channels)`, or a table's rows, `float64 (n, features)`.

    Raises:
        InputError: another dtype or number of dimensions.
    """
    if (images.dtype.name, images.ndim) not in (("uint8", 4), ("float64", 2)):
        raise InputError(
            f"images of {images.dtype} with shape {images.shape}: uint8 (n, height, width, channels) is meant"
        )
    digest = sha256(f"{images.dtype} {'×'.join(map(str, images.shape))}\n".encode())
    if images.dtype == np.float64:
        images = np.where(np.isnan(images), np.nan, images).astype("<f8")  # one NaN, one order of bytes
    for start in range(0, len(images), 1024):
        digest.update(np.ascontiguousarray(images[start : start + 1024]).tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def repeated_inputs(dataset: Dataset) -> NDArray[np.bool_]:
    """Mask of the public inputs that equal an earlier one: bool (public,), read-only.

    Only the first of them is asked about. The answers to two would be two sums of the same votes, and if a
    hospital was in one sum alone, their difference would be its own vote, masks or not.
    """
    first = first_equal(dataset)
    repeated: NDArray[np.bool_] = first != np.arange(len(first))
    repeated.setflags(write=False)
    return repeated


@lru_cache(maxsize=1)
def first_equal(dataset: Dataset) -> NDArray[np.int64]:
    """The place of the first public input that equals each: int64 (public,), read-only."""
    images, seen = dataset.public_images, dict[bytes, int]()
    if images.dtype == np.float64:
        images = np.where(np.isnan(images), np.nan, images) + 0.0  # one NaN, one zero
    first = np.empty(len(images), dtype=np.int64)
    for place, image in enumerate(images):
        first[place] = seen.setdefault(sha256(np.ascontiguousarray(image).tobytes()).digest(), place)
    first.setflags(write=False)
    return first
