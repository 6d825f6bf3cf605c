"""A reproduction's figures as one file: means and spreads over seeds, and what made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_rows import Row

from pate_fed.format import VERSION
from pate_fed.reproduce import driver


def test_of_one_seed_no_spread_is_known_and_what_is_unknown_is_left_out() -> None:
    [figure] = driver.figures_of([Row("gan", None, 0, accuracy=float("nan"))])
    assert figure == {"of": {"student": "gan"}, "n": 1, "mean": {}, "spread": {}}
    [figure] = driver.figures_of([Row("gan", None, 0, accuracy=0.5)])
    assert figure["spread"] == {"accuracy": None}


def test_a_file_has_the_figures_of_each_task_and_what_made_them(tmp_path: Path) -> None:
    rows = [Row("gan", beta, seed, accuracy=0.5 + seed / 4) for beta in (None, 0.2) for seed in (0, 1)]
    path = tmp_path / "figures.json"
    driver.store_result(path, command="make it", device="cpu", rows=[rows[:2], rows[2:]], lines=["a line"])
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert (kept["command"], kept["seeds"], kept["text"]) == ("make it", [0, 1], ["a line"])
    assert kept["machine"].endswith("no GPU") and kept["version"] == VERSION
    assert [each["of"] for each in kept["figures"]] == [{"student": "gan"}, {"student": "gan", "beta": 0.2}]
    assert all(each["mean"] == {"accuracy": 0.625} and each["n"] == 2 for each in kept["figures"])


def test_of_what_is_no_checkout_no_commit_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "__file__", str(tmp_path / "stored.py"))
    assert driver.commit_of_source() is None
