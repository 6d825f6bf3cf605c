"""The source of a data set: its facts, and how its arrays are written into the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A data set that was found but not yet read.

    Attributes:
        key: digest of all that the arrays depend on.
        save: writes the four arrays of a `Dataset` as .npy files into an empty folder.
        max_queries: the papers' number of public inputs that may be asked about.
        details: what the data were made with, for a caption.
    """

    name: str
    key: str
    class_names: tuple[str, ...]
    save: Callable[[Path], None]
    max_queries: int = 9_000
    details: str = ""
