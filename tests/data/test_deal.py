"""One CSV file dealt out: nothing is lost, a patient's rows stay together, parties have equally many."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.data.deal import deal_csv
from pate_fed.errors import InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """24 rows, two of each patient."""
    rows = "\n".join(f"p{number // 2},{number}" for number in range(24))
    path = tmp_path / "all.csv"
    path.write_text(f"patient,age\n{rows}\n", encoding="utf-8")
    return path


def _rows(path: Path) -> list[str]:
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    assert header == "patient,age"
    return rows


@pytest.mark.parametrize(("patient", "each"), [(None, 4), ("patient", 4)])
def test_every_row_is_in_one_file(file: Path, tmp_path: Path, patient: str | None, each: int) -> None:
    private, pool = deal_csv(file, tmp_path / "dealt", parties=4, patient=patient)
    parts = [_rows(path) for path in (*private, pool)]
    assert sorted(row for part in parts for row in part) == sorted(_rows(file))
    assert [len(part) for part in parts] == [each] * 4 + [8]
    patients = [{row.split(",")[0] for row in part} for part in parts]
    assert (sum(map(len, patients)) == 12) is (patient is not None)
    assert (tmp_path / "dealt").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (*private, pool))


def test_too_few_units_and_a_folder_that_is_there_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--deal 12: 1 to 11 is meant, of 12 patients"):
        deal_csv(file, tmp_path / "dealt", parties=12, patient="patient")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="cannot be made"):
        deal_csv(file, tmp_path / "there", parties=2, patient=None)
    assert not (tmp_path / "dealt").exists()
