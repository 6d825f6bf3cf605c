"""A small Glyph that is drawn once, and idx files of a few records."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.data import Dataset, GlyphSettings, load_dataset
from pate_fed.data.glyph_raster import SYMBOLS, DistanceMaps, make_distance_maps

SMALL = GlyphSettings(classes=3, private=400, public=100, seed=7)


@pytest.fixture(scope="session")
def small_settings() -> GlyphSettings:
    return SMALL


@pytest.fixture(scope="session")
def glyph_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def small_glyph(glyph_cache: Path) -> Dataset:
    return load_dataset("glyph", glyph=SMALL, cache_dir=glyph_cache)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATE_FED_DATA", "PATE_FED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    """The idx file of an array, uncompressed."""
    return struct.pack(f">I{values.ndim}I", 0x0800 | values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def write_mnist() -> Callable[[Path, int, int], None]:
    """Writes a data set of (private, public) records into a folder, as MNIST's four gzip files."""

    def write(folder: Path, private: int, public: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stream = np.random.RandomState(0)
        for side, count in (("train", private), ("t10k", public)):
            images = stream.randint(0, 256, (count, 28, 28)).astype(np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
                (folder / f"{side}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values)))

    return write


@pytest.fixture(scope="session")
def maps() -> DistanceMaps:
    """The distance maps of Glyph's first three symbols."""
    return make_distance_maps(SYMBOLS[:3])
