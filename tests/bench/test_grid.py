"""The grid: each cell once, kept whole, checked; faults, limits and other code are told in it."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.bench import grid as grids
from pate_fed.bench.grid import DONE, FAILED, METHODS, NOT, PUBLISHED, Built, Cell, Grid, play, run_grid
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
        data_dir=None,
        out_dir=tmp_path / "bench",
        tasks=("breast-cancer",),
        methods=("central", OWN),
        epsilons=(1.0,),
        seeds=2,
    )


def _run(grid: Grid, said: list[str] | None = None) -> list[Cell]:
    """All cells of a call, as its page gets them."""
    shown: list[list[Cell]] = []
    run_grid(grid, [].append if said is None else said.append, show=shown.append)
    return shown[-1]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells in this process."""
    monkeypatch.setattr(grids, "_apart", lambda grid, key, folder: play(grid, key))


@pytest.mark.usefixtures("here")
def test_each_cell_is_run_once_and_kept(grid: Grid) -> None:
    said: list[str] = []
    cells = _run(grid, said)
    assert [(cell.method, cell.epsilon, cell.seed) for cell in cells] == [
        *(("central", 0.0, seed) for seed in range(2)),
        *((OWN, 1.0, seed) for seed in range(2)),
    ]
    assert all(cell.status == DONE and cell.value is not None and cell.value > 0.85 for cell in cells)
    assert cells[2].claimed == 1.0 and 0.95 < (cells[2].recomputed or 0) <= 1.0 and cells[0].claimed is None
    assert cells[0].seconds is not None and (cells[2].source or "").startswith("dc0c6e04f817 ")
    assert "0 cells there, 4 left" in said[0]
    assert said[1].startswith("1 of 4: breast-cancer, central, epsilon 0, seed 0: 0.9")
    assert _run(grid, said) == cells and said[-1].startswith("4 cells there, 0")
    path = grid.out_dir / "cells.csv"
    path.write_text(path.read_text().replace("dc0c6e04f817 ", "of other code "))
    assert [cell.value for cell in _run(replace(grid, seeds=1), said)] == [cells[0].value, cells[2].value]
    assert "1 cell there, 1 left" in said[-2]  # of other code: that cell is made again


@pytest.mark.usefixtures("here")
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
    monkeypatch.setitem(METHODS, "m", Built("m", run, (1, 1, 1, 1)))
    for told in (
        "0 cells there, 1",
        "1 cell there" if status == NOT else "0 cells there",
    ):  # what failed is made again
        said: list[str] = []
        (cell,) = _run(replace(grid, methods=("m",), seeds=1), said)
        assert cell.status == status and cell.value is None and said[0].startswith(told)
        assert re.search(says, cell.reason or "")


def test_what_is_no_grid_is_refused(grid: Grid) -> None:
    for changed, says in (
        ({"tasks": ("digit",)}, "--task digit: one of canaries"),
        ({"seeds": 0}, "at least 1"),
        ({"epsilons": (-1.0,)}, "numbers above 0"),
        ({"limit_s": float("nan")}, "numbers above 0"),
        ({"methods": ("no_such_module:run",)}, "no_such_module"),
        ({"methods": ("dpsgd",)}, "benchmark method 'dpsgd': module:attribute is meant"),
    ):
        with pytest.raises(InputError, match=says):
            replace(grid, **changed)  # type: ignore[arg-type]


def test_a_published_figure_comes_first_and_hours_are_told(grid: Grid) -> None:
    whole = Grid(data_dir=None, out_dir=grid.out_dir)
    cells = list(whole.cells())
    assert [key[:2] for key in cells[:2]] == [(PUBLISHED, "dp-sgd"), (PUBLISHED, "randomised-labels")]
    assert len(cells) == len(set(cells)) == 2 + 11 * 5 * (7 * 3 + 2)
    quick = replace(whole, epsilons=(1.0,), seeds=1)
    few = list(quick.cells())
    assert whole.seconds(cells) > 10 * quick.seconds(few) > 0
    assert (
        quick.seconds(each for each in few if each[0] in ("canaries", "shifted")) > 800
    )  # 883 s were measured
    assert whole.seconds([("adult", OWN, 1.0, 0)]) == whole.seconds([("adult", "dp-sgd", 1.0, 0)])
    assert (
        quick.command == "pate-fed bench --quick" and "--seeds 5" in replace(whole, epsilons=(2.0,)).command
    )


@pytest.mark.processes
def test_a_cell_that_hangs_or_dies_is_told_and_leaves_nothing(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a method has in temporary files goes with its cell: ours keeps a run there until ε is checked."""
    (tmp_path / "slow_method.py").write_text(
        "import os, tempfile, time\n"
        "def run(task, epsilon, seed):\n"
        "    tempfile.mkdtemp()\n"
        "    time.sleep(600)\n"
        "def dies(task, epsilon, seed):\n"
        "    tempfile.mkdtemp()\n"
        "    os._exit(7)\n"
    )
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    one = replace(grid, seeds=1)
    late = replace(one, methods=("slow_method:run",), limit_s=8.0)
    dead = replace(one, methods=("slow_method:dies",), limit_s=300.0)
    where = "on breast-cancer: "
    assert [cell.reason for cell in _run(late)] == [f"method slow_method:run {where}took longer than 8 s"]
    assert [cell.reason for cell in _run(dead)] == [
        f"method slow_method:dies {where}its process ended with 7"
    ]
    (ours,) = _run(replace(one, methods=("pate-fed",)))
    assert ours.status == DONE and ours.recomputed is not None and ours.seconds
    assert not [*temporary.iterdir()]
