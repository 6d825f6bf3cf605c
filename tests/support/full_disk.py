"""A disk without a byte left, or without room for another file."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path


def fill_names(folder: Path) -> None:
    """Leave room for no other file on the disk, in files of a new folder."""
    folder.mkdir()
    with suppress(OSError):
        for number in count():
            (folder / str(number)).touch()


def fill(path: Path) -> None:
    """Leave no byte of the disk free."""
    with open(path, "wb", buffering=0) as file:
        for size in (65_536, 512, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
