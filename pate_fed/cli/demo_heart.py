"""The records of `pate-fed demo hospitals DIR --real FILES`: heart disease, as four clinics published it.

FILES are `processed.cleveland.data` and its three siblings of the UCI Machine Learning Repository's data set
"Heart Disease" (Janosi, Steinbrunn, Pfisterer, Detrano, 1988): 14 values a line, "?" where one is missing. A
fifth of each clinic's records stays out of the study, to measure on. There are no public rows: the study
declares what each number can be.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.disk import MOST_TABLE, read_file
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import accuracy_text, counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CLINICS = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "long-beach": "processed.va.data",
}
"""Each clinic's file."""
HELD_OUT = "-held-out.csv"
"""Ends the name of the file of a clinic's records that stay out of the study."""
_YES_NO = ("no", "yes")
_COLUMNS: dict[str, tuple[float, float] | tuple[str, ...]] = {  # a number's range, or what the codes mean
    "age": (20, 90),
    "sex": ("female", "male"),
    "chest_pain": ("", "typical angina", "atypical angina", "other pain", "none"),
    "blood_pressure": (80, 220),  # at rest, systolic, mmHg
    "cholesterol": (80, 620),  # mg/dl
    "sugar_above_120": _YES_NO,
    "ecg": ("normal", "ST-T abnormal", "hypertrophy"),
    "heart_rate": (60, 210),  # at most, in exercise
    "exercise_angina": _YES_NO,
    "st_depression": (-3, 7),  # mm
    "st_slope": ("", "up", "flat", "down"),
    "vessels": ("0", "1", "2", "3"),
    "thallium": ("", "", "", "normal", "", "", "fixed", "reversible"),
}
_NEVER_0 = ("blood_pressure", "cholesterol")  # where some clinics wrote 0 for what they had not measured
_LABEL, _CLASSES = "disease", _YES_NO
_ABOUT_EACH = 250  # records at a clinic, as is known
_STUDY = """\
# Heart disease at four clinics, by their own published records. No public rows: what each number can be is
# declared, and the student is taught from noisy sums of the clinics' records.
[study]
name = "heart"

[parties]
num_clients = {clinics}
records = {records}

[data]
dataset = "table"

[data.table]
label = "{label}"
classes = {classes}
[data.table.columns]
{columns}
[data.table.ranges]
{ranges}

[sums]
scores = false  # records that are held out already tell the figures

[privacy]
epsilon = 1.0
delta = 1e-5
"""


def write_clinics(files: Path, folder: Path) -> None:
    """Write each clinic's two CSV files and the study into a folder, from the published files in another.

    Raises:
        InputError: a file is missing, or not as published; or something cannot be written.
    """
    import numpy as np

    read = {name: _read(files / file) for name, file in CLINICS.items()}
    with naming_refusal(f"{folder}: cannot be written"):
        for place, (name, rows) in enumerate(read.items()):
            out = set(np.random.default_rng(place).permutation(len(rows))[: len(rows) // 5].tolist())
            for ending, kept in ((".csv", False), (HELD_OUT, True)):
                chosen = [row for number, row in enumerate(rows) if (number in out) is kept]
                _write(folder / f"{name}{ending}", chosen)
        (folder / "study.toml").write_text(_study_text(), encoding="utf-8")


def _study_text() -> str:
    columns, ranges = [], []
    for name, meant in _COLUMNS.items():
        if isinstance(meant[0], str):
            columns.append(f"{name} = {json.dumps([text for text in meant if text])}")
        else:
            columns.append(f'{name} = "number"')
            ranges.append(f"{name} = [{meant[0]}, {meant[1]}]")
    return _STUDY.format(
        clinics=len(CLINICS),
        records=_ABOUT_EACH,
        label=_LABEL,
        classes=json.dumps(_CLASSES),
        columns="\n".join(columns),
        ranges="\n".join(ranges),
    )


def _read(path: Path) -> list[list[str]]:
    """A published file's records as cells of the study's columns, the label last; "" where one is missing."""
    with naming_refusal(
        f"{path}: cannot be read; --real names the folder with {', '.join(CLINICS.values())}"
    ):
        lines = read_file(path, most=MOST_TABLE).decode("ascii", errors="replace").splitlines()
    found = [_cells(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if len(found) < 10:
        raise InputError(f"{path}: holds {counted(len(found), 'record')}; a hundred and more are published")
    return found


def _cells(line: str, where: str) -> list[str]:
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(_COLUMNS) + 1:
        raise InputError(
            f"{where}: {len(values)} values; {len(_COLUMNS) + 1} are meant, with commas between, as published"
        )
    cells = [_cell(name, value, where) for name, value in zip(_COLUMNS, values, strict=False)]
    stage = _number(values[-1], where)
    if stage not in range(5):
        raise InputError(
            f"{where}: the last value is {values[-1]!r}; the stage of the disease is meant, 0 to 4"
        )
    return [*cells, _CLASSES[stage > 0]]


def _cell(name: str, value: str, where: str) -> str:
    meant = _COLUMNS[name]
    if value in ("?", "-9", "-9.0"):
        return ""
    number = _number(value, where)
    if not isinstance(meant[0], str):
        return "" if number == 0 and name in _NEVER_0 else f"{number:g}"
    code = int(number) if number in range(len(meant)) else 0
    if code != number or not meant[code]:
        raise InputError(f"{where}: {value!r} is no code of {name} as published")
    return str(meant[code])


def _number(value: str, where: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: {value!r} is no number, and no '?' for a missing one")
    return number


def _write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*_COLUMNS, _LABEL], *rows])


def compared_lines(folder: Path) -> list[str]:
    """Each clinic's own model beside the student, on its own held-out records and on all four's."""
    import numpy as np

    from pate_fed.cli.hospital_compare import table_model
    from pate_fed.config.study import read_study
    from pate_fed.data.table import read_table
    from pate_fed.learning.students.class_sums import SumsStudent

    schema = read_study(folder / "study.toml").data.table
    assert schema is not None

    def rows(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        read = read_table(folder / name, schema, labelled=True)
        return read.inputs, read.labels

    held = {name: rows(f"{name}{HELD_OUT}") for name in CLINICS}
    everywhere = tuple(np.concatenate(parts) for parts in zip(*held.values(), strict=True))
    student = SumsStudent.load(folder / "run" / "student.npz")
    lines = ["", f"{'':<22}{'its own held-out records':<34}those of all four"]
    for name in CLINICS:
        model = table_model(*rows(f"{name}.csv"), len(_CLASSES))
        for who, told in ((f"{name} alone", model), ("  together", student.predict_proba)):
            shown = [
                accuracy_text(float((told(inputs).argmax(axis=1) == labels).mean()), len(labels))
                for inputs, labels in (held[name], everywhere)
            ]
            lines.append(f"{who:<22}{shown[0]:<34}{shown[1]}")
    return [*lines, "alone: the mean of gradient boosting and logistic regression on a clinic's own records"]
