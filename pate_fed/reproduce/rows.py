"""Rows of a CSV file that are frozen dataclasses: appended one by one, so that a stopped call can go on.

Beside the rows lies NAME-inputs.json with the digests of what they were made from: a call with other inputs
is refused instead of showing rows that are not its own.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.structure import from_plain

Row = TypeVar("Row")


def task_of(row: Any) -> tuple[Any, ...]:
    """What tells a row apart: its positional fields."""
    return tuple(getattr(row, name) for name in row.__match_args__)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of an earlier call; nothing where there is none. An empty entry is None.

    Raises:
        InputError: the file is not one that this command wrote.
    """
    if not path.exists():
        return []
    wrong = "not the rows that this command writes; remove it to start again"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [from_plain(kind, row, where=str(path), text=True) for row in csv.DictReader(file)]
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: {wrong}") from error


def append_row(path: Path, row: Any) -> None:
    """Add one row, and the head to a new file; on disk when this returns."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        names = dict.fromkeys([*row.__match_args__, *asdict(row)])  # the task first
        writer = csv.DictWriter(file, list(names))
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))
        file.flush()
        os.fsync(file.fileno())


def bind_rows(path: Path, inputs: Mapping[str, str]) -> None:
    """Hold the rows at `path` to `inputs`, what they are made from by name; call it before a row is shown.

    Where there are no rows yet, `inputs` are kept beside from now on.

    Raises:
        InputError: the rows were made from something else, or what was kept cannot be read.
    """
    beside = path.with_name(f"{path.stem}-inputs.json")
    if path.exists():
        known = _inputs(beside)
        for name, value in inputs.items():
            if known.get(name) != value:
                raise InputError(
                    f"{path}: its rows were made from other {name} ({known.get(name, 'unknown')[:12]}, this "
                    f"call's are {value[:12]}); give another --run-dir, or the same {name} again"
                )
    whole = json.dumps(dict(inputs), indent=1, ensure_ascii=False) + "\n"
    write_result(beside, whole.encode())


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The digests of what rows were made from, by name."""

    digests: Mapping[str, str]


def _inputs(path: Path) -> Mapping[str, str]:
    try:
        return from_plain(_Inputs, {"digests": json.loads(path.read_bytes())}, where="").digests
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: cannot be read as what rows were made from; give another --run-dir"
        ) from error


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A whole table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
