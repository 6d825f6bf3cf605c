"""One CSV file dealt out to parties and a public pool, to try a study before there are hospitals."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pate_fed.data.csv_file import CsvFile
from pate_fed.data.schema import Schema
from pate_fed.disk import write_private
from pate_fed.errors import InputError
from pate_fed.format import counted

_PUBLIC = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The parties' files and the pool's, and the numbers of the rows that are in none of them."""

    private: tuple[Path, ...]
    pool: Path
    left_out: tuple[int, ...]


def deal_csv(path: Path, folder: Path, *, parties: int, schema: Schema, decimal: str | None = None) -> Dealt:
    """Write a file for each party, and one of a random third as the public pool, in a new `folder`.

    They have the schema's columns alone, and numbers for patients. All rows of one patient, where the schema
    names these, go to one file. Parties have equally many of these. A row without its label or patient, which
    no party could use, goes to none.

    Raises:
        InputError: fewer rows or patients than files, a file that cannot be read, or a folder that is there.
    """
    file = CsvFile(path, decimal=decimal)
    header, rows = file.header, [*file.rows(plain=True)]
    units, left_out = _units(header, rows, schema)
    if not 0 < parties < len(units):
        known = counted(len(units), "row" if schema.patient is None else "patient")
        without = (
            "" if not left_out else f", {counted(len(left_out), 'row')} without label or patient left out"
        )
        if len(units) < 2:
            few = "two or more are meant, as one goes into the pool"
            raise InputError(f"--deal {parties}: {path} has {known}{without}; {few}")
        raise InputError(f"--deal {parties}: 1 to {len(units) - 1} is meant, of {known} in {path}{without}")
    order = [units[place] for place in np.random.default_rng(0).permutation(len(units))]
    public = max(1, min(round(_PUBLIC * len(units)), len(units) - parties))
    width = len(str(parties))
    private = [folder / f"party-{number:0{width}}.csv" for number in range(1, parties + 1)]
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror}); --deal writes its files there"
        ) from error
    pool = folder / "pool.csv"
    names = {schema.label, schema.patient, *(name for name, _ in schema.columns)}
    kept = [place for place, name in enumerate(header) if name in names]
    for written, part in [
        (pool, order[:public]),
        *((each, order[public + place :: parties]) for place, each in enumerate(private)),
    ]:
        text, table = io.StringIO(), [header, *(row for unit in part for row in unit)]
        csv.writer(text, lineterminator="\n").writerows([row[place] for place in kept] for row in table)
        write_private(written, text.getvalue().encode(), durable=False)
    return Dealt(private=tuple(private), pool=pool, left_out=tuple(left_out))


def _units(
    header: list[str], rows: list[tuple[int, list[str]]], schema: Schema
) -> tuple[list[list[list[str]]], list[int]]:
    """The rows of each patient, or each row, and the numbers of those that lack what a party's row needs."""
    key = None if schema.patient is None else header.index(schema.patient)
    needed = [header.index(schema.label)] + ([] if key is None else [key])
    units: dict[str, list[list[str]]] = {}
    left_out = []
    for number, cells in rows:
        if any(schema.lacks(cells[place]) for place in needed):
            left_out.append(number)
        else:
            units.setdefault(str(number) if key is None else cells[key], []).append(cells)
    for number, unit in enumerate(units.values() if key is not None else (), start=1):
        for cells in unit:
            cells[key or 0] = str(number)
    return list(units.values()), left_out
