"""One CSV file dealt out to parties and a public pool, to try a study before there are hospitals."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from pate_fed.data.table import read_rows
from pate_fed.disk import write_private
from pate_fed.errors import InputError

__all__ = ["deal_csv"]

_PUBLIC = 1 / 3


def deal_csv(path: Path, folder: Path, *, parties: int, patient: str | None) -> tuple[list[Path], Path]:
    """Write a file for each party, and one of a random third as the public pool, in a new `folder`.

    All rows with one value in the column `patient` go to one file. Parties have equally many of these.

    Raises:
        InputError: fewer rows or patients than files, a file that cannot be read, or a folder that is there.
    """
    (_, header), *rows = read_rows(path)
    key = None if patient is None else header.index(patient)
    units: dict[str, list[list[str]]] = {}
    for number, cells in rows:
        units.setdefault(str(number) if key is None else cells[key], []).append(cells)
    if not 0 < parties < len(units):
        what = "rows" if patient is None else "patients"
        raise InputError(
            f"--deal {parties}: 1 to {len(units) - 1} is meant, of {len(units)} {what} in {path}"
        )
    order = [list(units.values())[place] for place in np.random.default_rng(0).permutation(len(units))]
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
    for file, part in [
        (pool, order[:public]),
        *((file, order[public + place :: parties]) for place, file in enumerate(private)),
    ]:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *(row for unit in part for row in unit)])
        write_private(file, text.getvalue().encode(), durable=False)
    return private, pool
