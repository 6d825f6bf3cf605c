"""Read idx files, the format of MNIST and its relatives, plain or gzip; every damage is named.

An idx file is a big-endian header (two zero bytes, the type, the number of dimensions, then 32 bits a
dimension) and the bare values: http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError

_UINT8 = 0x08
_CHUNK = 1 << 20


def read_images(path: Path) -> NDArray[np.uint8]:
    """Images `(n, height, width)` of one file.

    Raises:
        InputError: the file is cut, empty, not gzip, not idx, or not as long as its header says.
    """
    return _read(path, dimensions=3, what="images")


def read_labels(path: Path, *, num_classes: int) -> NDArray[np.int64]:
    """Labels `(n,)` of one file.

    Raises:
        InputError: as `read_images`, or a label that is not below `num_classes`.
    """
    labels = _read(path, dimensions=1, what="labels").astype(np.int64)
    if labels.max() >= num_classes:
        where = int(labels.argmax())
        raise InputError(
            f"{path}: label {labels[where]} of record {where}: labels from 0 to {num_classes - 1} are allowed"
        )
    return labels


def read_labelled_images(
    images: Path, labels: Path, *, num_classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images `(n, height, width, 1)` of one file and their labels `(n,)` of another.

    Raises:
        InputError: as `read_images` and `read_labels`, or not a label an image.
    """
    pixels, classes = read_images(images), read_labels(labels, num_classes=num_classes)
    if len(pixels) != len(classes):
        raise InputError(f"{images}: {len(pixels)} images, but {labels.name} holds {len(classes)} labels")
    return pixels[..., None], classes


def _read(path: Path, *, dimensions: int, what: str) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    try:
        with path.open("rb") as raw:
            packed = path.suffix == ".gz"
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            return _parse(path, stream, dimensions, what)
    except EOFError as error:
        raise InputError(f"{path}: the gzip file is cut short; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not an undamaged gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(path: Path, stream: BinaryIO, dimensions: int, what: str) -> NDArray[np.uint8]:
    header = stream.read(4 + 4 * dimensions)
    magic = int.from_bytes(header[:4], "big")
    wanted = _UINT8 << 8 | dimensions
    if len(header) >= 4 and magic != wanted:
        raise InputError(f"{path}: magic number {magic:#010x}: idx {what} start with {wanted:#010x}")
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"{path}: {len(header)} bytes are no idx header of {4 + 4 * dimensions}")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = int(np.prod(shape, dtype=object))
    if size == 0:
        raise InputError(f"{path}: the header says {'×'.join(map(str, shape))}: the file holds no {what}")
    # In pieces: a damaged header may claim more than fits into memory.
    values = bytearray()
    while len(values) <= size and (piece := stream.read(min(_CHUNK, size + 1 - len(values)))):
        values += piece
    if len(values) != size:
        found = f"only {len(values)}" if len(values) < size else "more"
        raise InputError(
            f"{path}: the header says {'×'.join(map(str, shape))} = {size} bytes, the file has {found}"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)
