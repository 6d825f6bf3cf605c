"""`pate-fed study new`: a study from CSV files that runs, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.simulation import main as simulate


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north", "east", "pool"):
        rows = "".join(f"{name}{n},{n},{'fm'[n % 2]},{'ill' if n % 3 else 'well'}\n" for n in range(30))
        Path(f"{name}.csv").write_text("patient,age,sex,outcome\n" + rows, encoding="utf-8")


def agree(run: Any, *command: str) -> tuple[int, str, str]:
    """The command, with a yes to whatever it asks about."""
    code, out, err = run(*command)
    if code == 2 and "--yes-to FILE:" in err:
        Path("yes.txt").write_text(err.split("--yes-to FILE:\n")[1], encoding="utf-8")
        code, out, err = run(*command, "--yes-to", "yes.txt")
    return code, out, err


def test_a_study_from_files_loads_as_it_is(run: Any) -> None:
    code, out, _ = run("study", "new", "--csv", "north.csv", "east.csv")
    assert code == 0
    assert "1 column of numbers, 1 of categories" in out
    assert "label: outcome (ill, well); patient: patient" in out
    study = read_study(Path("study.toml"))
    assert study.parties.num_clients == 2
    dataset = load_study_data(study)
    assert dataset.private_images.shape == (60, 3)
    assert 'pool = "pool.csv"' in Path("study.toml").read_text()  # it can be moved with its files


def test_a_hospitals_own_file_names_no_parties(run: Any) -> None:
    code, out, _ = agree(
        run, "study", "new", "--csv", "north.csv", "--out", "own.toml", "--pool", "other.csv"
    )
    assert code == 0
    assert "put the public inputs there: other.csv" in out
    assert "how many hospitals" in out
    study = read_study(Path("own.toml"))
    assert (study.name, study.data.private) == ("own", ())


def test_a_terminal_is_asked_what_hospitals_will_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    answers = "four\n0\n4\n400\nDr. Ada Example\n\nwith\tno tabs\n\nada@example.org\n\n\n"
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    code, out, _ = run("study", "new", "--pool", "pool.csv")
    assert code == 0 and "a whole number is meant" in out and "legal_basis" in out and "num_clients" in out
    study = read_study(Path("study.toml"))
    assert (study.parties.num_clients, study.parties.records, study.data.private) == (4, 400, ())
    assert "by default it is aggregator class-sums" in out
    about = study.about
    assert (about.requester, about.purpose, about.legal_basis) == ("Dr. Ada Example", "", "")
    assert (about.contact, about.licence) == ("ada@example.org", "the hospitals that took part")
    command = ("study", "init", "authority", "--config", "study.toml", "--address", "localhost:9999")
    code, out, _ = run(*command)
    told = "warning: [about] of the study leaves open, and hospitals will read so:"
    assert code == 0 and f"{told} purpose, legal basis, retention\n" in out
    for given, words in (("0", "num_clients"), ("3", "as many as files")):
        code, _, err = run(
            "study", "new", "--csv", "north.csv", "east.csv", "--num-clients", given, "--out", "x"
        )
        assert code == 2 and words in err and not Path("x").exists()
    assert run("study", "new", "--num-clients", "3")[0] == 2


def test_without_public_inputs_a_study_runs_on_declared_ranges(run: Any) -> None:
    Path("pool.csv").unlink()
    command = ("study", "new", "--csv", "north.csv", "east.csv")
    code, out, _ = agree(run, *command)
    assert code == 0 and "Where there are none, give" in out and "rows whose patients gave" in out
    Path("study.toml").unlink()
    for given, words in (
        (["--range", "age=0"], "COLUMN=LOW:HIGH is meant"),
        (["--range", "sex=0:1", "--range", "age=0:90"], "for each number is meant: 'age'"),  # both count
        (["--range", "sex=0:1"], "for each number is meant: 'age'"),
        (["--range", "age=0:90", "--pool", "north.csv"], "leave --pool and --deal out"),
    ):
        code, _, err = run(*command, "--yes-to", "yes.txt", *given)
        assert (code, words in err) == (2, True), err
    code, out, _ = agree(run, *command, "--range", "age=0:90")
    assert (code, "no public inputs" in out, "put the public" in out) == (0, True, False)
    study = read_study(Path("study.toml"))
    assert study.data.pool is None and study.sums.of_inputs(study.data.table).name == "bins"
    dataset = load_study_data(study)
    assert (dataset.public_labels == -1).all()
    ages = dataset.public_images[:, 0]
    assert 0 <= ages.min() < 1 and 89 < ages.max() <= 90  # as declared; records hold 0 to 29


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_study_without_public_inputs_teaches_a_student(
    rounds: int, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in ("north", "east", "south", "west", "pool"):
        ages = rng.uniform(0, 80, 400)
        ill = ages + rng.normal(0, 10, 400) > 40
        lines = [f"{age:.1f},{'ill' if bad else 'well'}" for age, bad in zip(ages, ill, strict=True)]
        Path(f"{name}.csv").write_text("age,outcome\n" + "\n".join(lines) + "\n", encoding="utf-8")
    command = (
        "study",
        "new",
        "--csv",
        *(f"{name}.csv" for name in ("north", "east", "south", "west")),
        "--range",
        "age=0:100",
    )
    code, out, _ = agree(run, *command)
    assert code == 0 and "records at each of 4 hospitals; where one has more, say about how many" in out
    text = Path("study.toml").read_text(encoding="utf-8")
    Path("study.toml").write_text(text.replace("# rounds = 0", f"rounds = {rounds}"), encoding="utf-8")
    code = simulate(["--config", "study.toml", "--run-dir", "run", "--epsilon", "1", "--seed", "1"])
    assert code == 0 and not Path("run/labels.npz").exists()
    metrics = json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))
    assert metrics["accuracy"]["student"] is None
    assert "none; drawn from declared ranges" in Path("run/report.html").read_text(encoding="utf-8")
    code, out, _ = run("predict", "run", "pool.csv", "--format", "json")
    assert code == 0 and json.loads(out.splitlines()[-1])["evaluation"]["accuracy"] > 0.8
    for option in (["--aggregator", "gnmax"], ["--student", "forest"]):
        assert simulate(["--config", "study.toml", "--run-dir", "other", *option]) == 2
        assert "data.table.ranges" in capsys.readouterr().err
    for option in (["--max-queries", "50"], ["--threshold", "3"], ["--labels", "5"]):
        assert simulate(["--config", "study.toml", "--run-dir", "other", *option]) == 2
        assert f"{option[0]} {option[1]}: none is meant beside data.table.ranges" in capsys.readouterr().err
    report = Path("run/report.html").read_text(encoding="utf-8")
    assert "labels of drawn rows" in report and "labels released" not in report
    assert "queries asked" not in run("ledger", "show", "run").out
    code, out, _ = run("plan", "--config", "study.toml", "--records", "400")
    assert code == 0 and "nothing is voted on; asked are sums of" in out and "is right in" in out
    assert "votes" not in out.replace("nothing is voted", "")
    text = Path("study.toml").read_text(encoding="utf-8").replace("# pool =\n", 'pool = "pool.csv"\n')
    Path("both.toml").write_text(text, encoding="utf-8")
    assert simulate(["--config", "both.toml", "--run-dir", "other"]) == 2
    assert "data.pool: none is meant" in capsys.readouterr().err


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


def test_one_file_is_dealt_out_to_parties_and_a_pool(run: Any) -> None:
    """Two rows a patient stay together; no row is lost, none is there twice, and patients are numbers."""
    rows = [f"p{n // 2},{n},{'fm'[n % 2]},{'ill' if n % 3 else 'well'}" for n in range(60)]
    Path("all.csv").write_text("\n".join(["patient,age,sex,outcome", *rows]) + "\n", encoding="utf-8")
    code, out, _ = agree(run, "study", "new", "--csv", "all.csv", "--deal", "4", "--out", "try.toml")
    assert code == 0 and "try it on these files: flower-simulation --config try.toml" in out
    dealt = {path.name: path.read_text().splitlines()[1:] for path in Path("try-files").iterdir()}
    assert sorted(dealt) == ["party-1.csv", "party-2.csv", "party-3.csv", "party-4.csv", "pool.csv"]
    numbered = [f"{n // 2 + 1}{row[row.index(',') :]}" for n, row in enumerate(rows)]
    assert sorted(row for part in dealt.values() for row in part) == sorted(numbered)
    patients = [{row.split(",")[0] for row in part} for part in dealt.values()]
    assert sum(map(len, patients)) == 30 and [len(part) for part in dealt.values()].count(10) == 4
    study = read_study(Path("try.toml"))
    assert study.parties.num_clients == 4 and load_study_data(study).private_images.shape == (40, 3)


def test_rows_that_the_run_would_refuse_are_not_dealt_out(run: Any) -> None:
    rows = [f"p{n},{n},{'' if n in (19, 33) else 'ill' if n % 3 else 'well'}" for n in range(60)]
    Path("all.csv").write_text("\n".join(["patient,age,outcome", *rows]) + "\n", encoding="utf-8")
    code, out, _ = agree(run, "study", "new", "--csv", "all.csv", "--deal", "4", "--out", "try.toml")
    assert code == 0
    assert "left out: 2 rows without its label or patient, the first of them row 21" in out
    dataset = load_study_data(read_study(Path("try.toml")))
    assert len(dataset.private_images) + len(dataset.public_images) == 58


def test_a_patient_that_may_have_been_missed_is_asked_about(run: Any) -> None:
    rows = "".join(f"K{n // 2},{n},{'ill' if n % 3 else 'well'}\n" for n in range(60))
    for name, words in (
        ("Akten Zeichen", "is this the patient? Then give --patient 'Akten Zeichen'"),
        ("Fallnummer", "Fallnummer seems to number cases"),
        ("Patienten-ID", "patient: Patienten-ID"),
    ):
        Path("all.csv").write_text(f"{name},age,outcome\n{rows}", encoding="utf-8")
        code, out, _ = agree(run, "study", "new", "--csv", "all.csv", "--out", f"{name}.toml")
        assert code == 0 and words in out
        assert ("WARNING" in out) is (name == "Akten Zeichen") and ("cases" in out) is (name == "Fallnummer")


def test_what_cannot_be_dealt_is_refused(run: Any) -> None:
    for words, more in (
        ("1 to 29 is meant, of 30 patients", ("north.csv", "--deal", "30")),
        ("goes with one --csv FILE", ("north.csv", "east.csv", "--deal", "2")),
        ("goes with one --csv FILE", ("north.csv", "--pool", "pool.csv", "--deal", "2")),
    ):
        code, _, err = agree(run, "study", "new", "--csv", *more)
        assert (code, words in err) == (2, True) and not Path("study.toml").exists()
    assert not Path("study-files").exists()


def test_what_is_not_public_is_asked_about_value_by_value(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("north.csv").write_text(Path("north.csv").read_text() + "x1,4,see Mrs Q,ill\n", encoding="utf-8")
    Path("pool.csv").write_text("age,sex\n1,f\n2,m\n", encoding="utf-8")
    command = ("study", "new", "--csv", "north.csv", "east.csv")
    code, _, err = run(*command)
    assert code == 2 and not Path("study.toml").exists()
    listed = err.split("--yes-to FILE:\n")[1].splitlines()
    assert listed == ["patient", "outcome", "outcome: ill", "outcome: well", "sex: see Mrs Q"]
    Path("yes.txt").write_text("\n".join(listed[:-1]), encoding="utf-8")
    code, _, err = run(*command, "--yes-to", "yes.txt")
    assert code == 2 and err.endswith("FILE:\nsex: see Mrs Q\n") and not Path("study.toml").exists()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("yes\nyes\nno\n"))  # the names, the classes, the one note
    code, out, err = run(*command)
    assert code == 2 and "sex: see Mrs Q   (1 row)" in out and "nothing was written" in err
    assert not Path("study.toml").exists()
    monkeypatch.setattr(sys, "stdin", Terminal("yes\nyes\nyes\n"))
    assert run(*command)[0] == 0 and "see Mrs Q" in Path("study.toml").read_text()


@pytest.mark.parametrize(
    ("row", "column"), [("p,1,f,", "outcome: the label"), (",1,f,ill", "patient: the patient")]
)
def test_rows_that_the_study_would_refuse_are_told_before_it_is_written(
    run: Any, row: str, column: str
) -> None:
    with open("east.csv", "a", encoding="utf-8") as file:
        file.write(f"{row}\n")
    code, _, err = run("study", "new", "--csv", "north.csv", "east.csv")
    assert code == 2 and f"east.csv row 32, column {column} is missing" in err
    assert not Path("study.toml").exists()
    Path("pool.csv").write_bytes(Path("east.csv").read_bytes())
    assert run("study", "new", "--pool", "pool.csv").code == 0  # public rows may lack both
