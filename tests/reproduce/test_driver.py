"""The driver: every task once, on from where it was stopped, shown in the tasks' order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

import pytest
from made_rows import Row, make_row

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, driver

TASKS = [(student, beta, seed) for seed in (0, 1) for student, beta in (("gan", None), ("pate+", 0.2))]


def _table(path: Path, make: Callable[..., Row] = make_row, **changes: object) -> driver.Table[Row]:
    return driver.Table(
        path=path,
        row=Row,
        tasks=changes.get("tasks", TASKS),  # type: ignore[arg-type]
        make=make,
        inputs={"totals": "a" * 64},
        lines=lambda rows: [f"{row.student} {row.seed}" for row in rows],
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_table_is_made_once_and_shown_in_order(tmp_path: Path, workers: int) -> None:
    plan = Reproduction(data_dir=None, out_dir=tmp_path, workers=workers)
    said: list[str] = []
    shown: list[list[Row]] = []
    table, text = _table(tmp_path / "rows.csv"), tmp_path / "t.txt"
    lines = driver.run_tables(plan, [table], text=text, log=said.append, show=shown.append)
    assert lines == ["gan 0", "pate+ 0", "gan 1", "pate+ 1"] == text.read_text(encoding="utf-8").splitlines()
    assert shown[-1] == [make_row(task) for task in TASKS]
    assert len(said) == 4 and said[0].startswith("1 of 4: ")
    assert {line.partition(": ")[2] for line in said} >= {
        "gan, seed 0: 50.0 %",
        "pate+, beta 0.2, seed 1: 75.0 %",
    }
    again = driver.run_tables(plan, [table], text=text, log=said.append)
    assert again == lines and len(said) == 4


def test_the_figures_are_stored_with_what_made_them(tmp_path: Path) -> None:
    plan = Reproduction(data_dir=tmp_path, out_dir=tmp_path, seeds=2, name="some-table")
    driver.run_tables(plan, [_table(tmp_path / "rows.csv")], text=tmp_path / "t.txt", log=lambda line: None)
    kept = json.loads((tmp_path / "some-table.json").read_text(encoding="utf-8"))
    assert kept["command"] == "pate-fed reproduce some-table --seeds 2 --data-dir DIR"
    assert kept["seeds"] == [0, 1] and len(kept["date"]) == 10 and "cores" in kept["machine"]
    assert kept["figures"] == [
        {"of": of, "n": 2, "mean": {"accuracy": 0.625}, "spread": {"accuracy": 0.176777}}
        for of in ({"student": "gan"}, {"student": "pate+", "beta": 0.2})
    ]
    assert kept["text"] == ["gan 0", "pate+ 0", "gan 1", "pate+ 1"]
    assert re.fullmatch(r"[0-9a-f]{12}\+?", kept["commit"] or "0" * 12)


@dataclass(frozen=True, slots=True)
class _Made:
    student: str
    seed: int
    _: KW_ONLY
    accuracy: float | None
    commit: str | None


def test_rows_name_their_commit_and_are_made_again_where_they_do_not_hold(tmp_path: Path) -> None:
    plan = Reproduction(data_dir=None, out_dir=tmp_path, name="t")
    first, empty = _Made("a", 0, accuracy=1.0, commit="1111111"), _Made("b", 0, accuracy=None, commit=None)
    made, said = {("a", 0): first, ("b", 0): empty}, list[str]()
    table = driver.Table(
        path=tmp_path / "rows.csv",
        row=_Made,
        tasks=[*made],
        make=made.__getitem__,
        inputs={},
        lines=lambda rows: [f"{row.student} {row.accuracy}" for row in rows],
        holds=lambda row: row.accuracy is not None,
        told=lambda row: "it",
    )
    run = partial(driver.run_tables, plan, [table], text=tmp_path / "t.txt", log=said.append)
    assert run() == ["a 1.0", "b None"] and said == ["1 of 2: a, seed 0: it", "2 of 2: b, seed 0: it"]
    made["b", 0] = _Made("b", 0, accuracy=0.5, commit="2222222")
    assert run() == ["a 1.0", "b 0.5"] and len(said) == 3 and len(driver.kept_rows(table)) == 2
    stored = json.loads((tmp_path / "t.json").read_text())
    assert [each["commit"] for each in stored["figures"]] == ["1111111", "2222222"]
    assert stored["commit"] is None


def test_a_stopped_call_goes_on_where_it_was(tmp_path: Path) -> None:
    plan, made = Reproduction(data_dir=None, out_dir=tmp_path), []

    def failing(task: tuple[str, float | None, int]) -> Row:
        made.append(task)
        if len(made) == 3:
            raise KeyboardInterrupt
        return make_row(task)

    table = _table(tmp_path / "rows.csv", failing)
    with pytest.raises(KeyboardInterrupt):
        driver.run_tables(plan, [table], text=tmp_path / "t.txt", log=lambda line: None)
    driver.run_tables(plan, [table], text=tmp_path / "t.txt", log=lambda line: None)
    assert made == [*TASKS[:3], *TASKS[2:]]


def test_rows_that_nobody_asked_for_stay_on_disk_and_are_not_shown(tmp_path: Path) -> None:
    plan, path = Reproduction(data_dir=None, out_dir=tmp_path), tmp_path / "rows.csv"
    driver.run_tables(plan, [_table(path)], text=tmp_path / "t.txt", log=lambda line: None)
    before = path.read_bytes()
    few = _table(path, tasks=TASKS[:1])
    assert driver.run_tables(plan, [few], text=tmp_path / "t.txt", log=lambda line: None) == ["gan 0"]
    assert path.read_bytes() == before


def test_a_long_call_shows_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SHOWN_EVERY_S", -1.0)
    counts: list[tuple[int, int]] = []
    plan = Reproduction(data_dir=None, out_dir=tmp_path)
    driver.run_tables(
        plan,
        [_table(tmp_path / "a.csv"), _table(tmp_path / "b.csv")],
        text=tmp_path / "t.txt",
        log=lambda line: None,
        show=lambda first, second: counts.append((len(first), len(second))),
    )
    assert counts == [(1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (4, 4)]


def test_every_table_is_bound_before_anything_is_made(tmp_path: Path) -> None:
    plan = Reproduction(data_dir=None, out_dir=tmp_path)
    (tmp_path / "b.csv").write_text("x\n", encoding="utf-8")
    tables = [_table(tmp_path / "a.csv", lambda task: pytest.fail("made")), _table(tmp_path / "b.csv")]
    with pytest.raises(InputError, match="b-inputs"):
        driver.run_tables(plan, tables, text=tmp_path / "t.txt", log=lambda line: None)


def test_only_what_is_chosen_is_an_option(tmp_path: Path) -> None:
    assert not list(Reproduction(data_dir=tmp_path, out_dir=tmp_path, device="auto").chosen())
    chosen = Reproduction(data_dir=None, out_dir=tmp_path, paper=True, seeds=2, tables=("I",), workers=2)
    assert list(chosen.chosen()) == ["--paper", "--seeds", "--tables", "--workers"]


def test_scales_have_files_of_their_own(tmp_path: Path) -> None:
    names = [
        Reproduction(data_dir=None, out_dir=tmp_path, paper=paper).file("runs", "csv").name
        for paper in (False, True)
    ]
    assert names == ["runs-quick.csv", "runs-paper.csv"]


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for change, words in (({"seeds": 0}, "seeds is 0"), ({"workers": 0}, "--workers 0")):
        with pytest.raises(InputError, match=words):
            Reproduction(data_dir=None, out_dir=tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such file"):
        Reproduction(data_dir=None, out_dir=tmp_path, totals=tmp_path / "t.npz")


def test_published_files_that_are_not_there_are_named(small: Reproduction, tmp_path: Path) -> None:
    assert small.published("mnist_250_teachers.npy").is_file()
    for folder in (None, tmp_path / "out"):
        with pytest.raises(InputError, match=r"mnist_250_teachers\.npy is not there"):
            Reproduction(data_dir=folder, out_dir=tmp_path).published("mnist_250_teachers.npy")
