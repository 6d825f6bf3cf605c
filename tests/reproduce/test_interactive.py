"""Interactive-GNMax against Confident-GNMax, in small."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from pate_fed.reproduce import Reproduction, interactive, reproduce


def test_interactive_against_confident_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "BUDGETS", {"mnist": (1.5, 1.0)})
    trained: list[str] = []
    true = interactive.train_and_test

    def counting(*given, **named):  # type: ignore[no-untyped-def]
        trained.append(given[4].name)
        return true(*given, **named)

    monkeypatch.setattr(interactive, "train_and_test", counting)
    lines = reproduce("interactive-gnmax", small)
    with (small.out_dir / "interactive-gnmax-runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == 2 * list(interactive.KINDS)
    for row in rows:
        assert 0 < float(row["epsilon"]) <= float(row["budget"])
        assert int(row["answered"]) <= int(row["asked"]) <= 200
        assert (int(row["confirmed"]) > 0) == (row["kind"] == interactive.KINDS[2])
    assert len(trained) == 2 * 4  # both interactive kinds have one first round
    assert sum("than Confident at 1.5" in line for line in lines) == 4
    assert reproduce("interactive-gnmax", small) == lines


def test_the_slow_student_has_the_first_two_budgets(tmp_path) -> None:  # type: ignore[no-untyped-def]
    tasks = list(interactive._tasks(1))
    assert len(tasks) == len(set(tasks)) == 3 * (2 * 3 + 2 * 2)
    assert {task[3] for task in tasks if task[2] == "co-teaching"} == {4.05, 3.6, 2.0, 1.75}


def test_totals_of_ones_own_are_taken(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "BUDGETS", {"fashion-mnist": (1.0,)})
    given = replace(small, totals=small.data_dir / "a.npy")  # type: ignore[operator]
    reproduce("interactive-gnmax", given)
    assert not list(small.out_dir.glob("totals-*"))
