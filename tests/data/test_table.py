"""Tables: what a hospital's CSV may hold, and errors that name row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import InputSpec, csv_file, dataset_from_files, table
from pate_fed.data.infer import infer_schema
from pate_fed.data.partition import patient_numbers
from pate_fed.data.schema import Schema
from pate_fed.data.table import TableReader, read_table
from pate_fed.errors import InputError

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
    assert rows.patients.tolist() == patient_numbers(["a", "b", "a"]).tolist()
    assert SCHEMA.num_features == 4


def test_a_pool_may_lack_labels_patients_and_have_a_byte_order_mark(tmp_path: Path) -> None:
    rows = read_table(_write(tmp_path, "\ufeffage,sex,dose\n1,f,2\n3,m,4\n"), SCHEMA, labelled=False)
    assert rows.labels.tolist() == [-1, -1]
    assert rows.patients.tolist() == [0, 1]
    text = "patient,age,sex,dose\nb,1,f,2\n,1,f,2\nb,1,f,2\n,1,f,2\n"
    patients = read_table(_write(tmp_path, text), SCHEMA, labelled=False).patients
    assert patients[0] == patients[2] and len(set(patients.tolist())) == 3  # the unknown are not one patient


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER + "a,41,f,1,x,well\nb,old,m,1,y,ill\n", ["row 3", "column age", "number"]),
        (HEADER + "a,inf,f,1,x,well\n", ["row 2", "column age", "finite"]),
        (HEADER + "a,1,F,1,x,well\n", ["row 2", "column sex", "f, m", "did you mean 'f'?"]),
        (HEADER + "a,1,f,1,x,wel\n", ["row 2", "column outcome is none", "well, ill"]),
        (HEADER + "a,1,f,1,x,WELL\n", ["row 2", "column outcome", "did you mean 'well'?"]),
        (HEADER + "a,1,f,1,x,\n", ["row 2", "column outcome", "label is missing"]),
        (HEADER + "a,1,f,1,x\n", ["row 2", "5 values for 6 columns"]),
        ("patient,age,sex,dos,outcome\n", ["row 1", "'dose'", "there is 'dos'"]),
        ("age,sex,dose,outcome\n1,f,1,ill\n", ["'patient'"]),
        ("patient,age,age,sex,dose,outcome\n", ["'age'", "twice"]),
        (HEADER, ["no rows"]),
        (HEADER.upper(), ["row 1", "'age'", "there is 'AGE'"]),
        ("\n" + HEADER, ["row 1", "empty row"]),
        ("", ["row 1", "a header is meant"]),
        ("b,7,m,2,z,ill\na,41,f,1,x,well\n", ["row 1", "looks like data", "age, sex, dose, outcome"]),
        (HEADER + 'a,41,f,1,"x,well\nb,1,f,1,y,ill\n', ["row 2", "never closed"]),
        (HEADER + 'a,41,f,1,x,well\nb,1,f,1,"y"z,ill\n', ["row 3", "written twice"]),
        (HEADER + "a,41,f,1," + 200_000 * "x" + ",well\n", ["row 2", "131,072 characters", "closing quote"]),
        (HEADER + "a,1e308,f,1,x,well\n", ["row 2", "column age", "too large", "3.4e+38"]),
        (HEADER + "a,1_000,f,1,x,well\n", ["row 2", "column age", "not a finite number"]),
        (HEADER + "a,41,f,1,x,well\n,1,f,1,y,ill\n", ["row 3", "column patient", "patient is missing"]),
        (HEADER + "NA,41,f,1,x,well\n", ["row 2", "column patient", "patient is missing"]),
        (HEADER + "a,see letter,f,1,x,well\n", ["row 2", "data.table.missing"]),
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            HEADER.encode() + "a,41,f,1,Gefäß,well\n".encode("cp850"),
            "row 2: neither in UTF-8 .*byte 0x84.* iconv",
        ),
        (
            "\ufeff".encode() + HEADER.encode() + b"a,41,f,1,x,ill\n\x80",
            "row 3: begins as UTF-8",
        ),
        (HEADER.encode("utf-16")[:-1], "begins as UTF-16 and is damaged"),
        (HEADER.encode("utf-16-be"), "an encoding of its own"),
    ],
)
def test_a_file_in_another_encoding_is_named_by_row(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_table(tmp_path / "x.csv", SCHEMA, labelled=True)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "none.csv", SCHEMA, labelled=True)


def test_categories_and_classes_that_are_numbers_compare_as_numbers(tmp_path: Path) -> None:
    schema = Schema(label="ill", classes=("0", "1"), columns=(("ward", ("1", "2", "03")),))
    text = "ward,ill\n1,0\n1.0,1.0\n2.00,0.0\n3,1\n03,1\n"
    rows = read_table(_write(tmp_path, text), schema, labelled=True)
    assert rows.inputs.argmax(axis=1).tolist() == [0, 0, 1, 2, 2]
    assert rows.labels.tolist() == [0, 1, 0, 1, 1]
    with pytest.raises(InputError, match="column ward is none of 1, 2, 03"):
        read_table(_write(tmp_path, "ward,ill\n1.5,0\n"), schema, labelled=True)


@pytest.mark.parametrize("text", ["f", "T", "1"])
def test_a_databases_bit_is_a_yes_or_no_only_where_words_say_so(text: str, tmp_path: Path) -> None:
    """`f` may be female where the study's values are 0 and 1."""
    said = Schema(label="ill", classes=("no", "yes"), columns=(("age", ()),))
    path = _write(tmp_path, f"age,ill\n1,{text}\n")
    assert read_table(path, said, labelled=True).labels.tolist() == [int(text != "f")]
    for classes in (("0", "2"), ("m", "w"), ("t", "s"), ("0", "1"))[: 3 if text == "1" else 4]:
        with pytest.raises(InputError, match="column ill is none of the classes"):
            read_table(path, Schema(label="ill", classes=classes, columns=said.columns), labelled=True)


def test_two_categories_of_one_number_are_found_as_they_are_written_only(tmp_path: Path) -> None:
    schema = Schema(label="ill", classes=("no", "yes"), columns=(("code", ("1", "01")),))
    rows = read_table(_write(tmp_path, "code,ill\n01,no\n1,yes\n"), schema, labelled=True)
    assert rows.inputs.argmax(axis=1).tolist() == [1, 0]
    with pytest.raises(InputError, match="column code"):
        read_table(_write(tmp_path, "code,ill\n1.0,no\n"), schema, labelled=True)


def test_a_schema_says_what_else_is_missing(tmp_path: Path) -> None:
    schema = Schema(
        label="ill",
        classes=("no", "yes"),
        columns=(("chol", ()), ("slope", ("up", "down"))),
        missing=("-9", "unknown"),
    )
    text = "chol,slope,ill\n-9,up,no\n-9.0,-9,yes\n233,unknown,no\nunknown,?,yes\n-90,down,no\n"
    rows = read_table(_write(tmp_path, text), schema, labelled=True)
    nan = np.nan
    expected = [[nan, 1, 0], [nan, 0, 0], [233, 0, 0], [nan, 0, 0], [-90, 0, 1]]
    np.testing.assert_array_equal(rows.inputs, expected)


def _many(count: int) -> str:
    """Numbers written in every way that one column with decimal points may have, quoted lines, and gaps."""
    rng = np.random.default_rng(2)
    lines = []
    for place in range(count):
        dose = rng.choice(
            [f"{rng.normal():.3f}", f"{rng.integers(1, 999)}.{rng.integers(100, 999)}", "", "?"]
        )
        age = rng.choice(["1,234.5", "41", "7e1", "NA", "-3.25", "1 234"])
        note = rng.choice(["x", '"a\nb"', '"a,""b"'])
        sex, outcome = rng.choice(["f", "m", ""]), rng.choice(["well", "ill"])
        lines.append(f'p{rng.integers(0, 40)},"{age}",{sex},{dose},{note},{outcome}\n')
        lines += [",,,,,\n"] * (place % 50 == 0)
    return HEADER + "".join(lines)


def test_rows_are_the_same_however_many_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path, _many(300))
    reader = TableReader(path, SCHEMA)
    reader.require_columns(labelled=True)
    for row in reader.records():
        reader.add([row])
    one = reader.rows()
    inferred = infer_schema([path], label="outcome")
    assert len(one.labels) == 300 and np.nanmax(one.inputs[:, 0]) == 1234.5
    for chunk, known, block in (
        (csv_file.CHUNK, csv_file.MOST_KNOWN, csv_file._BLOCK),
        (7, 2, 1),
        (300, 9, 50),
    ):
        monkeypatch.setattr(csv_file, "CHUNK", chunk)
        monkeypatch.setattr(csv_file, "_BLOCK", block)
        for module in (csv_file, table):
            monkeypatch.setattr(module, "MOST_KNOWN", known)
        found = read_table(path, SCHEMA, labelled=True)
        np.testing.assert_array_equal(found.inputs, one.inputs)
        np.testing.assert_array_equal(found.patients, one.patients)
        assert found.read_as == one.read_as and infer_schema([path], label="outcome") == inferred


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_the_first_wrong_row_is_named_whatever_comes_after_it(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "CHUNK", chunk)
    right = "a,41,f,1,x,well\n"
    faults = {
        "row 302, column dose": "a,1,f,one,x,well\n",
        "row 304, column outcome": "a,1,f,1,x,neither\n",
        "row 306, column age": "a,old,f,1,x,well\n",
        "row 308: 2 values for 6 columns": "a,1\n",
        "row 310: a value begins with a quote": '"a,1,f,1,x,well\n',
    }
    rows = [*[right] * 300, *(line for fault in faults.values() for line in (fault, right))]
    for place, words in enumerate(faults):
        with pytest.raises(InputError, match=words):
            read_table(_write(tmp_path, HEADER + "".join(rows)), SCHEMA, labelled=True)
        rows[300 + 2 * place] = right


def test_a_hospitals_only_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[np.ndarray] = []

    def reading(*given: object, **more: object) -> table.Rows:
        read.append((rows := read_table(*given, **more)).inputs)  # type: ignore[arg-type]
        return rows

    monkeypatch.setattr("pate_fed.data.files.read_table", reading)
    path, spec = _write(tmp_path, _many(5)), InputSpec(classes=SCHEMA.classes, schema=SCHEMA)
    found = dataset_from_files(
        "table", pool=path, private=[path], spec=spec, num_queries=None, keep_none=True
    )
    assert np.shares_memory(found.private_images, read[1]) and len(found.private_labels) == 5
