"""What the public pool looks like, as a few lines of text: a table's rows, or images in shades."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.local import POOL_FILE, kind_of
from pate_fed.data import Schema, pool_digest, read_pool
from pate_fed.errors import InputError
from pate_fed.format import printable
from pate_fed.kinds.terms import Terms

_SHOWN = 3  # rows or images
_ROW_LENGTH = 180  # characters of a row
_SHADES = " .:-=+*#%@"
_TILE_ROWS, _TILE_COLUMNS, _GAP = 10, 20, 2  # characters; one is about twice as high as it is wide


def open_pool(path: Path, terms: Terms) -> NDArray[np.generic]:
    """The public inputs in a file: (n, features) or (n, height, width, channels).

    Raises:
        InputError: it cannot be read, is not the pool of these terms, or they do not say what is in it.
    """
    if not terms.asks.reads_inputs:
        raise InputError(
            f"--pool {path}: the terms of {terms.words.kind} do not say how their inputs are read"
        )
    if path.name == POOL_FILE:
        try:
            inputs: NDArray[np.generic] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"--pool {path}: cannot be read as an array") from error
    else:
        inputs = read_pool(path, kind_of(terms)).inputs
    found = pool_digest(inputs)
    if found != terms.pool_digest:
        raise InputError(
            f"--pool {path}: its SHA-256 is {found}, the terms name {terms.pool_digest}: not the study's pool"
        )
    return inputs


def preview(path: Path, terms: Terms) -> str:
    """The first inputs of a copy of the public pool, in lines of at most 64 characters where it is images.

    Raises:
        InputError: as `open_pool`.
    """
    inputs = open_pool(path, terms)
    head = f"{path}: the pool of these terms. Its first {min(_SHOWN, len(inputs))}:"
    if terms.table is not None:
        return "\n".join(
            [head, *(_row(terms.table, row) for row in np.asarray(inputs[:_SHOWN], dtype=np.float64))]
        )
    tiles = [_tile(np.asarray(image, dtype=np.float64)) for image in inputs[:_SHOWN]]
    return "\n".join([head, *((" " * _GAP).join(parts) for parts in zip(*tiles, strict=True))])


def _row(table: Schema, row: NDArray[np.float64]) -> str:
    """One encoded row in words, cut where it is long."""
    said, place = [], 0
    for name, values in table.columns:
        width = max(1, len(values))
        cell, place = row[place : place + width], place + width
        said.append(f"{name} {_cell(cell, values)}")
    text = printable(", ".join(said))
    return text if len(text) <= _ROW_LENGTH else text[: _ROW_LENGTH - 1] + "…"


def _cell(cell: NDArray[np.float64], values: tuple[str, ...]) -> str:
    if not values:
        return "missing" if np.isnan(cell[0]) else f"{cell[0]:.6g}"
    return values[int(cell.argmax())] if cell.any() else "missing"


def _tile(image: NDArray[np.float64]) -> list[str]:
    """An image (height, width, channels) in shades of ten characters."""
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    rows = np.arange(_TILE_ROWS) * grey.shape[0] // _TILE_ROWS
    columns = np.arange(_TILE_COLUMNS) * grey.shape[1] // _TILE_COLUMNS
    small = grey[np.ix_(rows, columns)]
    low, high = float(small.min()), float(small.max())
    shade = ((small - low) / (high - low or 1.0) * (len(_SHADES) - 1)).astype(int)
    return ["".join(_SHADES[place] for place in line) for line in shade]
