"""Records out of FHIR exports and by SQL: the rules of each column, and errors by file and line alone."""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.data.csv_file import CsvFile
from pate_fed.data.schema import Schema
from pate_fed.data.table import read_table
from pate_fed.errors import InputError

HEAD = '[columns]\npatient = "Patient.id"\n'
SECRET = "Müller-4711"


def resource(kind: str, **rest: Any) -> dict[str, Any]:
    return {"resourceType": kind, **rest}


def observed(who: str, value: Any, when: str, *, code: str = "8480-6", **rest: Any) -> dict[str, Any]:
    coded = {"coding": [{"system": "http://loinc.org", "code": code}]}
    shown = value if isinstance(value, dict) else {"value": value, "code": "mm[Hg]"}
    return resource(
        "Observation",
        code=coded,
        subject={"reference": f"Patient/{who}"},
        effectiveDateTime=when,
        valueQuantity=shown,
        **rest,
    )


def fhir(folder: Path, query: str, *resources: dict[str, Any] | str) -> Path:
    """A query beside an export that has a file for each type of resource."""
    (folder / "export").mkdir(exist_ok=True)
    for each in resources:
        kind = "Observation" if isinstance(each, str) else each["resourceType"]
        with open(folder / "export" / f"{kind}.ndjson", "a", encoding="utf-8") as file:
            file.write((each if isinstance(each, str) else json.dumps(each)) + "\n")
    (folder / "records.fhir").write_text(HEAD + query, encoding="utf-8")
    return folder / "records.fhir"


def column(path: Path) -> list[str]:
    """The last column, by patient."""
    return [cells[-1] for _, cells in CsvFile(path).rows(plain=True)]


PATIENTS = [resource("Patient", id="a", birthDate="1965-02-03", gender="male"), resource("Patient", id="b")]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("Observation?code=8480-6&date=lt2025-01-01", ["141", ""]),
        ("Observation?code=8480-6", ["99", "77"]),
        ("Observation?code=http://loinc.org|8480-6&_sort=date", ["150", "77"]),
        ("Observation?code=http://snomed.info/sct|8480-6", ["", ""]),
        ("Observation?code=8462-4", ["81", ""]),
        ("Observation?code=8480-6&date=ge2024-01-01&date=lt2025-01-01&_summary=count", ["3", "0"]),
        ("Encounter?class=IMP", ["yes", "no"]),
        ("Encounter?class=IMP&_summary=count", ["1", "0"]),
        ("Condition?code=22298006", ["no", "yes"]),
        ("Condition?code=22298006&onset-date=ge2025-03-01", ["no", "yes"]),
        ("Condition?code=22298006&onset-date=lt2025-03-01", ["no", "yes"]),
        ("Condition?code=22298006&onset-date=gt2025-12-31", ["no", "no"]),
        ("Patient.gender", ["male", ""]),
        ("@2025-02-02 - Patient.birthDate", ["59", ""]),
        ("@2025-02-03 - Patient.birthDate", ["60", ""]),
    ],
)
def test_what_a_search_finds(tmp_path: Path, search: str, expected: list[str]) -> None:
    panel = observed("a", {}, "2024-04-01", code="85354-9")
    del panel["valueQuantity"]
    panel["component"] = [
        {"code": {"coding": [{"code": "8462-4"}]}, "valueQuantity": {"value": 81, "unit": "mm[Hg]"}}
    ]
    stay = resource(
        "Encounter", id="1", subject={"reference": "Patient/a/_history/3"}, period={"start": "2020"}
    )
    stay["class"] = {"code": "IMP"}
    mi = resource("Condition", code={"coding": [{"code": "22298006"}]})
    void = {"coding": [{"code": "entered-in-error"}]}
    path = fhir(
        tmp_path,
        f'x = "{search}"',
        *PATIENTS,
        observed("a", 141, "2024-05-01T10:00:00Z"),
        observed("a", 150, "2024-01-02"),
        observed("a", 99, "2025-05-01"),
        observed("a", {}, "2024-06-01"),  # nothing was measured
        observed("a", 1, "2024-07-01", status="entered-in-error"),
        observed("b", 77, ""),  # nobody knows when
        observed("nobody", 1, "2024-05-01"),
        panel,
        {**stay, "status": "finished"},
        {**stay, "status": "finished"},  # sent twice, in two files of an export
        {**mi, "subject": {"reference": "http://x/Patient/b"}, "onsetDateTime": "2025"},
        {**mi, "subject": {"reference": "Patient/a"}, "verificationStatus": void},
    )
    assert column(path) == expected


def test_a_bundle_names_its_patients_by_urls(tmp_path: Path) -> None:
    path = fhir(tmp_path, 'x = "Observation?code=8480-6"\n', PATIENTS[1])
    one = {**observed("", 142.125, "2024-01-01"), "subject": {"reference": "urn:uuid:1"}}
    entries = [{"fullUrl": "urn:uuid:2", "resource": one}, {"fullUrl": "urn:uuid:1", "resource": PATIENTS[0]}]
    bundle = tmp_path / "export" / "a.json"
    bundle.write_text(json.dumps(resource("Bundle", type="collection", entry=entries)))
    assert column(path) == ["", "142.1250"] or column(path) == ["142.1250", ""]
    path.write_text(f'export = "{bundle}"\n{path.read_text()}')
    assert column(path) == ["142.1250"]  # with three decimals a thousand could be meant


@pytest.mark.parametrize("unit", ["mmol/L", SECRET])
def test_units_are_brought_to_the_studys_or_refused(tmp_path: Path, unit: str) -> None:
    query = 'ldl = "Observation?code=8480-6"\n[units.ldl]\n"mg/dL" = 1\n"mmol/L" = 40.0'
    values = [
        observed("a", {"value": 130, "code": "mg/dL"}, "2024"),
        observed("b", {"value": 3, "unit": unit}, "2024"),
    ]
    path = fhir(tmp_path, query, *PATIENTS, *values)
    if unit != SECRET:
        assert column(path) == ["130.0", "120.0"] or column(path) == ["130", "120.0"]
        path.write_text(path.read_text().partition("[units")[0])
    with pytest.raises(InputError) as refused:
        CsvFile(path)
    assert str(refused.value).startswith(
        f"{tmp_path}/export/Observation.ndjson line 2: has a unit of its own; "
    )
    assert "units.ldl says what each unit is worth" in str(refused.value) and SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        f'{{"resourceType": "Observation", "subject": {{"reference": "{SECRET}',
        f"{SECRET}",
        f'{{"resourceType": "Observation", "subject": "{SECRET}"}}',
        '{"resourceType": "Observation", "code": ' + "[" * 100_000 + "]" * 100_000 + "}",
        f'{{"resourceType": "Observation", "subject": {{"reference": "Patient/a"}}, "code": 7}} {SECRET}',
    ],
)
def test_a_malformed_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    path = fhir(tmp_path, 'x = "Observation?code=8480-6"', *PATIENTS, observed("a", 1, "2024"), line)
    with pytest.raises(InputError) as refused:
        CsvFile(path)
    assert str(refused.value) == (
        f"{tmp_path}/export/Observation.ndjson line 2: not JSON, or no resource as FHIR has them"
    )


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ('x = "Patient"', "records.fhir: columns.x: one as Patient.gender, @2025-01-01"),
        ('x = "Observation?date=2025"', "columns.x: date: one as lt2025-01-01 or ge2025-01-01 is meant"),
        (
            'x = "Observation?_include=*"',
            "columns.x: _include: _summary=count, _sort=date, _sort=-date are known",
        ),
        ("x = 3", "columns"),
        ("[unit.x]", "unit in "),
    ],
)
def test_a_query_that_asks_nothing_known(tmp_path: Path, query: str, says: str) -> None:
    with pytest.raises(InputError, match=r".") as refused:
        CsvFile(fhir(tmp_path, query, *PATIENTS))
    assert says in str(refused.value)


def test_an_export_that_is_not_there(tmp_path: Path) -> None:
    path = fhir(tmp_path, 'x = "Patient.gender"')
    with pytest.raises(InputError, match=r"export: holds no \.ndjson or \.json of FHIR's bulk export"):
        CsvFile(path)
    (tmp_path / "export").rmdir()
    with pytest.raises(InputError, match=r"export: cannot be read \(No such file or directory\)"):
        CsvFile(path)


SCHEMA = Schema(
    label="y", classes=("no", "yes"), columns=(("x", ()), ("sex", ("female", "male"))), patient="p"
)


def test_a_value_that_the_schema_lacks_is_named_by_row_and_column(tmp_path: Path) -> None:
    """The same sentence as of a CSV file, from either store, and by the whole command."""
    path = fhir(
        tmp_path,
        'p = "Patient.id"\nx = "Observation?code=8480-6"\nsex = "Patient.gender"\ny = "Condition?code=1"',
        PATIENTS[0],
        {**PATIENTS[0], "id": "c", "gender": SECRET},
        observed("c", 3, "2024"),
    )
    with pytest.raises(InputError) as refused:
        read_table(path, SCHEMA, labelled=True)
    assert str(refused.value) == f"{path} row 3, column sex is none of female, male"


def database(folder: Path, query: str, *, mode: int = 0o600) -> Path:
    rng = random.Random(5)
    store = sqlite3.connect(folder / "store.db")
    store.execute("CREATE TABLE t (p TEXT, x REAL, sex TEXT, y TEXT)")
    rows = [
        (str(n), round(rng.uniform(100, 200), 3), rng.choice(["male", "female"]), "no") for n in range(30)
    ]
    store.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [*rows, ("z", None, None, "yes")])
    store.commit()
    store.close()
    (folder / "records.sql").write_text(query, encoding="utf-8")
    (folder / "records.sql.url").touch(mode)
    (folder / "records.sql.url").write_text(f"sqlite:///{folder}/store.db\n")
    return folder / "records.sql"


def test_a_query_is_read_as_a_file_is_also_where_decimals_are_commas(tmp_path: Path) -> None:
    path = database(
        tmp_path, "-- ours\nSELECT p, x, sex, y, '1,5' AS odd, '7%' AS share FROM t ORDER BY p;\n"
    )
    rows = read_table(path, SCHEMA, labelled=True)
    store = sqlite3.connect(tmp_path / "store.db")
    known = [x for (x,) in store.execute("SELECT x FROM t ORDER BY p")]
    store.close()
    assert rows.inputs[:-1, 0].tolist() == known[:-1] and rows.inputs[-1].tolist()[1:] == [0, 0]
    assert rows.labels.tolist() == [0] * 30 + [1] and rows.named
    told = tmp_path / "told.toml"
    assert (
        main(["study", "new", "--csv", str(path), "--yes-to", str(tmp_path / "no"), "--out", str(told)]) == 2
    )


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT p FROM t", "one SELECT is meant, which ends with ORDER BY"),
        ("SELECT p, ROW_NUMBER() OVER (ORDER BY p) FROM t", "which ends with ORDER BY"),
        ("DELETE FROM t ORDER BY p", "one SELECT is meant"),
        (f"SELECT p FROM t WHERE {SECRET} ORDER BY p", "the database refuses it (OperationalError)"),
    ],
)
def test_a_query_that_cannot_be_asked(tmp_path: Path, query: str, says: str) -> None:
    path = database(tmp_path, query)
    with pytest.raises(InputError) as refused:
        CsvFile(path)
    assert (
        says in str(refused.value)
        and SECRET not in str(refused.value)
        and "store.db" not in str(refused.value)
    )


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+nodriver://u:geheim@h/d", "the database refuses it (NoSuchModuleError)"),
        ("oracle+cx_oracle://u:geheim@h/d", "the database's driver is not installed: cx_Oracle"),
        ("geheim", "the database refuses it (ArgumentError)"),
    ],
)
def test_a_password_is_in_no_error_and_a_file_of_others_is_refused(
    tmp_path: Path, url: str, says: str
) -> None:
    path = database(tmp_path, "SELECT p FROM t ORDER BY p")
    secret = tmp_path / "records.sql.url"
    secret.write_text(url)
    with pytest.raises(InputError) as refused:
        CsvFile(path)
    assert says in str(refused.value) and "geheim" not in str(refused.value)
    secret.chmod(0o644)
    with pytest.raises(InputError, match="others can read it, and a password may stand there; chmod 600 it"):
        CsvFile(path)
    secret.unlink()
    with pytest.raises(
        InputError, match=r"No such file or directory\); the database's URL, as SQLAlchemy has it"
    ):
        CsvFile(path)


@pytest.mark.parametrize("kind", ["xlsx", "parquet"])
def test_workbooks_and_parquet_files_are_read_as_their_rows(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip("openpyxl" if kind == "xlsx" else "pyarrow.parquet", reason="needs [files]")
    path, day = tmp_path / f"r.{kind}", datetime(2020, 3, 1)
    rows = [("P1", 61, 1.25, day, True), ("P2", None, 0.5, day, False)]
    if kind == "xlsx":
        book = library.Workbook()
        book.create_sheet("notes")
        for cells in (("patient", "age", "dose", "seen", "ill"), *rows):
            book.worksheets[0].append(cells)
        book.save(path)
    else:
        columns = zip(("patient", "age", "dose", "seen", "ill"), zip(*rows, strict=True), strict=True)
        library.write_table(pytest.importorskip("pyarrow").table({n: [*own] for n, own in columns}), path)
    schema = Schema(
        label="ill",
        classes=("no", "yes"),
        patient="patient",
        columns=(("age", ()), ("dose", ()), ("seen", ())),
    )
    read = read_table(path, schema, labelled=True)
    assert np.array_equal(read.inputs, [[61, 1.25, 18322], [np.nan, 0.5, 18322]], equal_nan=True)
    assert read.labels.tolist() == [1, 0]
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=rf"r\.{kind}: cannot be read as an? "):
        CsvFile(path)
    path.unlink()
    with pytest.raises(InputError, match=rf"r\.{kind}"):
        CsvFile(path)


def test_a_workbook_with_two_tables_is_not_guessed_at(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl", reason="needs [files]").Workbook()
    for sheet in (book.active, book.create_sheet("other")):
        sheet.append(["age"])
    book.save(tmp_path / "r.xlsx")
    with pytest.raises(InputError, match="2 of its sheets hold something; one is meant"):
        CsvFile(tmp_path / "r.xlsx")


def test_without_their_libraries_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("openpyxl", "xlsx"), ("pyarrow", "parquet")):
        monkeypatch.setitem(sys.modules, name if kind == "xlsx" else "pyarrow.parquet", None)
        (tmp_path / f"r.{kind}").write_bytes(b"x")
        with pytest.raises(InputError, match=rf"needs {name}: pip install 'pate-fed\[files\]'"):
            CsvFile(tmp_path / f"r.{kind}")


def test_what_sqlalchemy_logs_of_a_driver_is_not_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver's words hold values: a bad cast's do, and SQLAlchemy logs how the cursor was closed."""
    (tmp_path / "r.sql").write_text("SELECT nothing FROM nowhere ORDER BY 1")
    url = tmp_path / "r.sql.url"
    url.write_text("sqlite://")
    url.chmod(0o600)
    with pytest.raises(InputError, match="the database refuses it"):
        CsvFile(tmp_path / "r.sql")
    logging.getLogger("sqlalchemy.pool.impl.NullPool").error("Error closing cursor: %s", SECRET)
    assert capsys.readouterr().err == ""
