"""Tables: what a hospital's CSV may hold, and errors that name row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data.schema import Schema, read_table
from pate_fed.errors import InputError
from pate_fed.structure import from_plain, to_plain

SCHEMA = Schema(
    label="outcome",
    classes=("well", "ill"),
    columns=(("age", ()), ("sex", ("f", "m")), ("dose", ())),
    patient="patient",
)
HEADER = "patient,age,sex,dose,note,outcome\n"


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_categories_missing_values_and_patients(tmp_path: Path) -> None:
    text = HEADER + "a,41,f,0.5,x,well\nb,?,m,,y,ill\na,7e1,NA,-2,z,well\n"
    rows = read_table(_write(tmp_path, text), SCHEMA, labelled=True)
    nan = np.nan
    expected = [[41, 1, 0, 0.5], [nan, 0, 1, nan], [70, 0, 0, -2]]
    np.testing.assert_array_equal(rows.inputs, expected)
    assert rows.labels.tolist() == [0, 1, 0]
    assert rows.patients.tolist() == [0, 1, 0]
    assert SCHEMA.num_features == 4


def test_a_pool_may_lack_labels_patients_and_have_a_byte_order_mark(tmp_path: Path) -> None:
    rows = read_table(_write(tmp_path, "\ufeffage,sex,dose\n1,f,2\n3,m,4\n"), SCHEMA, labelled=False)
    assert rows.labels.tolist() == [-1, -1]
    assert rows.patients.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER + "a,41,f,1,x,well\nb,old,m,1,y,ill\n", ["row 3", "column age", "'old'", "number"]),
        (HEADER + "a,inf,f,1,x,well\n", ["row 2", "column age", "finite"]),
        (HEADER + "a,1,F,1,x,well\n", ["row 2", "column sex", "'F'", "f, m", "did you mean 'f'?"]),
        (HEADER + "a,1,f,1,x,wel\n", ["row 2", "column outcome", "'wel'", "well, ill"]),
        (HEADER + "a,1,f,1,x,WELL\n", ["row 2", "column outcome", "did you mean 'well'?"]),
        (HEADER + "a,1,f,1,x,\n", ["row 2", "column outcome", "label is missing"]),
        (HEADER + "a,1,f,1,x\n", ["row 2", "5 values for 6 columns"]),
        ("patient,age,sex,dos,outcome\n", ["row 1", "'dose'", "there is 'dos'"]),
        ("age,sex,dose,outcome\n1,f,1,ill\n", ["'patient'"]),
        ("patient,age,age,sex,dose,outcome\n", ["'age'", "twice"]),
        (HEADER, ["no rows"]),
        (HEADER.upper(), ["row 1", "'age'", "there is 'AGE'"]),
        (HEADER.replace(",", ";") + "a;1;f;1,5;x;ill\n", ["row 1", "separated by ';'", "commas"]),
        (HEADER.replace(",", "\t"), ["row 1", r"separated by '\t'"]),
        ("sep=,\n" + HEADER, ["row 1", "without a line sep="]),
        ("\n" + HEADER, ["row 1", "empty row"]),
        ("", ["row 1", "a header is meant"]),
    ],
)
def test_a_wrong_table_is_named_by_row_and_column(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_table(_write(tmp_path, text), SCHEMA, labelled=True)
    for word in ("north.csv", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(("column", "taken"), [("outcomes", False), ("Outcome", False), ("ward", True)])
def test_a_pools_label_that_is_misspelt_is_no_missing_label(column: str, taken: bool, tmp_path: Path) -> None:
    path = _write(tmp_path, f"age,sex,dose,{column}\n1,f,2,ill\n")
    if taken:
        assert read_table(path, SCHEMA, labelled=False).labels.tolist() == [-1]
        return
    with pytest.raises(InputError, match=f"label 'outcome' is missing; there is '{column}'"):
        read_table(path, SCHEMA, labelled=False)


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x80,\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_table(tmp_path / "x.csv", SCHEMA, labelled=True)
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "none.csv", SCHEMA, labelled=True)


def test_a_schema_survives_its_own_words() -> None:
    assert from_plain(Schema, to_plain(SCHEMA), where="study.toml") == SCHEMA
    table = {"label": "outcome", "classes": ["well", "ill"], "patient": "patient"}
    columns = {"age": "number", "sex": ["f", "m"], "dose": "number"}
    assert from_plain(Schema, {**table, "columns": columns}, where="study.toml") == SCHEMA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ["one"]}, "two or more"),
        ({"columns": {}}, "at least one"),
        ({"columns": {"age": "numbers"}}, "columns in study.toml is"),
        ({"columns": {"outcome": "number"}}, "more than once"),
        ({"colums": {}}, "did you mean columns"),
        ({"label": 3}, "the name of a column"),
        ({"label": None}, "the name of a column"),
    ],
)
def test_a_wrong_schema_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_plain(Schema, {**to_plain(SCHEMA), **change}, where="study.toml")
