"""CSV files as hospitals write them: the same rows whatever the dialect, or one question."""

from __future__ import annotations

import csv
import io
import itertools
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.data import csv_file
from pate_fed.data.csv_file import CsvFile
from pate_fed.data.infer import deal_csv, infer_schema
from pate_fed.data.schema import Schema
from pate_fed.data.table import Rows, read_table
from pate_fed.errors import InputError

NAMES = ("Fall", "Größe", "Blutdruck, mmHg", "Kosten", "Raucher", "Gefäß", "befund")
SCHEMA = Schema(
    label="befund",
    classes=("krank", "gesund"),
    columns=(
        ("Größe", ()),
        ("Blutdruck, mmHg", ()),
        ("Kosten", ()),
        ("Raucher", ("no", "yes")),
        ("Gefäß", ("à gauche", "außen")),
    ),
    patient="Fall",
)
VESSELS = ("à gauche", "außen", "")


def _records(count: int = 200) -> list[tuple[Any, ...]]:
    draw = random.Random(7)
    return [
        (
            f"P{number // 2}",
            round(draw.uniform(1.4, 2.1), 2),
            None if number % 17 == 0 else draw.randint(90, 190),
            round(draw.uniform(800, 25_000_000), 2),
            draw.random() < 0.3,
            VESSELS[number % 3],
            "krank" if draw.random() < 0.5 else "gesund",
        )
        for number in range(count)
    ]


RECORDS = _records()


def _number(value: float | None, decimal: str, group: str, missing: str) -> str:
    if value is None:
        return missing
    text = f"{value:,}"
    return text.replace(",", "G").replace(".", decimal).replace("G", group)


def _write(
    path: Path,
    *,
    separator: str = ",",
    decimal: str = ".",
    group: str = "",
    encoding: str = "utf-8",
    quoting: Any = csv.QUOTE_MINIMAL,
    end: str = "\n",
    yes: tuple[str, str] = ("no", "yes"),
    missing: str = "",
    form: str = "NFC",
    order: tuple[int, ...] = tuple(range(len(NAMES))),
    before: str = "",
    spaced: bool = False,
) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    rows = [list(NAMES)]
    for who, size, pressure, costs, smokes, vessel, label in RECORDS:
        numbers = [_number(each, decimal, group, missing) for each in (size, pressure, costs)]
        rows.append([who, *numbers, yes[smokes], vessel, label])
    pad = "  " if spaced else ""
    writer.writerows([[f"{pad}{row[place]}{pad}" for place in order] for row in rows])
    path.write_bytes((before + unicodedata.normalize(form, text.getvalue())).encode(encoding))
    return path


@pytest.fixture(scope="module")
def meant(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows as the plainest file has them."""
    rows = _read(_write(tmp_path_factory.mktemp("csv") / "plain.csv"))
    assert rows.inputs.shape == (200, 7) and rows.read_as == ""
    assert rows.inputs[1, 2] == RECORDS[1][3] and np.isnan(rows.inputs[0, 1])
    return rows


def _read(path: Path, **options: Any) -> Rows:
    return read_table(path, SCHEMA, labelled=True, **options)


def _same(found: Rows, meant: Rows) -> None:
    np.testing.assert_array_equal(found.inputs, meant.inputs)
    np.testing.assert_array_equal(found.labels, meant.labels)
    np.testing.assert_array_equal(found.patients, meant.patients)


SEPARATORS, DECIMALS = (
    (",", ";", "\t", "|"),
    ((".", ""), (".", ","), (",", ""), (",", "."), (",", "\u00a0"), (".", "'")),
)
ENCODINGS = ("utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16")
QUOTINGS = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_same_rows_in_every_combination(
    separator: str, encoding: str, meant: Rows, tmp_path: Path
) -> None:
    # Every two choices meet in some file: the ends of lines alternate, and begin otherwise with each dialect.
    ends = itertools.cycle(("\n", "\r\n"))
    if (SEPARATORS.index(separator) + ENCODINGS.index(encoding)) % 2:
        next(ends)
    for (decimal, group), quoting in itertools.product(DECIMALS, QUOTINGS):
        end = next(ends)
        path = _write(
            tmp_path / "x.csv",
            separator=separator,
            decimal=decimal,
            group=group,
            encoding=encoding,
            quoting=quoting,
            end=end,
        )
        found = _read(path)
        _same(found, meant)
        assert ("decimal commas" in found.read_as) == (decimal == ",")
        for word, told in (
            ("semicolons", separator == ";"),
            ("tabs", separator == "\t"),
            ("bars", separator == "|"),
            ("Windows-1252", encoding in ("cp1252", "latin-1")),
            ("UTF-16", encoding == "utf-16"),
        ):
            assert (word in found.read_as) == told


# As programs write them: what they do by default, or by what people click.
PROGRAMS: dict[str, dict[str, Any]] = {
    "Excel, German, CSV": {"separator": ";", "decimal": ",", "encoding": "cp1252", "end": "\r\n"},
    "Excel, German, CSV UTF-8": {"separator": ";", "decimal": ",", "encoding": "utf-8-sig", "end": "\r\n"},
    "Excel, English": {"group": ",", "encoding": "cp1252", "end": "\r\n"},
    "Excel, Unicode text": {"separator": "\t", "decimal": ",", "encoding": "utf-16", "end": "\r\n"},
    "Excel, with sep=": {"separator": ";", "decimal": ",", "before": "sep=;\r\n", "end": "\r\n"},
    "Excel, Swiss": {"separator": ";", "group": "\u2019", "end": "\r\n"},
    "LibreOffice, French": {"separator": ";", "decimal": ",", "group": "\u202f", "yes": ("non", "oui")},
    "Numbers, macOS": {"separator": ";", "decimal": ",", "form": "NFD"},
    "R, write.csv": {"quoting": csv.QUOTE_NONNUMERIC, "missing": "NA", "yes": ("FALSE", "TRUE")},
    "R, write.csv2": {"separator": ";", "decimal": ",", "quoting": csv.QUOTE_NONNUMERIC, "missing": "NA"},
    "SAS": {"missing": ".", "yes": ("N", "Y"), "end": "\r\n"},
    "Stata": {"missing": ".", "order": (6, 5, 4, 3, 2, 1, 0)},
    "SPSS, German": {"separator": ";", "decimal": ",", "yes": ("nein", "ja"), "spaced": True},
    "SQL Server, bcp": {"separator": "|", "encoding": "utf-16", "missing": "NULL", "end": "\r\n"},
    "SQL Server, grid": {"separator": "\t", "missing": "NULL", "end": "\r\n"},
    "MySQL, outfile": {"separator": "\t", "missing": "\\N"},
    "PostgreSQL, copy": {"quoting": csv.QUOTE_ALL},
    "Oracle, French": {"separator": ";", "decimal": ",", "quoting": csv.QUOTE_ALL, "yes": ("NON", "OUI")},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_as_programs_write_them(program: str, meant: Rows, tmp_path: Path) -> None:
    _same(_read(_write(tmp_path / "x.csv", **PROGRAMS[program])), meant)


def test_sqlcmd_underlines_its_header_and_counts_its_rows(meant: Rows, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.csv", separator="|", spaced=True)
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = "|".join("-" * len(name) for name in first.strip("\n").split("|"))
    path.write_text("".join([first, lines + "\n", *others]), encoding="utf-8")
    _same(_read(path), meant)
    path.write_text("".join([first, lines + "\n", *others, "\n(200 rows affected)\n"]), encoding="utf-8")
    _same(_read(path), meant)
    path.write_text("".join([first, *others, "200 rows\n"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"row 202: 1 values for 7 columns"):
        _read(path)


AGES = Schema(label="ill", classes=("0", "1"), columns=(("dose", ()), ("since", ()), ("age", ())))


def _table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dose;ill\n1.234;0\n2.345;1\n", r"row 2, column dose: 1\.234 may be 1234 or 1\.234.*--decimal"),
        ('dose,ill\n"1,234",0\n', r"row 2, column dose: 1,234 may be 1234 or 1\.234.*--decimal"),
        ('dose,ill\n"1,5",0\n1.5,0\n"1,234",1\n', r"row 4, column dose: 1,234 may be 1234 or 1\.234"),
        ("since,ill\n03/04/2020,0\n", "row 2, column since: a date that may begin with its day or its month"),
        ("age,ill\n12.03.1951,0\n", "row 2, column age: a date, and an age is meant"),
        ("since,ill\n12.03.51,0\n", "row 2, column since: a date that has no year of four digits"),
        ("since,ill\n31.02.2020,0\n", "row 2, column since is not a finite number"),
        ("since,ill\n12/31/2020,0\n31/12/2020,1\n", r"may begin with its day or its month"),
    ],
)
def test_what_a_file_leaves_open_is_asked_by_row_and_column(tmp_path: Path, text: str, words: str) -> None:
    wanted = text.partition("\n")[0].replace(";", ",").split(",")[0]
    schema = Schema(label="ill", classes=("0", "1"), columns=((wanted, ()),))
    with pytest.raises(InputError, match=words):
        read_table(_table(tmp_path, text), schema, labelled=True)


@pytest.mark.parametrize(("decimal", "value"), [("point", 1.234), ("comma", 1234.0)])
def test_a_hospital_says_how_it_writes_numbers(decimal: str, value: float, tmp_path: Path) -> None:
    schema = Schema(label="ill", classes=("0", "1"), columns=(("dose", ()),))
    rows = read_table(_table(tmp_path, "dose;ill\n1.234;0\n"), schema, labelled=True, decimal=decimal)
    assert rows.inputs.tolist() == [[value]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dose,ill\n1.234,0\n", 1.234),  # no separator would be left for decimal commas
        ("dose;ill\n1.234;0\n2.5;1\n", 1.234),
        ("dose;ill\n1.234;0\n2,5;1\n", 1234),
        ("dose;other;ill\n1.234;0,5;0\n", 1234),  # another column tells
        ("dose;ill\n-1.234.567;0\n", -1234567),
        ("dose;ill\n1.234,50;0\n", 1234.5),
        ("dose;ill\n,5;0\n", 0.5),
        ("dose;ill\n1,5E+03;0\n", 1500),
        ("dose;ill\n\u22121,5;0\n", -1.5),
        ("dose;ill\n1 234 567;0\n", 1234567),
    ],
)
def test_numbers_are_read_as_they_are_meant(text: str, value: float, tmp_path: Path) -> None:
    schema = Schema(label="ill", classes=("0", "1"), columns=(("dose", ()),))
    assert read_table(_table(tmp_path, text), schema, labelled=True).inputs[0, 0] == value


def test_dates_are_days_and_the_file_says_so(tmp_path: Path) -> None:
    schema = Schema(label="ill", classes=("0", "1"), columns=(("since", ()),))
    for written in ("2020-03-31", "31.03.2020", "31/03/2020", "03/31/2020", "31MAR2020", "2020-03-31 12:30"):
        rows = read_table(_table(tmp_path, f"since,ill\n{written},0\n"), schema, labelled=True)
        assert rows.inputs.tolist() == [[18352.0]]
        assert rows.read_as == "dates as days since 1970-01-01"


def test_names_and_values_are_compared_in_one_form_of_unicode(tmp_path: Path, meant: Rows) -> None:
    decomposed = Schema(
        label=SCHEMA.label,
        classes=SCHEMA.classes,
        columns=tuple(
            (unicodedata.normalize("NFD", name), tuple(unicodedata.normalize("NFD", each) for each in values))
            for name, values in SCHEMA.columns
        ),
        patient=SCHEMA.patient,
    )
    _same(read_table(_write(tmp_path / "x.csv"), decomposed, labelled=True), meant)


def test_a_study_and_a_deal_of_a_german_file_are_those_of_the_plain_one(tmp_path: Path) -> None:
    plain = infer_schema([_write(tmp_path / "plain.csv")], label="befund", patient="Fall").schema
    german = _write(tmp_path / "german.csv", separator=";", decimal=",", group=".", encoding="cp1252")
    assert infer_schema([german], label="befund", patient="Fall").schema == plain
    dealt = deal_csv(german, tmp_path / "dealt", parties=2, schema=plain)
    costs = [read_table(path, plain, labelled=True).inputs[:, 2] for path in (*dealt.private, dealt.pool)]
    assert sorted(np.concatenate(costs)) == sorted(record[3] for record in RECORDS)


def test_a_quoted_value_may_end_lines(tmp_path: Path) -> None:
    path = _table(tmp_path, 'note;dose;ill\r\n"a\r\nb;c";1,5;0\r\n')
    assert [cells for _, cells in CsvFile(path).rows()] == [["a\r\nb;c", "1,5", "0"]]


def test_many_decimals_are_counted_together_and_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schema, kinds and values are those of counting and reading one by one; so is the first error."""
    draw, path = random.Random(3), tmp_path / "a.csv"
    odd = ["", "NA", "n.a.", "7", "1e-3", "-.5", "999.0"]
    lines = [
        f"P{n % 700};{draw.choice(odd) if draw.random() < 0.02 else draw.gauss(100, 20)};"
        f"{draw.uniform(1, 2000):.3f};{draw.uniform(0, 9):.4f};{f'{draw.gauss(3, 2):.5f}'.replace('.', ',')};"
        f"{draw.choice(['f', 'm'])};{draw.choice(['ill', 'well'])}"
        for n in range(4000)
    ]
    header = "patient;a;b;c;d;sex;outcome\n"
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")

    def found() -> tuple[Any, ...]:
        kinds = [(each.values, each.numbers, each.point, each.comma) for each in CsvFile(path)._kinds()]
        inferred = infer_schema([path])
        rows = read_table(path, inferred.schema, labelled=True)
        held = [sum(counter.values()) for counter in CsvFile(path).counted()[0].values()]
        return kinds, inferred.schema, inferred.rows, held, rows.inputs.tobytes(), rows.patients.tobytes()

    alone = found()
    for module in ("csv_file", "table"):
        monkeypatch.setattr(f"pate_fed.data.{module}.MOST_KNOWN", 50)
    assert found() == alone
    assert all(len(counts) < 1000 for counts in CsvFile(path).counted()[0].values())
    lines[2000] += ";more"
    lines[1500] = lines[1500].replace(";f;", ";31/12/20;").replace(";m;", ";31/12/20;")
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.csv row 2002: 8 values for 7 columns"):
        infer_schema([path])


def test_a_file_that_is_too_large_says_what_makes_it_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "MOST_TABLE", 2**20)
    (tmp_path / "a.csv").write_bytes(b"a,b\n" + b"1,2\n" * 2**18)
    with pytest.raises(InputError, match=r"larger than 1 MiB\); leave out of it the columns that the study"):
        CsvFile(tmp_path / "a.csv")
