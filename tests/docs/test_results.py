"""The page of results and the files that it is made of."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import results_page
from reference_files import PROGRAMS

PARSERS = {name: make() for name, make in PROGRAMS.items()}
ROOT = Path(__file__).parents[2]
RESULTS = results_page.read_results()


@pytest.mark.parametrize("name", RESULTS)
def test_a_file_says_what_made_its_figures(name: str) -> None:
    result = RESULTS[name]
    assert result["command"] and result["machine"] and result["figures"]
    date.fromisoformat(f"{result['date']}-01"[:10])
    assert result["commit"] is None or re.fullmatch(r"[0-9a-f]{7,40}\+?", result["commit"])
    assert result["seeds"] is None or result["seeds"] == sorted(set(result["seeds"]))
    for figure in result["figures"]:
        assert figure["of"] and figure["n"] >= 1 and set(figure["mean"]) == set(figure["spread"])
        assert figure["n"] > 1 or not any(figure["spread"].values())


@pytest.mark.parametrize("name", RESULTS)
def test_its_command_is_one_that_there_is(name: str) -> None:
    words = [word for word in shlex.split(RESULTS[name]["command"]) if "=" not in word]
    program, *options = words[1:] if words[0] == "time" else words
    if program == "pytest":
        assert all((ROOT / word).exists() for word in options if word.startswith("tests/"))
    else:
        PARSERS[program].parse_args(options)


def _stored(folder: Path, page: str, **results: dict[str, Any]) -> None:
    (folder / "page.toml").write_text(f'[[group]]\ntitle = "G"\n{page}', encoding="utf-8")
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")


def _result(mean: float, spread: float | None = 0.012) -> dict[str, Any]:
    figure = {"of": {"epsilon": 1.0}, "n": 3, "mean": {"accuracy": mean}, "spread": {"accuracy": spread}}
    made = {
        "command": "pate-fed plan",
        "commit": None,
        "date": "2026-11",
        "machine": "2 cores",
        "seeds": [0, 1, 2],
    }
    return {**made, "figures": [figure]}


def test_figures_remarks_and_published_ones_come_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_page, "FOLDER", tmp_path)
    entry = (
        '[[group.result]]\nfile = "one"\ntitle = "One"\nnote = "It is {{one | 1}}."\n'
        'published = [{ row = ["1"], accuracy = 0.9394 }]\n'
    )
    for mean, shown in ((0.8124, "81.2 ± 1.2"), (0.5, "50.0 ± 1.2")):
        _stored(tmp_path, entry, one=_result(mean))
        page = results_page.results_page()
        assert f"| 1 | {shown} | 93.94 |" in page and f"It is {shown} %." in page
        assert "`pate-fed plan`" in page and "3 seeds; 2 cores; 2026-11." in page
    _stored(tmp_path, entry.replace('["1"]', '["2"]'))
    with pytest.raises(ValueError, match="0 figures have"):
        results_page.results_page()
    _stored(tmp_path, entry, two=_result(0.5))
    with pytest.raises(ValueError, match="files differ"):
        results_page.results_page()


def test_no_remark_types_a_figure_that_a_file_has() -> None:
    plan = tomllib.loads((results_page.FOLDER / "page.toml").read_text(encoding="utf-8"))
    for group in plan["group"]:
        for entry in group["result"]:
            remark = re.sub(r"\{\{.*?\}\}", "", entry.get("note", ""))
            assert not re.search(r"\d ± \d|\d\.\d %", remark), remark


def test_the_page_begins_with_the_table_for_outsiders() -> None:
    summary = results_page.results_page().split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in summary.splitlines() if line.startswith("| ")]
    assert len(rows) > 6 and all(len(row) == 10 for row in rows)
    for row in rows[2:]:
        assert all(re.fullmatch(r"-|\d\d\.\d( \(\d\d\.\d\))?", told) for told in row[6:8])
        assert re.fullmatch(r"\d\d\.\d( ± \d+\.\d)?", row[3]) and int(row[5]) >= 1 and row[9].strip("`")
