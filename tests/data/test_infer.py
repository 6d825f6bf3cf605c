"""A schema from CSV files: what each column is, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.data import infer
from pate_fed.data.infer import infer_schema
from pate_fed.data.table import read_table
from pate_fed.errors import InputError

HEADER = "patient_id,age,sex,ward,chol,note,empty,outcome\n"


def _file(tmp_path: Path, name: str, *, header: str = HEADER, sex: str = "f", rows: int = 40) -> Path:
    lines = [
        f"{name}{n},{20 + n},{sex if n % 2 else 'm'},{'1.0' if n % 3 else '1'},"
        f"{'unknown' if n == 7 else 200 + n},visit {n},,{'ill' if n % 2 else 'well'}\n"
        for n in range(rows)
    ]
    path = tmp_path / f"{name}.csv"
    path.write_text(header + "".join(lines), encoding="utf-8")
    return path


def test_numbers_with_a_comma_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "german.csv"
    rows = (f'{n},"{n},{n % 7}",{"ill" if n % 2 else "well"}\n' for n in range(40))
    path.write_text("age,chol,outcome\n" + "".join(rows), encoding="utf-8")
    assert infer_schema([path]).schema.columns == (("age", ()), ("chol", ()))


def test_a_text_among_numbers_is_no_word_for_a_missing_value(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for word in ("unbekannt", "K.A.", "—", "Non disponible", "."):
        path.write_text(
            "x,y\n" + "".join(f"{word if n == 7 else n},{n % 2}\n" for n in range(40)), encoding="utf-8"
        )
        assert infer_schema([path]).schema.missing == (word,)
        path.write_text(path.read_text(encoding="utf-8") + "see letter Mrs Q 12.3.1951,1\n", encoding="utf-8")
        with pytest.raises(
            InputError, match=r"a\.csv row 42, column x: a text stands among numbers"
        ) as error:
            infer_schema([path])
        assert "Mrs" not in str(error.value)


def test_numbers_categories_patients_and_what_is_left_out(tmp_path: Path) -> None:
    files = [_file(tmp_path, "north"), _file(tmp_path, "east", sex="d", rows=30)]
    found = infer_schema(files)
    assert found.rows == (40, 30)
    assert found.schema.label == "outcome"
    assert found.schema.classes == ("ill", "well")
    assert found.schema.patient == "patient_id"
    assert dict(found.schema.columns) == {"age": (), "sex": ("d", "f", "m"), "ward": (), "chol": ()}
    assert found.schema.missing == ("unknown",)
    assert dict(found.left_out) == {
        "note": "has 40 texts: names or notes",
        "empty": "has no value",
    }
    for path in files:  # the schema reads the files that it was inferred from
        read_table(path, found.schema, labelled=True)


def test_the_label_is_found_by_name_else_last_else_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("class,x\na,1\nb,2\n")
    assert infer_schema([path]).schema.label == "class"
    path.write_text("x,ill\n1,0\n2,1.0\n3,1\n")
    schema = infer_schema([path]).schema
    assert (schema.label, schema.classes) == ("ill", ("0", "1"))
    path.write_text("x,z\n" + "".join(f"{n},{n}\n" for n in range(30)))
    with pytest.raises(InputError, match=r"which column is the label\? Give --label, one of x, z"):
        infer_schema([path])
    with pytest.raises(InputError, match="--label z: 30 values"):
        infer_schema([path], label="z")


@pytest.mark.parametrize(
    ("name", "rows", "twice", "left"),
    [
        ("encounter_id", 40, False, True),
        ("EncounterID", 40, False, True),
        ("visit no", 40, False, True),
        ("encounter_id", 40, True, False),  # a ward's number, say
        ("platelets", 40, False, False),  # few rows: a measurement may differ in each
        ("platelets", 1000, False, True),
        ("acid", 40, False, False),
    ],
)
def test_what_only_numbers_the_rows_is_left_out(
    tmp_path: Path, name: str, rows: int, twice: bool, left: bool
) -> None:
    files = []
    for where in ("a", "b"):  # each hospital numbers its own
        lines = [f"{7 if twice and n < 3 else 1000 + n},{n % 5},{n % 2}\n" for n in range(rows)]
        files.append(tmp_path / f"{where}.csv")
        files[-1].write_text(f"{name},x,y\n" + "".join(lines))
    found = infer_schema(files)
    assert ([key for key, _ in found.left_out] == [name]) is left
    assert (name in dict(found.schema.columns)) is not left


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["Patienten-ID"], "Patienten-ID"),
        (["PATIENTENNUMMER"], "PATIENTENNUMMER"),
        (["Patienten Schlüssel"], "Patienten Schlüssel"),
        (["Pat.-Nr."], "Pat.-Nr."),
        (["patientId"], "patientId"),
        (["MRN"], "MRN"),
        (["USUBJID"], "USUBJID"),
        (["Fallnummer"], "Fallnummer"),
        (["case no"], "case no"),
        (["Fall-ID", "Patient ID"], "Patient ID"),  # a patient may have several cases
        (["fall"], None),
        (["case"], None),
        (["pat"], None),
        (["patient age"], None),
        (["Patientenalter"], None),
        (["caseload"], None),
    ],
)
def test_the_patient_is_found_by_its_name_however_it_is_written(
    tmp_path: Path, names: list[str], found: str | None
) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(",".join([f"p{n // 2}"] * len(names)) + f",{n},{n % 2}\n" for n in range(8))
    path.write_text(",".join(names) + ",x,y\n" + rows, encoding="utf-8")
    made = infer_schema([path])
    assert made.schema.patient == found
    assert made.cases is (found in ("Fallnummer", "case no"))


@pytest.mark.parametrize(
    ("name", "value", "asked"),
    [
        ("Kennung", "K{half}", True),
        ("Kennung", "K{number}", False),  # no value repeats
        ("Kennung", "{half}", False),  # a measurement, for all that is known
        ("chart_nr", "{half}", True),
        ("seen", "2024-03-{half:02} 10:15", False),
        ("seen", "{half}.3.2024", False),
    ],
)
def test_values_that_repeat_may_be_the_patients(tmp_path: Path, name: str, value: str, asked: bool) -> None:
    path = tmp_path / "a.csv"
    rows = (value.format(half=n // 2, number=n) + f",{n % 7},{n % 2}\n" for n in range(60))
    path.write_text(f"{name},x,y\n" + "".join(rows), encoding="utf-8")
    assert infer_schema([path]).perhaps_patients == ((name,) if asked else ())
    assert infer_schema([path], patient=name).perhaps_patients == ()


def test_values_that_repeat_too_often_are_no_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("land,x,y\n" + "".join(f"L{n // 3},{n % 7},{n % 2}\n" for n in range(90)))
    for often, asked in ((3, ("land",)), (2, ())):
        monkeypatch.setattr(infer, "_OFTEN", often)
        assert infer_schema([tmp_path / "a.csv"]).perhaps_patients == asked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,y\n", "no rows"),
        ("1,2\n3,4\n", "row 1: looks like data"),
        ("x,x\n1,2\n", "row 1: a header is meant"),
        ("x;y, in mm;z;u;v\n1;2;0;4;5\n", "row 1: not the columns of .*: u, v, y, y, in mm, z differ"),
        ("x,sex (m;w;d)\n1,m\n", "row 1: not the columns of .*: sex .m;w;d., y differ"),  # commas
        ("x,y\n1\n", "row 2: 1 values for 2 columns"),
        ("z,y\n1,2\n", "row 1: not the columns of .*: x, z differ"),
    ],
)
def test_a_wrong_file_is_named_by_row(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        infer_schema([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_a_misspelt_column_is_named(tmp_path: Path) -> None:
    path = _file(tmp_path, "north")
    with pytest.raises(InputError, match=r"--label outcom: north\.csv has no such column; did you mean"):
        infer_schema([path], label="outcom")
    with pytest.raises(InputError, match=r"--patient id: north\.csv has no such column"):
        infer_schema([path], patient="id")
