"""`pate-fed bench`: words of its options, and a small grid from start to page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pate_fed.bench import grid as grids
from pate_fed.cli.main import main


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, says in (
        (["--task", "digit"], "--task digit: one of canaries"),
        (["--method", "nothing"], "benchmark method 'nothing'"),
        (["--seeds", "few"], "few"),
        (["--epsilon", "0"], "numbers above 0"),
    ):
        assert main(["bench", "--run-dir", str(tmp_path), *words]) == 2
        assert says in capsys.readouterr().err


def test_a_small_grid_ends_in_its_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "_apart", lambda grid, key, folder: grids.play(grid, key))
    words = [
        "--quick",
        "--data-dir",
        str(tmp_path),
        "--task",
        "breast-cancer",
        "--method",
        "central",
        "--method",
        "own_benchmark_method:run",
    ]
    assert main(["bench", "--run-dir", str(tmp_path / "out"), *words]) == 0
    out = capsys.readouterr().out
    assert "1 of 2: breast-cancer, central" in out
    assert "best own_benchmark_method:run (not of this package), 0.8" in out
    there = "bench.html bench.json bench.txt cells-inputs.json cells.csv".split()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == there
    stored = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (
        stored["command"].startswith("pate-fed bench --quick --task breast-cancer")
        and len(stored["figures"]) == 2
    )
    assert main(["bench", "--run-dir", str(tmp_path / "out"), *words]) == 0
    assert "2 cells there, 0 left" in capsys.readouterr().out
