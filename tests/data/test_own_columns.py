"""A hospital's own settings for its file: names, units and codes, read with the file and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import InputSpec, read_records
from pate_fed.data.own_columns import OwnColumn, OwnColumns
from pate_fed.data.schema import Schema
from pate_fed.data.table import TableReader
from pate_fed.errors import InputError

SCHEMA = Schema(
    label="outcome",
    classes=("well", "ill"),
    columns=(("glucose", ()), ("sex", ("male", "female")), ("bmi", ())),
    patient="patient",
)
TEXT = "PID;GLU;sex;glucose;outcome\na;5,5;m;1;0\nb;;w;2;1\na;999;;3;0\n"
SETTINGS = """
[columns.patient]
name = "PID"
[columns.glucose]
name = "GLU"
factor = 18.0
map = { "999" = "" }
[columns.sex]
map = { m = "male", w = "female" }
[columns.bmi]
missing = true
[columns.outcome]
map = { "0" = "well", "1" = "ill" }
"""


def _write(folder: Path, settings: str, text: str = TEXT) -> Path:
    path = folder / "north.csv"
    path.write_text(text, encoding="utf-8")
    (folder / "north.csv.toml").write_text(settings, encoding="utf-8")
    return path


def test_a_file_is_read_with_the_settings_beside_it(tmp_path: Path) -> None:
    path = _write(tmp_path, SETTINGS)
    rows = read_records(path, InputSpec(classes=SCHEMA.classes, schema=SCHEMA))
    nan = np.nan
    np.testing.assert_array_equal(rows.inputs, [[99, 1, 0, nan], [nan, 0, 1, nan], [nan, 0, 0, nan]])
    assert rows.labels.tolist() == [0, 1, 0] and rows.named and rows.patients[0] == rows.patients[2]
    assert rows.read_as == (
        "semicolons, decimal commas; patient of another name, glucose of another name and × 18 and codes "
        "mapped, sex codes mapped, bmi missing for all rows, outcome codes mapped"
    )
    assert path.read_text(encoding="utf-8") == TEXT


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    name = 'a "b"\\\x7f é'
    schema = Schema(label="y", classes=("0", "1"), columns=((name, ()), ("c", ("x", "y z"))))
    own = OwnColumns(columns={name: OwnColumn(name="ö.ü", factor=0.1), "c": OwnColumn(map={"é'": "y z"})})
    own = own.changed("c", {"name": "C 1"})
    path = own.write(tmp_path / "n.csv")
    assert path.stat().st_mode & 0o777 == 0o600
    assert OwnColumns.beside(tmp_path / "n.csv", schema) == own
    assert OwnColumns.beside(tmp_path / "other.csv", schema) == OwnColumns()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[columns.glucos]\nfactor = 2", ["columns.glucos: no column of the study; did you mean glucose?"]),
        ("[columns.sex]\nfactor = 2", ["columns.sex.factor: for numbers alone"]),
        ("[columns.glucose]\nfactor = 0", ["columns.glucose.factor", "0", "finite number above 0"]),
        ("[columns.glucose]\nfactor = inf", ["columns.glucose.factor", "finite number above 0"]),
        ("[columns.glucose]\nname = 'GLUC'", ["columns.glucose.name", "not in north.csv; did you mean GLU?"]),
        ("[columns.glucose]\nname = 'GLU'\n[columns.bmi]\nname = 'GLU'", ["columns.bmi.name", "twice"]),
        (
            "[columns.sex]\nmap = { Zwicky = 'mal' }",
            ["columns.sex.map: its value 1 is not one of male, female"],
        ),
        ("[columns.glucose]\nmap = { low = 'Zwicky' }", ["columns.glucose.map: its value 1 is not a number"]),
        ("[columns.sex]\nmap = { Zwicky = 1 }", ["columns.sex.map", "all in quotes"]),
        ("[columns.patient]\nmap = { Zwicky = '1' }", ["columns.patient.map"]),
        ("[columns.outcome]\nmissing = true", ["columns.outcome.missing: every record needs it"]),
        ("[columns.bmi]\nmissing = true\nfactor = 2.0", ["columns.bmi.missing"]),
        ("[columns.bmi]\nfaktor = 2.0", ["columns.bmi.faktor", "no such key; did you mean factor?"]),
        ("[columns.sex]\nmap = { Zwicky = '1', Zwicky = '2' }", ["not valid TOML (at line 2"]),
        ("[columns.sex\n", ["not valid TOML (at line 1"]),
    ],
)
def test_bad_settings_are_told_without_what_stands_in_cells(
    settings: str, words: list[str], tmp_path: Path
) -> None:
    path = _write(tmp_path, settings)
    with pytest.raises(InputError) as refused:
        read_records(path, InputSpec(classes=SCHEMA.classes, schema=SCHEMA))
    for word in ["north.csv.toml", *words]:
        assert word in str(refused.value)
    assert "Zwicky" not in str(refused.value)


def test_a_number_that_is_too_large_once_it_has_its_factor_is_refused(tmp_path: Path) -> None:
    settings = SETTINGS.replace("18.0", "1e38")
    path = _write(tmp_path, settings)
    with pytest.raises(InputError, match="row 2, column glucose is too large"):
        read_records(path, InputSpec(classes=SCHEMA.classes, schema=SCHEMA))


@pytest.mark.parametrize("text", ["999", "999.0", "999,0"])
def test_a_number_that_stands_for_none_does_so_however_it_is_written(text: str, tmp_path: Path) -> None:
    """A sentinel that is read as a value would be a laboratory value of 999."""
    by = ";" if "," in text else ","
    rows = by.join(("patient", "glucose", "sex", "bmi", "outcome")) + "\n"
    rows += "".join(
        by.join((f"p{n}", each, "male", "20", "well")) + "\n" for n, each in enumerate([text, "120"])
    )
    path = _write(tmp_path, '[columns.glucose]\nmap = { "999" = "" }\n', rows)
    found = read_records(path, InputSpec(classes=SCHEMA.classes, schema=SCHEMA)).inputs[:, 0]
    assert np.isnan(found[0]) and found[1] == 120


def test_values_of_a_further_file_are_their_patients_and_nobody_elses(tmp_path: Path) -> None:
    """Patients may have numbers with dots; a row without one is nobody's, however many have none here."""
    (tmp_path / "labs.csv").write_text(
        "patient,glucose,bmi\n12.345.100,100,20\n12.345.200,200,21\n,240,22\n", encoding="utf-8"
    )
    base = "patient,sex,outcome\n12.345.100,male,well\n12.345.200,male,ill\n12.345.300,male,ill\n"
    path = _write(tmp_path, 'files = ["labs.csv"]\n', base)
    spec = InputSpec(classes=SCHEMA.classes, schema=SCHEMA)
    np.testing.assert_array_equal(read_records(path, spec).inputs[:, 0], [100, 200, np.nan])
    path.write_text(base + ",male,well\n", encoding="utf-8")
    cells = [row for _, row in TableReader(path, SCHEMA).records()]
    assert cells[-1] == ["", "male", "well", "", ""]
    path.write_text("sex,outcome\nmale,well\n", encoding="utf-8")
    with pytest.raises(InputError, match="'patient', by which others are joined"):
        TableReader(path, SCHEMA).require_columns(labelled=False)


def test_settings_that_a_link_leads_to_in_vain_are_missed(tmp_path: Path) -> None:
    path = _write(tmp_path, "")
    OwnColumns.path_of(path).unlink()
    OwnColumns.path_of(path).symlink_to(tmp_path / "share" / "settings.toml")
    with pytest.raises(InputError, match=r"north\.csv\.toml"):
        OwnColumns.beside(path, SCHEMA)


def test_a_later_yes_leaves_comments_and_all_else_as_they_stand(tmp_path: Path) -> None:
    hand = """# by hand
[columns.glucose]  # of the laboratory
name = "GLU"  # since 2021

# asked by telephone
[columns.sex]
map = { m = "male" }
"""
    path = _write(tmp_path, hand)
    before = OwnColumns.beside(path, SCHEMA)
    own = before.changed("glucose", {"factor": 18.0}).changed("sex", {"map": {"w": "female"}})
    own = own.changed("bmi", {"missing": True})
    assert own.write(path, before=before).read_text(encoding="utf-8") == (
        hand.replace("laboratory\n", "laboratory\nfactor = 18.0\n").replace(
            '{ m = "male" }', '{ m = "male", w = "female" }'
        )
        + "\n[columns.bmi]\nmissing = true\n"
    )
    assert OwnColumns.beside(path, SCHEMA) == own and not (tmp_path / "north.csv.toml.bak").exists()
    # Where lines cannot be put in, what stood there is kept under another name.
    path = _write(tmp_path, "columns.sex.map.m = 'male'  # by hand\n")
    before = OwnColumns.beside(path, SCHEMA)
    own = before.changed("sex", {"map": {"w": "female"}})
    own.write(path, before=before)
    assert OwnColumns.beside(path, SCHEMA) == own
    assert "# by hand" in (tmp_path / "north.csv.toml.bak").read_text(encoding="utf-8")
    assert (tmp_path / "north.csv.toml.bak").stat().st_mode & 0o777 == 0o600
