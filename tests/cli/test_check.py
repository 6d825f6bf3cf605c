"""`pate-fed hospital check`: from a hospital's own dialect to what a rehearsal reads, by its yes alone."""

from __future__ import annotations

import csv
import io
import json
import random
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import draw_planted, found_in, leaks

from clients.hospital import Hospital
from clients.kinds import check_file
from clients.local import LocalSite, kind_of, local_site
from clients.state_dir import LocalSettings
from pate_fed.cli.doctor.records import WantedRecords
from pate_fed.cli.terms import read_offer
from pate_fed.data import read_pool, read_records
from pate_fed.data.own_columns import OwnColumns
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import JoinReply, JoinRequest
from pate_fed.simulation import main as simulation_main

STUDY = """
[study]
name = "sugar"
[data]
dataset = "table"
pool = "pool.csv"
[data.table]
label = "ill"
classes = ["no", "yes"]
patient = "patient"
[data.table.columns]
age = "number"
glucose = "number"
sex = ["male", "female"]
bmi = "number"
[parties]
num_clients = 4
teachers_per_client = 1
[teacher]
name = "random-forest"
trees = 5
[student]
name = "forest"
trees = 5
[aggregation]
sigma1 = 1.0
sigma2 = 1.0
threshold = 1.0
[privacy]
allow_weak = true
"""
HEADER = ["patient", "age", "glucose", "sex", "bmi", "ill"]


def _rows(count: int, seed: int) -> list[list[str]]:
    drawn = random.Random(seed)
    return [
        [
            f"p{number}",
            str(drawn.randint(20, 90)),
            f"{drawn.gauss(110, 15):.1f}",
            drawn.choice(["male", "female"]),
            f"{drawn.gauss(25, 3):.1f}",
            drawn.choice(["yes", "no"]),
        ]
        for number in range(count)
    ]


def _write(path: Path, table: list[list[str]], *, by: str = ",") -> None:
    with open(path, "w", newline="", encoding="latin-1") as file:
        csv.writer(file, delimiter=by, lineterminator="\n").writerows(table)


@pytest.fixture
def dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hospital's file with its own names, unit and codes, beside its study."""
    monkeypatch.chdir(tmp_path)
    # Four processes that each tell Flower's version have tests of their own.
    monkeypatch.setattr("pate_fed.cli.doctor.machine.version_of", lambda *_, **__: version("flwr"))
    Path("study.toml").write_text(STUDY, encoding="utf-8")
    _write(Path("pool.csv"), [HEADER, *_rows(90, 1)])
    table = [["Patienten-Nr", "Age", "GLU", "Geschlecht", "ill", "Größe"]]
    for who, age, glucose, sex, _, ill in _rows(80, 2):
        own = f"{float(glucose) / 18.016:.2f}".replace(".", ",")
        table.append([who, age, own, {"male": "m", "female": "w"}[sex], ill, "groß"])
    _write(Path("north.csv"), table, by=";")
    return Path("north.csv")


CHECK = ("hospital", "check", "north.csv", "--study", "study.toml", "--pool", "pool.csv")


def test_what_is_proposed_is_taken_by_a_yes_alone(
    dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, settings = dialect.read_bytes(), Path("north.csv.toml")
    code, out, _ = run(*CHECK)
    assert code == 2 and not settings.exists()
    assert "glucose: the file has no such column, and has 'GLU': is it that?" in out
    assert "does not fit yet: mend it there, or say in north.csv.toml how to read it" in out
    asked: list[str] = []

    # What it is asked about, in this order; another language's name is nothing that a program could tell.
    answers = ["no", "yes", "Sex", EOFError, "missing", "yes"]

    def answer(question: str) -> str:
        asked.append(question)
        said = answers[len(asked) - 1] if len(asked) <= len(answers) else "yes"
        if said is EOFError:
            raise EOFError  # Ctrl-D is no yes
        return str(said)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    code, out, _ = run(*CHECK)
    assert code == 2 and out.count("nothing is changed") == 2 + 1
    assert asked[:3] == ["  Type yes or no: "] * 2 + ["  Type its name there, missing, or no: "]
    taken = OwnColumns.beside(dialect, WantedRecords.by_study(Path("study.toml")).spec.schema or _never())
    assert {name: each.name for name, each in taken.columns.items()} == {"glucose": "GLU"}
    assert taken.columns["glucose"].factor == 18.016
    answers[:] = ["yes", "Geschlecht", "missing"]
    asked.clear()
    code, out, _ = run(*CHECK)
    assert code == 0 and out.endswith("fits the study\n") and "bmi missing for all rows" in out
    assert all(len(line) < 100 for line in out.splitlines() if not line.startswith("north.csv: "))
    assert dialect.read_bytes() == before and settings.stat().st_mode & 0o777 == 0o600
    assert 'map = { m = "male", w = "female" }' in settings.read_text(encoding="utf-8")


def _never() -> Any:
    raise AssertionError("a study of a table has a schema")


def test_what_digits_mean_is_asked(dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(40, 2)
    for number, row in enumerate(rows):
        row[3] = ("1", "2", "9")[number % 3]
    _write(dialect, [HEADER, *rows])
    code, out, _ = run(*CHECK, "--accept-proposals")
    assert code == 2 and not Path("north.csv.toml").exists()
    answers = iter(["male", "femal", "missing"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    code, out, _ = run(*CHECK)
    assert code == 2 and out.count("nothing is changed") == 1
    assert 'map = { 1 = "male", 9 = "" }' in Path("north.csv.toml").read_text(encoding="utf-8")
    answers = iter(["female"])
    code, out, _ = run(*CHECK)
    assert code == 0 and "sex: what does its code 2 mean: male, female?" in out
    assert "male 14, female 13" in out


def test_whatever_is_wrong_is_mended_by_answers_alone(
    dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows(40, 2)
    for row in rows:
        row[1] = str(12 * int(row[1]))  # months: no factor that is known
    rows[3][1], rows[4][1], rows[5][3], rows[6][5], rows[7][5], rows[8][0] = (
        "Frau Z",
        "<600",
        "Z",
        "Z",
        "",
        "",
    )
    rows[9] = rows[9][:4]
    _write(dialect, [HEADER, *rows])
    assert run(*CHECK, "--accept-proposals").code == 2 and not Path("north.csv.toml").exists()
    before, asked = dialect.read_bytes(), list[str]()
    answers = iter(["yes", "590", "missing", "0.0833", "male", "yes"])

    def answer(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    code, out, _ = run(*CHECK)
    assert code == 0 and dialect.read_bytes() == before, out
    assert "37 records of 37 patients" in out and "left out, as the settings say (rows 9, 10, 11)" in out
    assert "Frau" not in out and "age: what is meant there? (row 5)" in out
    spec = WantedRecords.by_study(Path("study.toml")).spec
    taken = OwnColumns.beside(dialect, spec.schema or _never())
    assert taken.leave_out and taken.columns["age"].map == {"Frau Z": "", "<600": "590"}
    read = read_records(dialect, spec)
    assert len(read.labels) == 37 and np.isnan(read.inputs[3, 0])


def test_every_command_reads_the_file_as_the_check_did(dialect: Path, run: Any) -> None:
    settings = Path("north.csv.toml")
    settings.write_text('[columns.sex]\nname = "Geschlecht"\n', encoding="utf-8")
    assert run(*CHECK, "--accept-proposals", "--missing", "bmi").code == 0
    for name in ("north", "east", "south", "west"):
        assert run("hospital", "request", "--name", name, "--dir", f"keys-{name}").code == 0
    made = run("study", "init", "ca", "--config", "study.toml", "--address", "localhost:9")
    assert made.code == 0, made.err
    admitted = run("study", "admit", "keys-north/north.req", "--dir", "ca")
    assert admitted.code == 0, admitted.err
    code, out, err = run("hospital", "check", "north.csv", "--study", "north.admission", "--pool", "pool.csv")
    assert code == 0, out + err
    code, out, err = run("hospital", "rehearse", "north.admission", "--data", "north.csv")
    assert code == 0, err
    assert "semicolons, decimal commas, Windows-1252; sex of another name and codes mapped" in out
    terms, _ = read_offer(Path("north.admission"))  # as a hospital's process and `join` do
    assert "glucose of another name and × 18.016" in check_file(Path("north.csv"), terms, decimal=None)
    local = LocalSettings(
        hospital="north", data="north.csv", state_dir=Path("state"), pool=Path("pool.csv").absolute()
    )
    site = local_site(local)
    assert isinstance(site, LocalSite)
    joined = site.under(terms).dataset.private_images  # what teachers learn from
    alone = read_records(Path("north.csv"), WantedRecords.by_terms(terms).spec).inputs
    assert (joined[:, :4] == alone[:, :4]).all() and 90 < joined[:, 1].mean() < 130
    settings.write_text('[columns.sex]\nname = "Sexus"\n', encoding="utf-8")
    for command in (CHECK, ("hospital", "rehearse", "north.admission", "--data", "north.csv")):
        code, out, err = run(*command)
        assert code == 2 and "north.csv.toml: columns.sex.name: that column is not in north.csv" in out + err


def test_further_files_are_joined_by_the_patient(dialect: Path, run: Any) -> None:
    """A row a stay beside a row a patient; whom the second file lacks has no value of it."""
    stays, labs = _rows(60, 2), [["Fall-Nr", "BMI", "SEX", "note"]]
    patients = [*dict.fromkeys(f"p{number // 2}" for number in range(60))]
    for number, row in enumerate(stays):
        row[0] = f"p{number // 2}"
    labs += [[who, f"{20 + place % 9},125", "mf"[place % 2], "x"] for place, who in enumerate(patients[:-1])]
    _write(
        Path("north.csv"),
        [[row[place] for place in (0, 1, 2, 5)] for row in [["Fall-Nr", *HEADER[1:]], *stays]],
    )
    Path("other").mkdir()
    _write(Path("other/labs.csv"), labs, by=";")
    Path("north.csv.toml").write_text('[columns.patient]\nname = "Fall-Nr"\n', encoding="utf-8")
    joined = (*CHECK, "--join", "other/labs.csv", "--decimal", "comma")
    code, out, err = run(*joined, "--accept-proposals")
    assert code == 0, out + err
    assert "60 records of 30 patients; read as joined with other/labs.csv" in out
    spec = replace(WantedRecords.by_study(Path("study.toml")).spec, decimal="comma")
    rows = read_records(Path("north.csv"), spec)
    assert rows.inputs[0].tolist() == [float(stays[0][1]), float(stays[0][2]), 1, 0, 20.125]
    assert (rows.inputs[1, 2:] == rows.inputs[0, 2:]).all() and len({*rows.patients.tolist()}) == 30
    assert rows.inputs[-1, 2:4].tolist() == [0, 0] and str(rows.inputs[-1, 4]) == "nan"
    _write(Path("other/labs.csv"), [*labs, labs[1]], by=";")
    code, out, err = run(*joined)
    assert code == 2 and "labs.csv row 31, column Fall-Nr: a patient of an earlier row" in err
    _write(Path("other/labs.csv"), [["ID", *labs[0][1:]], *labs[1:]], by=";")
    assert "labs.csv row 1: no column 'Fall-Nr', by which it is joined" in run(*joined).err
    settings = Path("north.csv.toml").read_text(encoding="utf-8")
    assert settings.splitlines()[0] == 'files = ["other/labs.csv"]'


def test_four_dialects_are_one_study(dialect: Path, run: Any) -> None:
    """Each hospital's own table, as it lies, through its own check, into a simulation of all four."""
    Path("north.csv.toml").write_text('[columns.sex]\nname = "Geschlecht"\n', encoding="utf-8")
    tables = {name: [HEADER, *_rows(80, seed)] for seed, name in enumerate(("east", "south", "west"), 5)}
    for row in tables["east"][1:]:
        row[2], row[3] = f"{float(row[2]) / 18.016:.2f}", row[3].upper()
    for row in tables["south"][1:]:
        row[1:5] = [cell.replace(".", ",") for cell in row[1:5]]
    tables["west"] = [["PATIENT", *HEADER[1:4], "BMI", "ill"], *tables["west"][1:]]
    for name, by in (("east", ","), ("south", "\t"), ("west", "|")):
        _write(Path(f"{name}.csv"), tables[name], by=by)
    files = [f"{name}.csv" for name in ("north", "east", "south", "west")]
    for file in files:
        lacks = ("--missing", "bmi") * (file == "north.csv")
        code, out, err = run("hospital", "check", file, *CHECK[3:], "--accept-proposals", *lacks)
        assert code == 0, out + err
    assert sorted(each.name for each in Path().glob("*.csv.toml")) == [
        "east.csv.toml",
        "north.csv.toml",
        "west.csv.toml",
    ]
    study = STUDY.replace('pool = "pool.csv"', f'pool = "pool.csv"\nprivate = {json.dumps(files)}')
    Path("study.toml").write_text(study, encoding="utf-8")
    assert simulation_main(["--config", "study.toml", "--backend", "inline", "--run-dir", "run"]) == 0


def test_json_has_counts_and_no_text_of_a_cell(dialect: Path, run: Any) -> None:
    code, out, _ = run(*CHECK, "--format", "json")
    told = json.loads(out)
    assert code == 2 and told["fits"] is False and told["records"] == 80
    changes = {each["column"]: each["change"] for each in told["proposals"]}
    assert changes == {
        "patient": {"name": "Patienten-Nr"},
        "age": {"name": "Age"},
        "glucose": {"name": "GLU"},
        "sex": {},
        "bmi": {},
    }
    assert "Geschlecht" not in out and "Größe" not in out
    assert {each["name"] for each in told["columns"]} == {*HEADER[1:]}
    assert not Path("north.csv.toml").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("hospital", "check", "none.csv", "--study", "study.toml"), "DATA none.csv: there is no such file"),
        (("hospital", "check", ".", "--study", "study.toml"), "DATA .: no file; the records of a table are"),
        ((*CHECK, "--missing", "ill"), "--join, --missing: columns.ill.missing: every record needs it"),
        ((*CHECK, "--missing", "bmj"), "columns.bmj: no column of the study; did you mean bmi?"),
        (("hospital", "check", "north.csv"), "no admission was accepted there yet"),
        (("hospital", "check", "north.csv", "--study", "pool.csv"), "neither an admission nor the terms"),
    ],
)
def test_what_is_not_there_is_said(command: tuple[str, ...], words: str, dialect: Path, run: Any) -> None:
    code, _, err = run(*command)
    assert code == 2 and words in err


def test_planted_texts_stand_in_nothing_that_a_check_says_or_writes(dialect: Path, run: Any) -> None:
    """In cells, in columns' names, and in cells that are read: names, dates, notes."""
    texts, drawn = draw_planted(400), random.Random(3)
    left = list(texts)
    _write(Path("pool.csv"), [HEADER, *_rows(90, 1)])
    header = [*HEADER, *(left.pop().text for _ in range(3))]
    table = [[*row, left.pop().text, "", ""] for row in _rows(60, 2)]
    for place in range(len(HEADER)):
        for row in drawn.sample(table, 8):
            row[place] = left.pop().text
    with open("north.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *table])
    said = ""
    for more in ((), ("--format", "json"), ("--accept-proposals",)):
        code, out, err = run(*CHECK, *more)
        assert code == 2
        said += out + err
    assert "age: not a finite number (rows" in said and "(rows" in said
    assert found_in(said.encode(), texts) == set()
    assert leaks([Path.cwd()], texts, without=[Path.cwd() / "north.csv"]) == {}


def test_a_large_table_takes_seconds(dialect: Path, run: Any) -> None:
    """Some ten times as long as measured, on a busy machine too."""
    _write(Path("north.csv"), [HEADER, *_rows(20_000, 4)])
    started = time.process_time()
    code, out, err = run(*CHECK)
    assert code == 0, out + err
    assert time.process_time() - started < 15


def _admit_north(run: Any) -> Terms:
    for name in ("north", "east", "south", "west"):
        assert run("hospital", "request", "--name", name, "--dir", f"keys-{name}").code == 0
    assert run("study", "init", "ca", "--config", "study.toml", "--address", "localhost:9").code == 0
    assert run("study", "admit", "keys-north/north.req", "--dir", "ca").code == 0
    return read_offer(Path("north.admission"))[0]


def test_another_unit_is_refused_at_home_and_warned_of_at_the_first_request(
    dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sugar in mmol/l where the study has mg/dl: what its user types refuses it.

    A refusal to the coordinator, who chose the pool, would tell of values: by pool after pool, of all.
    """
    rows = [[*row[:2], f"{float(row[2]) / 18.016:.2f}", *row[3:]] for row in _rows(80, 2)]
    _write(dialect, [HEADER, *rows])
    assert run("doctor", "--data", "north.csv", "--config", "study.toml").code == 2
    terms = _admit_north(run)
    code, out, err = run(
        "hospital", "rehearse", "north.admission", "--data", "north.csv", "--pool", "pool.csv"
    )
    assert code == 2 and "glucose: most values are outside of the pool's" in err, out
    assert "pate-fed hospital check north.csv --study north.admission" in err
    # At a hospital whose pool comes with the first request.
    Path("policy.toml").write_text("plain_votes = true\n", encoding="utf-8")
    settings = LocalSettings(
        hospital="north", data="north.csv", state_dir=Path("state"), policy=Path("policy.toml")
    )
    pool = io.BytesIO()
    np.save(pool, read_pool(Path("pool.csv"), kind_of(terms)).inputs)
    asked = JoinRequest(terms=terms.to_json(), pool=pool.getvalue())
    for terminal in (False, True):  # which a service's log is not
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        assert isinstance(Hospital(local_site(settings)).join(asked), JoinReply)
        warned = "glucose: most values are outside of the pool's" in capsys.readouterr().err
        assert warned == terminal
    assert "outside" not in Path("state/log.jsonl").read_text(encoding="utf-8")
    Path("north.csv.toml").write_text("[columns.glucose]\nfactor = 18.016\n", encoding="utf-8")
    anew = replace(settings, decimal="point")  # as another process reads it
    assert isinstance(Hospital(local_site(anew)).join(asked), JoinReply)
    assert run("doctor", "--data", "north.csv", "--config", "study.toml").code == 0


def test_what_is_odd_is_warned_of_by_column(dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is the label itself, one that is the same everywhere, a third of one out of range."""
    rows = _rows(90, 2)
    for number, row in enumerate(rows):
        row[1], row[4] = ("70" if row[5] == "yes" else "30"), "25"
        row[2] = "900" if number % 3 == 0 else row[2]
    _write(dialect, [HEADER, *rows])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = run("doctor", "--data", "north.csv", "--config", "study.toml")
    told = " ".join(out.split())
    assert code == 0 and told.count("pate-fed hospital check north.csv --study study.toml") == 3
    for words in (
        "age: tells",
        "bmi: the same value in all rows with one",
        "glucose: outside of the pool's",
    ):
        assert f"warning columns {words}" in told


def test_a_check_without_the_pool_says_that_nothing_was_compared(dialect: Path, run: Any) -> None:
    _write(dialect, [HEADER, *_rows(80, 2)])
    _admit_north(run)
    code, out, _ = run("hospital", "check", "north.csv", "--study", "north.admission")
    assert code == 0 and "NOT compared with the public inputs" in out
    code, out, _ = run("hospital", "check", "north.csv", "--study", "north.admission", "--format", "json")
    assert json.loads(out)["compared"] is False
    code, out, _ = run(*CHECK)
    assert code == 0 and "NOT compared" not in out


def test_one_column_of_a_file_is_one_of_the_study_and_other_answers_stay(
    dialect: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["no", "yes", "GLU", "Geschlecht", *["no"] * 8])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    code, out, _ = run(*CHECK)
    assert code == 2 and "sex: that column is another one's already; nothing is changed" in out
    text = Path("north.csv.toml").read_text(encoding="utf-8")
    assert 'name = "GLU"' in text and "[columns.bmi]" in text and "columns.sex" not in text
