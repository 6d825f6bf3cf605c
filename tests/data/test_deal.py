"""One CSV file dealt out: no row is lost, a patient's stay together, parties have equally many."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from pate_fed.data.deal import deal_csv
from pate_fed.data.schema import Schema
from pate_fed.data.table import read_table
from pate_fed.errors import InputError

SCHEMA = Schema(label="ill", classes=("0", "1"), columns=(("age", ()),), patient="patient", missing=("none",))
ROWS = replace(SCHEMA, patient=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """24 rows, two of each patient, with notes."""
    rows = "\n".join(f"Mrs {number // 2},{number},see Mrs {number},{number % 2}" for number in range(24))
    path = tmp_path / "all.csv"
    path.write_text(f"patient,age,note,ill\n{rows}\n", encoding="utf-8")
    return path


def _rows(path: Path, *columns: str) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == [*columns]
    return rows


@pytest.mark.parametrize("schema", [SCHEMA, ROWS])
def test_every_row_is_in_one_file(file: Path, tmp_path: Path, schema: Schema) -> None:
    dealt = deal_csv(file, tmp_path / "dealt", parties=4, schema=schema)
    private, pool = dealt.private, dealt.pool
    columns = ("age", "ill") if schema is ROWS else ("patient", "age", "ill")
    parts = [_rows(path, *columns) for path in (*private, pool)]
    assert dealt.left_out == ()
    whole = {row[1]: row for row in _rows(file, "patient", "age", "note", "ill")}
    assert sorted(row[-2:] for part in parts for row in part) == sorted(
        [age, row[3]] for age, row in whole.items()
    )
    assert [len(part) for part in parts] == [4] * 4 + [8]
    if schema is SCHEMA:  # numbers for names
        named = {row[0]: whole[row[1]][0] for part in parts for row in part}
        assert {*named} == {str(number) for number in range(1, 13)} and len({*named.values()}) == 12
        assert sum(len({row[0] for row in part}) for part in parts) == 12
    assert (tmp_path / "dealt").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (*private, pool))


def test_too_few_units_and_a_folder_that_is_there_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--deal 12: 1 to 11 is meant, of 12 patients"):
        deal_csv(file, tmp_path / "dealt", parties=12, schema=SCHEMA)
    (alone := tmp_path / "alone.csv").write_text("patient,age,ill\na,1,0\na,2,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="has 1 patient; two or more are meant"):
        deal_csv(alone, tmp_path / "dealt", parties=1, schema=SCHEMA)
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="cannot be made"):
        deal_csv(file, tmp_path / "there", parties=2, schema=ROWS)
    assert not (tmp_path / "dealt").exists()


@pytest.mark.parametrize(("schema", "left_out"), [(SCHEMA, (4, 5, 6)), (ROWS, (5, 6))])
def test_what_no_party_could_read_is_left_out(
    tmp_path: Path, schema: Schema, left_out: tuple[int, ...]
) -> None:
    lines = ["a ,1,0", "a,2,1", " ?,3,0", "b,4,", "b,5,none", "c,6,1", "d,7,0"]
    path = tmp_path / "all.csv"
    path.write_text("\n".join([" patient ,age, ill", *lines]) + "\n", encoding="utf-8")
    dealt = deal_csv(path, tmp_path / "dealt", parties=2, schema=schema)
    assert dealt.left_out == left_out
    files = [read_table(file, schema, labelled=True) for file in (*dealt.private, dealt.pool)]
    assert sum(len(rows.labels) for rows in files) == 7 - len(left_out)
    with pytest.raises(InputError, match=f"{len(left_out)} rows without label or patient left out"):
        deal_csv(path, tmp_path / "more", parties=9, schema=schema)
