"""The page says who is best, and shows no baseline that does not reproduce its authors' figure."""

from __future__ import annotations

from pathlib import Path

from pate_fed.bench.grid import DONE, FAILED, NOT, PUBLISHED, Cell, Grid
from pate_fed.bench.page import hidden, summary, write_page


def _cell(task: str, method: str, value: float | None, **more: object) -> Cell:
    private = method not in ("central", "alone") and task != PUBLISHED
    given = {"status": DONE, "claimed": 1.0 if private else None, "unit": "record", **more}
    return Cell(task, method, 1.0 if private else 0.0, 0, value=value, **given)  # type: ignore[arg-type]


def test_a_baseline_is_shown_where_its_published_figure_is_reproduced() -> None:
    assert "was not made" in hidden("dp-sgd", [])
    assert hidden("dp-sgd", [_cell(PUBLISHED, "dp-sgd", 0.9463 - 0.0067)]) == ""
    assert hidden("dp-sgd", [_cell(PUBLISHED, "dp-sgd", 0.93)]) == "93.00 %, published 94.63 ± 0.34 %"
    assert "no figure" in hidden("fedkt", []) and hidden("pate-fed", []) == hidden("mine:run", []) == ""


def test_the_page_says_who_is_best(tmp_path: Path) -> None:
    cells = [
        _cell(PUBLISHED, "dp-sgd", 0.95, commit="bbbbbbb"),
        _cell("shifted", "pate-fed", 0.75),
        _cell("shifted", "dp-sgd", 0.76),
        _cell("shifted", "fedkt", 0.99),
        _cell("shifted", "randomised-labels", 0.98, unit="label"),
        _cell("shifted", "central", 0.79),
        _cell("shifted", "private-knn", None, status=NOT, reason="it <cannot>"),
        _cell("shifted", "dp-fedavg", None, status=FAILED, reason="took longer than 9 s"),
        _cell("canaries", "pate-fed", 0.2, commit="aaaaaaa"),
        _cell("canaries", "fedkt", 1.4),
    ]
    grid = Grid(data_dir=None, out_dir=tmp_path, tasks=("canaries", "shifted"), epsilons=(1.0,), seeds=1)
    write_page(grid, cells)
    lines = list(summary(grid, cells))
    assert lines[-1] == "cells are of commit aaaaaaa, bbbbbbb"
    assert lines[0] == "audit: FedKT, a record (untuned) refuted by guesses of 2 runs' canaries"
    assert lines[1] == (
        "4 unlike hospitals, ε 1: best DP-SGD, all records in one place, 0.760; this package 0.750"
    )
    assert "failed: took longer than 9 s" in lines
    assert any(line.startswith("not in the pictures: FedKT") for line in lines)
    page = (tmp_path / "bench.html").read_text()
    for text in (
        "does not apply: it &lt;cannot&gt;",
        "took longer than 9 s",
        "protects a label alone",
        "683 private records at 4 hospitals, a pool of 227, 227 test. One record is replaced, δ 1e-05",
        'src="data:image/png;base64,',
        "best DP-SGD",
    ):
        assert text in page, text
    assert grid.command == "pate-fed bench --quick --task canaries --task shifted"
