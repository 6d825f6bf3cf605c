"""1,000 private texts in four hospitals' files: none in what commands write, whether they succeed or refuse.

Only the hospitals' own files hold them, and the list of `study new` that asks about them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from planted import (
    COLUMNS,
    HOSPITALS,
    Planted,
    draw_planted,
    found_in,
    leaks,
    plain_row,
    write_csv,
    write_hospitals,
)

from pate_fed.simulation import main as simulation_main

TEXTS = draw_planted(1000)
AGREED = [*COLUMNS, "ward: A", "ward: B", "sex: f", "sex: m", "ill: no", "ill: yes"]
# Where a text of a record stands, and in how many rows of one hospital's 60.
SPOTS = [
    *((column, rows) for column in COLUMNS for rows in (1, 2, 7, 40)),
    *((f"the name of {column}", 1) for column in COLUMNS),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run, and write all that they do."""
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATE_FED_SITE", "")  # the simulation sets it; the fixture takes it away again
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def test_the_search_finds_a_text_however_it_is_written(tmp_path: Path) -> None:
    paths = write_hospitals(tmp_path, TEXTS)
    every = {each.text for each in TEXTS}
    assert set().union(*(found_in(path.read_bytes(), TEXTS) for path in paths)) == every
    for encoding in ("utf-8", "utf-16", "utf-16-le", "latin-1", "unicode_escape"):
        for each in TEXTS[:20]:
            assert found_in(b"\1" + each.text.upper().encode(encoding) + b"\2", TEXTS) == {each.text}
    assert found_in(b"no text of a record, 12.03.1951", TEXTS) == set()


def test_study_new_writes_none_of_them_whatever_else_is_agreed_to(place: Path, run: Any) -> None:
    """Refused, or the column left out; a yes to all others changes nothing, one to a text lets it stand."""
    drawn, left, tries, codes = random.Random(0), list(TEXTS), 0, list[int]()
    files = [Path(f"{name}.csv").absolute() for name in HOSPITALS]
    Path("yes.txt").write_text("\n".join(AGREED), encoding="utf-8")
    plain, agreed = ("study", "new", "--csv", *map(str, files)), ("--yes-to", "yes.txt")
    while left:
        spot, rows = SPOTS[tries % len(SPOTS)]
        texts = [left.pop() for _ in range(min(rows, len(left)))]
        _plant(files, texts, spot, drawn, whose=tries % 4)
        for more in ((), agreed, ("--label", "ill", "--patient", "patient", *agreed)):
            codes.append(run(*plain, *more).code)
            assert leaks([place], texts, without=files) == {}, (spot, rows, more)
            Path("study.toml").unlink(missing_ok=True)
        tries += 1
    assert tries > 2 * len(SPOTS) and {*codes} == {0, 2} and codes.count(0) > 10
    _plant(files, TEXTS[:1], "ward", drawn, whose=0)
    plain = (*plain, "--label", "ill")
    code, _, err = run(*plain, *agreed)
    asked = err.split("--yes-to FILE:\n")[1]
    assert code == 2 and asked == f"ward: {TEXTS[0].text}\n"
    Path("yes.txt").write_text("\n".join([*AGREED, asked]), encoding="utf-8")
    assert run(*plain, *agreed).code == 0 and found_in(Path("study.toml").read_bytes(), TEXTS[:1])


def test_what_is_dealt_out_of_one_file_has_none_of_them(place: Path, run: Any) -> None:
    """Of unread columns, their names and patients' names; the pool that is made is public."""
    (file, *_) = files = write_hospitals(Path.cwd(), TEXTS)
    Path("yes.txt").write_text("\n".join(AGREED), encoding="utf-8")
    new = ("study", "new", "--csv", str(file), "--deal", "4", "--label", "ill", "--yes-to", "yes.txt")
    assert run(*new).code == 0 and len([*Path("study-files").iterdir()]) == 5
    assert leaks([place], TEXTS, without=files) == {}


def _plant(
    files: Sequence[Path], texts: Sequence[Planted], spot: str, drawn: random.Random, *, whose: int
) -> None:
    """Write the hospitals' files with texts in one's column, or in the name of everyone's column."""
    for place, file in enumerate(files):
        table = [[*COLUMNS], *(plain_row(n, drawn) for n in range(60))]
        if spot not in COLUMNS:
            table[0][COLUMNS.index(spot.removeprefix("the name of "))] = texts[0].text
        elif place == whose:
            for row, each in zip(drawn.sample(range(1, 61), len(texts)), texts, strict=True):
                table[row][COLUMNS.index(spot)] = each.text
        write_csv(file, table)


class Journey:
    """Four hospitals' commands in one folder; what they say is kept there and searched as their files are."""

    def __init__(self, place: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.run, self.capsys = place, run, capsys
        self.files = write_hospitals(Path.cwd(), TEXTS)
        # `study new` names the columns that it leaves out on the terminal: it is not among what is searched.
        assert run("study", "new", "--csv", *map(str, self.files), "--label", "ill").code == 0
        self.tell("study", "init", "ca", "--config", "study.toml", "--address", "localhost:9")
        for name in HOSPITALS:
            self.tell("hospital", "request", "--name", name, "--dir", f"keys-{name}")
            self.tell("study", "admit", f"keys-{name}/{name}.req", "--dir", "ca")

    def tell(self, *command: str, ends: int = 0) -> str:
        """Run a command that must end so; what it said."""
        return self._said(*self.run(*command), ends=ends)

    def simulate(self, *, ends: int = 0) -> str:
        """Run the study on this machine."""
        code = simulation_main(["--config", "study.toml", "--backend", "inline", "--run-dir", "run"])
        return self._said(code, *self.capsys.readouterr(), ends=ends)

    def _said(self, code: int, out: str, err: str, *, ends: int) -> str:
        assert code == ends, err
        with open(self.place / "said.txt", "a", encoding="utf-8") as file:
            file.write(out + err)
        return out + err

    def check(self, planted: Sequence[Planted] = TEXTS) -> None:
        """No file but the hospitals' own holds a text, in its bytes or its name."""
        assert leaks([self.place], planted, without=self.files) == {}
        assert len([*self.place.rglob("*.admission")]) >= 4


@pytest.fixture
def journey(place: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> Journey:
    """A study that `study new` wrote of the hospitals' files, and all four admitted to it."""
    return Journey(place, run, capsys)


def test_a_whole_study_writes_none_of_them(journey: Journey) -> None:
    """Of patients' names, notes, dates and names of columns that nobody reads."""
    assert "\nSUCCESS  ε=" in f"\n{journey.simulate()}"
    journey.tell("report", "run")
    journey.tell("ledger", "show", "run")
    for name in HOSPITALS:
        keys, file = f"keys-{name}", f"{name}.csv"
        journey.tell("hospital", "terms", f"{name}.admission", "--pool", "pool.csv")
        journey.tell("hospital", "accept", f"{name}.admission", "--dir", keys, "--yes")
        assert journey.tell("hospital", "check", file, "--study", keys, "--pool", "pool.csv").endswith(
            "study\n"
        )
        said = journey.tell("hospital", "rehearse", keys, "--data", file, "--pool", "pool.csv")
        assert "can be read" in said and "features" in said
    journey.check()
    assert Path("run/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("column", ["age", "dose", "sex", "ward", "ill", "patient", "a whole row"])
def test_what_is_refused_is_named_by_row_and_column_alone(column: str, journey: Journey) -> None:
    """A text in a column that is read: at the hospital, and in a simulation of all four."""
    drawn, texts = random.Random(2), list(TEXTS)
    for file in journey.files:
        table = [[*COLUMNS], *(plain_row(n, drawn) for n in range(60))]
        for row in range(31, 61):
            if column == "a whole row":
                table[row] = [texts.pop().text for _ in range(7)]
            elif column == "patient":
                table[row] = [texts.pop().text, *table[row][1:-1], texts.pop().text]
            else:
                table[row][COLUMNS.index(column)] = texts.pop().text
        write_csv(file, table)
    where = "row 32"
    assert where in journey.simulate(ends=2)
    for name in HOSPITALS:
        said = journey.tell("hospital", "rehearse", f"{name}.admission", "--data", f"{name}.csv", ends=2)
        assert where in said and ("7 values for 6 columns" in said or "column" in said)
        checked = ("hospital", "check", f"{name}.csv", "--study", f"{name}.admission", "--accept-proposals")
        assert "fit yet" in journey.tell(*checked, ends=2)
    journey.check()
