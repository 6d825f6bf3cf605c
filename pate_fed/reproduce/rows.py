"""Rows of a CSV file that are frozen dataclasses: appended one by one, so that a stopped call can go on."""

from __future__ import annotations

import csv
import os
import types
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pate_fed.errors import InputError

__all__ = ["append_row", "read_rows", "write_rows"]

Row = TypeVar("Row")


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of an earlier call; nothing where there is none. An empty entry is None.

    Raises:
        InputError: the file is not one that this command wrote.
    """
    if not path.exists():
        return []
    hints = get_type_hints(kind)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                kind(**{entry.name: _read(row[entry.name], hints[entry.name]) for entry in fields(kind)})  # type: ignore[arg-type]
                for row in csv.DictReader(file)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not the rows that this command writes; remove it to start again"
        ) from error


def append_row(path: Path, row: Any) -> None:
    """Add one row, and the head to a new file; on disk when this returns."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(row)])
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A whole table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def _read(text: str, hint: Any) -> object:
    if get_origin(hint) is types.UnionType:
        hint = next(each for each in get_args(hint) if each is not type(None))
        if not text:
            return None
    return hint(text)
