"""What a check finds in hospitals' files: dialects, units, codes; faults by row and column alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import InputSpec, read_pool, read_records
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.profile import TableProfile, examine
from pate_fed.data.schema import Schema
from pate_fed.errors import InputError

COLUMNS = ("patient", "age", "glucose", "sex", "ward", "outcome")
SCHEMA = Schema(
    label="outcome",
    classes=("well", "ill"),
    columns=(("age", ()), ("glucose", ()), ("sex", ("male", "female")), ("ward", ("A", "B"))),
    patient="patient",
)
SPEC = InputSpec(classes=SCHEMA.classes, schema=SCHEMA)


def _records(count: int, seed: int = 0) -> list[list[str]]:
    drawn = random.Random(seed)
    rows = []
    for number in range(count):
        age, glucose, sex = drawn.randint(20, 90), drawn.gauss(110, 20), drawn.choice(["male", "female"])
        ill = age / 60 + glucose / 110 + drawn.gauss(0, 0.5) > 2
        ward = drawn.choice("AB")
        rows.append([f"p{number}", str(age), f"{glucose:.1f}", sex, ward, "ill" if ill else "well"])
    return rows


def _write(path: Path, rows: list[list[str]], *, header: tuple[str, ...] = COLUMNS, by: str = ",") -> Path:
    path.write_bytes("".join(f"{by.join(row)}\n" for row in [list(header), *rows]).encode("latin-1"))
    return path


@pytest.fixture
def pool(tmp_path: Path) -> np.ndarray:
    return read_pool(_write(tmp_path / "pool.csv", _records(200, seed=9)), SPEC).inputs


def _accept_all(path: Path, pool: np.ndarray) -> TableProfile:
    own = OwnColumns()
    while (found := examine(path, SCHEMA, own=own, pool=pool)).proposals:
        for each in found.proposals:
            own = own.changed(each.column, each.change)
    own.write(path)
    return found


def test_declared_ranges_stand_where_there_is_no_pool(tmp_path: Path) -> None:
    schema = replace(SCHEMA, ranges=(("age", (0.0, 60.0)), ("glucose", (40.0, 600.0))))
    rows = [[*row[:2], str(float(row[2]) / 18.016), *row[3:]] for row in _records(60)]
    found = examine(_write(tmp_path / "n.csv", rows), schema)
    assert dict(found.columns[0].pool) == {"low": 0.0, "high": 60.0}
    told = [str(note) for note in found.notes]
    assert any(note.startswith("age: outside of the declared 0 to 60 (row") for note in told), told
    [asks] = [each for each in found.proposals if each.column == "glucose"]
    assert asks.change == {"factor": 18.016} and "the declared 40 to 600" in asks.text


def test_a_file_that_fits_is_told_column_by_column(tmp_path: Path, pool: np.ndarray) -> None:
    rows = _records(60)
    rows[3][1] = rows[4][1] = "NA"
    found = examine(_write(tmp_path / "n.csv", rows), SCHEMA, pool=pool)
    assert found.fits and not found.proposals and (found.records, found.patients) == (60, 60)
    age, _, sex, _, label = found.columns
    ages = [int(row[1]) for row in rows if row[1] != "NA"]
    assert (age.kind, age.missing, age.values) == ("number", 2, {"low": min(ages), "high": max(ages)})
    assert len(age.bars) == 8 and (age.pool["low"], age.pool_missing) == (pool[:, 0].min(), 0)
    assert sex.values == {value: sum(row[3] == value for row in rows) for value in ("male", "female")}
    assert sex.pool["male"] == pytest.approx(pool[:, 2].mean())
    assert label.kind == "label" and sum(label.values.values()) == 60


@pytest.mark.parametrize("dialect", ["semicolons", "tabs", "mmol/l", "codes"])
def test_four_dialects_become_the_same_records(
    dialect: str,
    tmp_path: Path,
    pool: np.ndarray,
) -> None:
    rows, by = _records(80), ","
    header: tuple[str, ...] = COLUMNS
    plain = read_records(_write(tmp_path / "plain.csv", rows), SPEC)
    if dialect == "semicolons":
        rows, by = [[cell.replace(".", ",") for cell in row] for row in rows], ";"
        header = ("Patienten-Nr", "AGE", *COLUMNS[2:], "Straße")
        rows = [[*row, "Köln"] for row in rows]
    elif dialect == "tabs":
        header, by = ("patient", "age", "GLUCOSE", "Sex", "ward", "outcome"), "\t"
    elif dialect == "mmol/l":
        rows = [[*row[:2], f"{float(row[2]) / 18.016:.6f}", *row[3:]] for row in rows]
    else:
        rows = [
            [*row[:3], "w" if row[3] == "female" else "M", row[4].lower(), row[5].upper()] for row in rows
        ]
    path = _write(tmp_path / "n.csv", rows, header=header, by=by)
    before, first = path.read_bytes(), examine(path, SCHEMA, pool=pool)
    assert not first.fits and all(each.change for each in first.proposals)
    with pytest.raises(InputError) if dialect != "mmol/l" else _nothing():
        read_records(path, SPEC)
    assert _accept_all(path, pool).fits and path.read_bytes() == before
    mended = read_records(path, SPEC)
    np.testing.assert_allclose(mended.inputs, plain.inputs, rtol=1e-6)
    assert mended.labels.tolist() == plain.labels.tolist()
    assert mended.patients.tolist() == plain.patients.tolist()


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _told(found: TableProfile, *, mend: bool) -> list[str]:
    return [str(note) for note in found.notes if note.mend == mend]


def test_what_must_be_mended_is_named_by_row_and_column_without_values(tmp_path: Path) -> None:
    rows = _records(40)
    rows[2][1], rows[5][1], rows[7][3], rows[8][4] = "Frau Zwicky", "Dr Zwicky", "Zwicky", "m"
    rows[9][5], rows[10][5], rows[11][0], rows[12] = "zwicky", "", "", rows[12][:4]
    for row in rows[20:30]:
        row[4] = "Station Zwicky"
    found = examine(_write(tmp_path / "n.csv", rows), SCHEMA)
    assert not found.fits and "wicky" not in repr(found)
    *asked, last = found.proposals
    assert all(each.code is not None and not each.change and "wicky" not in str(each) for each in asked)
    assert last.change == {"leave_out": True} and "leave out 3 rows" in str(last)
    assert _told(found, mend=True) == [
        "whole rows: not the header's 6 values (row 14)",
        "outcome: none of the classes well, ill (row 11)",
        "outcome: the label is missing (row 12)",
        "age: not a finite number (rows 4, 7)",
        "sex: none of male, female (row 9)",
        "ward: none of A, B (rows 10, 22, 23, 24, 25 and 6 more)",
        "patient: names no patient: give every row one (row 13)",
    ]


def test_what_is_worth_a_look(tmp_path: Path, pool: np.ndarray) -> None:
    rows = _records(50)
    for number, row in enumerate(rows):
        row[4] = "A"
        row[1] = str(int(row[1]) + 300) if number < 3 else row[1]
        row[2] = "150.5" if row[5] == "ill" else "80.5"
    rows += [rows[7], [rows[8][0], "33", *rows[8][2:]]]
    found = examine(_write(tmp_path / "n.csv", rows), SCHEMA, pool=pool)
    assert found.fits and found.patients == 50
    low, high = pool[:, 0].min(), pool[:, 0].max()
    assert _told(found, mend=False) == [
        f"age: outside of the pool's {low:g} to {high:g} (rows 2, 3, 4)",
        "glucose: tells 100 % of the labels alone: is it known only once the label is, or the label itself?",
        "ward: the same value in all rows with one",
        "patient: 2 patients with several records (at most 2 of one): all kept",
        "whole rows: the same as an earlier row in all that is read: kept (row 52)",
    ]
    for row in rows:
        row[4], row[5] = "", "well"
    notes = _told(examine(_write(tmp_path / "n.csv", rows), SCHEMA), mend=False)
    assert "ward: no row has a value" in notes
    assert "outcome: no record of ill: what is trained here will never name it" in notes
    assert not any("tells" in note for note in notes), "one class is told by all columns"


def test_codes_and_names_that_may_mean_two_things_are_not_guessed(tmp_path: Path) -> None:
    rows = [[*row[:3], "h" if row[3] == "male" else "m", *row[4:]] for row in _records(30)]
    found = examine(_write(tmp_path / "n.csv", rows), SCHEMA).proposals
    assert {each.code for each in found if not each.change} == {"h", "m"}, "m is mujer beside h"
    rows = [[*row[:3], "1" if row[3] == "h" else "2", *row[4:]] for row in rows]
    asked = examine(_write(tmp_path / "n.csv", rows), SCHEMA).proposals
    assert [(each.column, each.code, each.change) for each in asked] == [("sex", "1", {}), ("sex", "2", {})]
    assert str(asked[0]) == "sex: what does its code 1 mean: male, female?"
    header = ("patient", "age", "glucose1", "sex", "ward", "outcome", "glucose2")
    rows = [[*row[:3], "male", *row[4:], "7.1"] for row in rows]
    found = examine(_write(tmp_path / "n.csv", rows, header=header), SCHEMA)
    assert [(each.column, each.change) for each in found.proposals] == [("glucose", {})]


def test_a_unit_without_a_known_factor_is_mended_by_hand_or_stated(tmp_path: Path, pool: np.ndarray) -> None:
    rows = [[row[0], str(12 * int(row[1]) + 100), *row[2:]] for row in _records(30)]
    path = _write(tmp_path / "n.csv", rows)
    found = examine(path, SCHEMA, pool=pool)
    assert not found.fits and [each.change for each in found.proposals] == [{"factor": None}]
    assert "a factor of 1" in _told(found, mend=True)[0]
    assert examine(path, SCHEMA, pool=pool, own=OwnColumns().changed("age", {"factor": 1.0})).fits
    wrong = examine(path, SCHEMA, pool=pool, own=OwnColumns().changed("age", {"factor": 5.0}))
    assert "after × 5 of the settings" in _told(wrong, mend=True)[0]


def test_cut_and_empty_files(tmp_path: Path) -> None:
    path = _write(tmp_path / "n.csv", [])
    with pytest.raises(InputError, match="no rows"):
        examine(path, SCHEMA)
    path.write_text("")
    with pytest.raises(InputError):
        examine(path, SCHEMA)
    whole = _write(path, _records(30)).read_bytes()
    path.write_bytes(whole[: len(whole) - 20])
    assert "whole rows: not the header's 6 values (row 31)" in _told(examine(path, SCHEMA), mend=True)
    rows = [["p1", *row[1:]] for row in _records(30)]
    assert not examine(_write(path, rows), SCHEMA, by_patient=True).fits
    assert examine(path, SCHEMA).fits
