"""The grid: each cell once, kept whole, checked; faults, limits and other code are told in it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.bench.grid import DONE, FAILED, METHODS, NOT, PUBLISHED, Built, Grid, run_grid
from pate_fed.bench.protocol import Ledger, NotApplicableError, Spent, Task
from pate_fed.errors import InputError

OWN = "own_benchmark_method:run"


def _lies(task: Task, epsilon: float, seed: int) -> Any:
    return np.zeros(len(task.test)), Ledger(epsilon=epsilon, delta=0, rows=(Spent(pure=2 * epsilon),))


def _cannot(task: Task, epsilon: float, seed: int) -> Any:
    raise NotApplicableError("no rows of this kind")


def _breaks(task: Task, epsilon: float, seed: int) -> Any:
    raise ValueError("a bug of mine")


def _forgets(task: Task, epsilon: float, seed: int) -> Any:
    return np.zeros(len(task.test))


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(
        run_dir=tmp_path / "bench",
        tasks=("breast-cancer",),
        methods=("central", OWN),
        epsilons=(1.0,),
        seeds=2,
    )


def test_each_cell_is_run_once_and_kept(grid: Grid) -> None:
    said: list[str] = []
    cells = run_grid(grid, said.append, here=True)
    assert [(cell.method, cell.epsilon, cell.seed) for cell in cells] == [
        *(("central", 0.0, seed) for seed in range(2)),
        *((OWN, 1.0, seed) for seed in range(2)),
    ]
    assert all(cell.status == DONE and cell.value is not None and cell.value > 0.85 for cell in cells)
    assert cells[2].claimed == 1.0 and 0.95 < (cells[2].recomputed or 0) <= 1.0 and cells[0].claimed is None
    assert cells[0].machine and cells[2].source.startswith("dc0c6e04f817 ")
    assert "0 cells are there, 4 are left" in said[0]
    assert run_grid(grid, said.append, here=True) == cells and said[-1].startswith("4 cells are there, 0 are")
    path = grid.path(("breast-cancer", OWN, 1.0, 0))
    path.write_text(path.read_text().replace("dc0c6e04f817 ", "of other code "))
    assert len(grid.done()) == 3  # that cell is made again


@pytest.mark.parametrize(
    ("run", "status", "says"),
    [
        (_lies, FAILED, "method m on breast-cancer: claims ε = 1, but its rows cost 2"),
        (_cannot, NOT, "no rows of this kind"),
        (_breaks, FAILED, "method m on breast-cancer: fails .*a bug of mine"),
        (_forgets, FAILED, r"gives a ndarray; \(predictions, ledger\) is meant"),
    ],
)
def test_faults_stand_in_the_cell(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, run: Any, status: str, says: str
) -> None:
    monkeypatch.setitem(METHODS, "m", Built(title="m", run=run, seconds=(1, 1, 1)))
    (cell,) = run_grid(replace(grid, methods=("m",), seeds=1), lambda line: None, here=True)
    assert cell.status == status and cell.value is None
    assert re.search(says, cell.reason)


def test_what_is_no_grid_is_refused(grid: Grid) -> None:
    for changed, says in (
        ({"tasks": ("digit",)}, "--task digit: one of canaries"),
        ({"seeds": 0}, "numbers above 0"),
        ({"epsilons": (-1.0,)}, "numbers above 0"),
        ({"methods": ("no_such_module:run",)}, "no_such_module"),
        ({"methods": ("dpsgd",)}, "benchmark method 'dpsgd': module:attribute is meant"),
    ):
        with pytest.raises(InputError, match=says):
            replace(grid, **changed)  # type: ignore[arg-type]


def test_a_published_figure_comes_first_and_hours_are_told(grid: Grid) -> None:
    whole = Grid(run_dir=grid.run_dir)
    cells = list(whole.cells())
    assert [key[:2] for key in cells[:2]] == [(PUBLISHED, "dp-sgd"), (PUBLISHED, "randomised-labels")]
    assert len(cells) == len(set(cells)) == 2 + 11 * 5 * (7 * 3 + 2)
    quick = replace(whole, epsilons=(1.0,), seeds=1)
    assert whole.seconds(cells) > 10 * quick.seconds(list(quick.cells())) > 0


@pytest.mark.processes
def test_a_cell_that_takes_too_long_is_ended(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_method.py").write_text(
        "import os, time\n"
        "def run(task, epsilon, seed):\n"
        "    time.sleep(600)\n"
        "def dies(task, epsilon, seed):\n"
        "    os._exit(7)\n"
    )
    monkeypatch.chdir(tmp_path)
    late = replace(grid, methods=("slow_method:run",), seeds=1, limit_s=5.0)
    dead = replace(grid, methods=("slow_method:dies",), seeds=1, limit_s=300.0)
    assert [cell.reason for cell in run_grid(late, lambda line: None)] == ["took longer than 5 s"]
    assert [cell.reason for cell in run_grid(dead, lambda line: None)] == ["its process ended with 7"]
    assert not [name for name in os.listdir(grid.run_dir / "cells") if not name.endswith(".json")]
