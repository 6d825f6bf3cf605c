"""MNIST's file format: what is whole is read, and every damage is named with the file it is in."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.data.idx import read_images, read_labels
from pate_fed.errors import InputError

WriteMnist = Callable[[Path, int, int], None]


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def header(*shape: int, magic: int | None = None) -> bytes:
    return struct.pack(f">I{len(shape)}I", 0x0800 | len(shape) if magic is None else magic, *shape)


def packed(content: bytes) -> bytes:
    """The same bytes at any time of day, as they name tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize("pack", [packed, bytes])
def test_whole_files_are_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    ending = "" if pack is bytes else ".gz"
    images, labels = tmp_path / f"i{ending}", tmp_path / f"l{ending}"
    images.write_bytes(pack(header(2, 3, 4) + pixels.tobytes()))
    labels.write_bytes(pack(header(3) + bytes([2, 0, 9])))
    assert np.array_equal(read_images(images), pixels)
    found = read_labels(labels, num_classes=10)
    assert found.dtype == np.int64 and found.tolist() == [2, 0, 9]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.gz", b"", ["is empty"]),
        ("x", b"", ["is empty"]),
        ("x.gz", b"these are no images", ["gzip"]),
        ("x.gz", packed(header(2, 2, 2) + bytes(8))[:-6], ["cut short"]),
        ("x.gz", packed(header(2, 2, 2) + bytes(8))[:12], ["cut short"]),
        ("x.gz", packed(header(2, 2, 2) + bytes(8))[:-8] + bytes(8), ["gzip"]),
        ("x.gz", packed(b""), ["0 bytes", "header of 16"]),
        ("x", header(2, 2, 2)[:10], ["10 bytes", "header of 16"]),
        ("x", header(2, 2, 2, magic=0x0801) + bytes(8), ["0x00000801", "0x00000803"]),
        ("x", header(2, 2, 2, magic=0x0D03) + bytes(32), ["0x00000d03"]),
        ("x", header(2, 2, 2) + bytes(7), ["2×2×2 = 8 bytes", "only 7"]),
        ("x", header(2, 2, 2) + bytes(9), ["2×2×2 = 8 bytes", "more"]),
        ("x", header(0, 28, 28), ["0×28×28", "no images"]),
        ("x", header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(8), ["only 8"]),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_images(path)
    assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


@settings(deadline=None)
@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000))
def test_a_damaged_gzip_never_passes_as_other_images(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    pixels = np.random.RandomState(1).randint(0, 256, (3, 5, 5)).astype(np.uint8)
    whole = packed(header(3, 5, 5) + pixels.tobytes())
    path = tmp_path_factory.mktemp("idx") / "x.gz"
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 1 << (cut % 8)
    for content in (whole[: cut % len(whole)], bytes(damaged)):
        path.write_bytes(content)
        try:
            found = read_images(path)
        except InputError as error:
            assert str(path) in str(error)
        else:  # only the gzip header's unused fields may differ
            assert np.array_equal(found, pixels)


def test_a_label_out_of_range_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(header(3) + bytes([1, 10, 3]))
    with pytest.raises(InputError, match="label 10 of record 1: labels from 0 to 9"):
        read_labels(path, num_classes=10)
