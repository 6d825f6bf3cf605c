"""CSV files of real programs: each is read as the rows that went in.

`csv-of-programs.zip` holds what the programs wrote, and a README with each one's version and command. Those
that cost money (SAS, Stata, SPSS, Excel, SQL Server's sqlcmd) are written here as their manuals say.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import date
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from pate_fed.data.infer import infer_schema
from pate_fed.data.partition import patient_numbers
from pate_fed.data.schema import Schema
from pate_fed.data.table import Rows, read_table
from pate_fed.errors import InputError

ARCHIVE = Path(__file__).resolve().parent.parent / "files" / "csv-of-programs.zip"
SCHEMA = Schema(
    label="befund",
    classes=("krank", "gesund"),
    columns=(
        ("Größe", ()),
        ("Druck", ()),
        ("Kosten", ()),
        ("seit", ()),
        ("Raucher", ("no", "yes")),
        ("Gefäß", ("à gauche", "außen")),
    ),
    patient="Fall",
)
with ZipFile(ARCHIVE) as archive:
    FILES = {name: archive.read(name) for name in archive.namelist() if name.endswith(".csv")}
MEANT = [*csv.DictReader(io.StringIO(FILES.pop("meant.csv").decode(), newline=""))]
NUMBERS = ("Größe", "Druck", "Kosten")


def _check(found: Rows, *, dates: bool = True) -> None:
    """By Python's own reader of the plain file."""
    assert len(found.inputs) == len(MEANT) == 200
    np.testing.assert_array_equal(found.patients, patient_numbers([row["Fall"] for row in MEANT]))
    for inputs, label, row in zip(found.inputs, found.labels, MEANT, strict=True):
        told = [float(row[name] or "nan") for name in NUMBERS]
        since = float(date.fromisoformat(row["seit"]).toordinal() if row["seit"] else "nan") - 719_163
        told += [since] if dates else []
        told += [float(row["Raucher"] == each) for each in ("no", "yes")]
        told += [float(row["Gefäß"] == each) for each in ("à gauche", "außen")]
        np.testing.assert_array_equal(inputs, told)
        assert SCHEMA.classes[label] == row["befund"]
    assert ("dates as days since 1970-01-01" in found.read_as) == dates


@pytest.mark.parametrize("name", FILES)
def test_a_real_programs_file_is_read_as_the_rows_that_went_in(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    _check(read_table(path, SCHEMA, labelled=True))
    inferred = infer_schema([path], label="befund", patient="Fall")
    kinds = dict(inferred.schema.columns)
    assert all(kinds[each] == () for each in NUMBERS) and kinds["Gefäß"] == ("außen", "à gauche")
    assert dict(inferred.left_out)["seit"].startswith("holds dates: ")


Write = Callable[[dict[str, str]], list[str]]


def _day(row: dict[str, str], form: str, missing: str = "") -> str:
    return date.fromisoformat(row["seit"]).strftime(form) if row["seit"] else missing


def _comma(text: str) -> str:
    return text.replace(".", ",")


def _spss(row: dict[str, str]) -> list[str]:
    numbers = [_comma(row[name]) or "#NULL!" for name in NUMBERS]
    smokes = {"no": "Nein", "yes": "Ja"}[row["Raucher"]]
    return [row["Fall"], *numbers, smokes, row["Gefäß"], _day(row, "%d-%b-%Y"), row["befund"]]


def _plain(row: dict[str, str], *, missing: str, day: str, smokes: dict[str, str]) -> list[str]:
    numbers = [row[name] or missing for name in NUMBERS]
    seen = _day(row, day, missing)
    return [row["Fall"], *numbers, smokes[row["Raucher"]], row["Gefäß"], seen, row["befund"]]


YES_NO = {"no": "no", "yes": "yes"}
BITS = {"no": "0", "yes": "1"}
HEADER = ["Fall", *NUMBERS, "Raucher", "Gefäß", "seit", "befund"]
# What writes a row, the separator, the encoding, the end of a line, and what stands below.
MANUALS: dict[str, tuple[Write, str, str, str, str]] = {
    "SAS, proc export": (
        lambda row: _plain(row, missing=".", day="%d%b%Y", smokes=YES_NO),
        ",",
        "cp1252",
        "\r\n",
        "",
    ),
    "SAS, datetime and special missing values": (
        lambda row: _plain(row, missing=".A", day="%d%b%Y:00:00:00", smokes=BITS),
        ",",
        "utf-8",
        "\n",
        "",
    ),
    "Stata, export delimited": (
        lambda row: _plain(row, missing="", day="%d%b%Y", smokes=YES_NO),
        ",",
        "utf-8",
        "\n",
        "",
    ),
    "Stata, outsheet": (
        lambda row: _plain(row, missing=".", day="%d %b %Y", smokes=BITS),
        "\t",
        "latin-1",
        "\r\n",
        "",
    ),
    "SPSS, German": (_spss, ";", "utf-8-sig", "\r\n", ""),
    "sqlcmd -s; -W": (
        lambda row: _plain(row, missing="NULL", day="%Y-%m-%d", smokes=BITS),
        ";",
        "cp1252",
        "\r\n",
        "\r\n(200 rows affected)\r\n",
    ),
    "sqlcmd -s| -u": (
        lambda row: [f"{each:<24}" for each in _plain(row, missing="NULL", day="%Y-%m-%d", smokes=BITS)],
        "|",
        "utf-16",
        "\r\n",
        "\r\n(200 Zeilen betroffen)\r\n",
    ),
    "Excel, with an empty column and rows": (
        lambda row: [*_plain(row, missing="", day="%d/%m/%Y", smokes=YES_NO), "", ""],
        ",",
        "cp1252",
        "\r\n",
        ",,,,,,,,,\r\n,,,,,,,,,\r\n",
    ),
    "pandas, to_csv": (
        lambda row: [f"{MEANT.index(row)}", *_plain(row, missing="", day="%Y-%m-%d 00:00:00", smokes=YES_NO)],
        ",",
        "utf-8",
        "\n",
        "",
    ),
}


@pytest.mark.parametrize("program", MANUALS)
def test_a_file_by_a_programs_manual_is_read_as_the_rows_that_went_in(program: str, tmp_path: Path) -> None:
    write, separator, encoding, end, below = MANUALS[program]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator=end)
    rows = [write(row) for row in MEANT]
    more = len(rows[0]) - len(HEADER)
    header = ["", *HEADER] if more == 1 else [*HEADER, *([""] * more)]
    writer.writerow(header)
    if "sqlcmd" in program:
        writer.writerow(["-" * len(name) for name in header])
    writer.writerows(rows)
    path = tmp_path / "x.csv"
    path.write_bytes((text.getvalue() + below).encode(encoding))
    _check(read_table(path, SCHEMA, labelled=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dose   ill\n------ ---\n1.5    0\n", "row 1: the study's column 'dose' is missing"),  # sqlcmd alone
        ("dose,ill\n1,5,0\n2,5,1\n", "row 2: 3 values for 2 columns"),  # commas for both
        ('"dose","ill"\n"1",5,"0"\n"2",5,"1"\n', "row 2: 3 values for 2 columns"),
        ("dose;ill\n1;5;0\n1;5;1\n", "row 2: 3 values for 2 columns"),  # these are no rows' names
        ("dose;ill\n1.500,00 EUR;0\n", "row 2, column dose is not a finite number"),
        ('dose;note;ill\n1;"a\\"b";c";0\n', "row 2"),
    ],
)
def test_what_no_rule_reads_is_one_question(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_text(text, encoding="utf-8")
    schema = Schema(label="ill", classes=("0", "1"), columns=(("dose", ()),))
    with pytest.raises(InputError, match=words):
        read_table(path, schema, labelled=True)
