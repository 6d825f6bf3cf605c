"""`pate-fed study new`: a study from CSV files that runs, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north", "east", "pool"):
        rows = "".join(f"{name}{n},{n},{'fm'[n % 2]},{'ill' if n % 3 else 'well'}\n" for n in range(30))
        Path(f"{name}.csv").write_text("patient,age,sex,outcome\n" + rows, encoding="utf-8")


def test_a_study_from_files_loads_as_it_is(run: Any) -> None:
    code, out, _ = run("study", "new", "--csv", "north.csv", "east.csv")
    assert code == 0
    assert "1 column of numbers, 1 of categories" in out
    assert "label: outcome (ill, well); patient: patient" in out
    assert "before you send it" in out
    study = read_study(Path("study.toml"))
    assert study.parties.num_clients == 2
    dataset = load_study_data(study)
    assert dataset.private_images.shape == (60, 3)
    assert 'pool = "pool.csv"' in Path("study.toml").read_text()  # it can be moved with its files


def test_a_hospitals_own_file_names_no_parties(run: Any) -> None:
    code, out, _ = run("study", "new", "--csv", "north.csv", "--out", "own.toml", "--pool", "other.csv")
    assert code == 0
    assert "put the public inputs there: other.csv" in out
    assert "how many hospitals" in out
    study = read_study(Path("own.toml"))
    assert (study.name, study.data.private) == ("own", ())


def test_without_files_every_setting_stands_in_it(run: Any) -> None:
    assert run("study", "new", "--out", "a.toml")[0] == 0
    assert "# num_clients = 250" in Path("a.toml").read_text()
    code, _, err = run("study", "new", "--out", "a.toml")
    assert (code, "a.toml: is there already" in err) == (2, True)
    code, _, err = run("study", "new", "--label", "x", "--out", "b.toml")
    assert (code, "--label x: goes with --csv" in err) == (2, True)


def test_a_file_that_cannot_be_read_writes_nothing(run: Any) -> None:
    code, _, err = run("study", "new", "--csv", "none.csv")
    assert (code, "none.csv: cannot be read" in err) == (2, True)
    assert not Path("study.toml").exists()
