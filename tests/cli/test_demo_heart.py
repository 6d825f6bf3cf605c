"""`pate-fed demo hospitals --real`: the published files of four clinics, read as they are, become a study."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.bench.tasks import four_hospitals
from pate_fed.cli import demo
from pate_fed.cli.demo_heart import CLINICS, compared_lines
from pate_fed.config.study import read_study
from pate_fed.simulation import main as simulate


def _cell(value: float, form: str = "{:g}") -> str:
    return "?" if np.isnan(value) else form.format(value)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Files in the published form: 14 values a line, some as 1.0 and some as 1, "?" and 0 for missing."""
    table, folder = four_hospitals(0), tmp_path / "published"
    folder.mkdir()
    for owner, name in enumerate(("cleveland", "hungarian", "va", "switzerland")):
        form, lines = "{:.1f}" if owner == 0 else "{:g}", []
        mine = table.owners == owner
        for row, sick in zip(table.rows[mine], table.labels[mine], strict=True):
            numbers = np.clip(
                [54, 132, 230, 140, 1] + row[:5] * [9, 18, 50, 25, 1],
                [20, 80, 85, 60, -3],
                [90, 220, 610, 210, 7],
            )
            age, pressure, fat, rate, depression = numbers
            fat = 0.0 if owner == 3 else fat  # as in Switzerland, where it was not measured
            flags = [row[5] > 1, row[6] > 0]
            thal = np.nan if np.isnan(row[7]) else (3, 6, 7)[int(np.clip(row[7] + 1, 0, 2))]
            cells = [age, row[8], row[9] + 1, pressure, fat, flags[0], row[10], rate, flags[1], depression]
            cells += [row[11] + 1, row[12], thal, 2 * int(sick)]
            lines.append(",".join(_cell(float(value), form) for value in cells))
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n", encoding="ascii")
    return folder


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_published_files_become_a_study_that_teaches_a_student(
    published: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "make_identities", lambda *_: None)
    code, out, err = run("demo", "hospitals", str(tmp_path / "d"), "--real", str(published))
    assert (code, err) == (0, "") and out.count("pate_fed.client --hospital") == 4
    folder = tmp_path / "d"
    for name, file in CLINICS.items():
        kept, held = _rows(folder / f"{name}.csv"), _rows(folder / f"{name}-held-out.csv")
        read = len((published / file).read_text().splitlines())
        assert (len(kept) + len(held), len(held)) == (read, read // 5)
        assert {row["disease"] for row in kept} == {"no", "yes"}
        unknown = {row["cholesterol"] == "" for row in held}
        assert unknown == {"switzerland": {True}, "cleveland": {False}}.get(name, {True, False})
        assert {row["sex"] for row in kept} - {""} == {"female", "male"}
    files = ", ".join(f'"{name}.csv"' for name in CLINICS)
    text = (folder / "study.toml").read_text(encoding="utf-8")
    (folder / "study.toml").write_text(
        text.replace('"table"\n', f'"table"\nprivate = [{files}]\n'), encoding="utf-8"
    )
    study = read_study(folder / "study.toml").resolve()
    assert study.data.drawn and study.sums.rounds == 0 and study.privacy.epsilon == 1
    command = ["--config", str(folder / "study.toml"), "--run-dir", str(folder / "run"), "--seed", "1"]
    assert simulate([*command, "--quiet"]) == 0
    lines = compared_lines(folder)
    together = [line for line in lines if line.startswith("  together")]
    assert len(together) == 4 and len({line.split("right")[-1] for line in together}) == 1
    assert int(together[0].rpartition("  ")[2].split(" %")[0]) > 60


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("63,1,1", "line 3: 3 values; 14 are meant"),
        ("63,1,9,145,233,1,2,150,0,2.3,3,0,6,0", "line 3: '9' is no code of chest_pain"),
        ("63,1,1.5,145,233,1,2,150,0,2.3,3,0,6,0", "line 3: '1.5' is no code of chest_pain"),
        ("63,1,1,x,233,1,2,150,0,2.3,3,0,6,0", "line 3: 'x' is no number, and no '?'"),
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,7", "line 3: the last value is '7'; the stage"),
        ("nan,1,1,145,233,1,2,150,0,2.3,3,0,6,0", "line 3: 'nan' is no number"),
    ],
)
def test_a_file_that_is_not_as_published_is_told_by_line(
    line: str, words: str, published: Path, tmp_path: Path, run: Any
) -> None:
    path = published / "processed.va.data"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:]]), encoding="ascii")
    code, _, err = run("demo", "hospitals", str(tmp_path / "d"), "--real", str(published))
    assert code == 2 and f"{path}, {words}" in err and not (tmp_path / "d" / "study.toml").exists()


def test_files_that_are_missing_or_cut_are_told(published: Path, tmp_path: Path, run: Any) -> None:
    path = published / "processed.hungarian.data"
    path.write_text("\n".join(path.read_text().splitlines()[:5]), encoding="ascii")
    code, _, err = run("demo", "hospitals", str(tmp_path / "d"), "--real", str(published))
    assert code == 2 and "holds 5 records; a hundred and more are published" in err
    path.unlink()
    code, _, err = run("demo", "hospitals", str(tmp_path / "d"), "--real", str(published))
    assert (
        code == 2 and f"{path}: cannot be read; --real names the folder with processed.cleveland.data" in err
    )
