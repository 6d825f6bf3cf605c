"""Each file under examples/ runs as it stands, on a small federation, and is short."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pate_fed import Run
from pate_fed.cli.simulate import simulate

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SMALL: dict[str, Any] = {
    "study": {"seed": 1},
    "parties": {"num_clients": 5},
    "data": {"glyph": {"classes": 3, "private": 100, "public": 60}},
    "teacher": {"epochs": 1},
    "aggregation": {"aggregator": "gnmax", "sigma2": 2.0},
    "queries": {"labels": 10, "max_queries": 10, "evaluate": False},
    "privacy": {"allow_weak": True},
    "student": {"name": "encoder-head"},
    "engine": {"backend": "inline"},
}
MARKS: dict[str, list[Any]] = {  # which train networks; Lightning warns of torch's own
    "own_arrays": [pytest.mark.slow],
    "own_lightning": [pytest.mark.slow, pytest.mark.filterwarnings("ignore")],
    "own_hugging_face_data": [pytest.mark.filterwarnings("ignore")],
    "own_pictures": [pytest.mark.slow],
}
LIBRARIES = {"own_lightning": ["lightning"], "own_hugging_face_data": ["datasets"]}
SAYS = {
    "audit": "LNMax, close vote: sampled ε >= ",
    "calibration": "Offer(",
    "own_benchmark_method": "right: 0.8",
    "ledger_elsewhere": "LedgerReport(",
    "own_classifier": "[",
    "resume": "ended at ε = ",
    "sweep": "0.50 0.",
    "watch": "False [",
    "two_accountants": "this package's 2.007\n",
}
QUICK = {part: {"epochs": 1, "trees": 5} for part in ("teacher", "student")}  # names follow from the data


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, [])) for path in EXAMPLES],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Run] = []

    def small(study: Mapping[str, Any] | None = None, **parts: Any) -> Run:
        given = {key: value for key, value in (study or {}).items() if key not in ("parties", "queries")}
        usual = {key: table for key, table in SMALL.items() if key != "data"} | QUICK
        usual = usual if "dataset" in parts else dict(SMALL)
        if given.get("aggregation") or given.get("data"):  # another way: sums
            usual = {key: table for key, table in SMALL.items() if key in ("study", "privacy", "engine")}
            usual["parties"] = {"num_clients": 5, "records": 100}
            usual |= (
                {}
                if "dataset" in parts or "data" in given
                else {"data": {"glyph": {"private": 600, "public": 600}}}
            )
            given["parties"] = (study or {}).get("parties", {})
        for part, section in (("student", "student"), ("aggregator", "aggregation"), ("kind", "aggregation")):
            if part in parts:
                usual.pop(section, None)
        merged = {key: {**usual.get(key, {}), **given.get(key, {})} for key in {**usual, **given}}
        where = {"run_dir": tmp_path / f"run-{len(runs)}", **parts, "quiet": True}
        runs.append(simulate(merged, **where))
        return runs[-1]

    for library in LIBRARIES.get(path.stem, ()):
        pytest.importorskip(library)
    monkeypatch.setattr("pate_fed.cli.simulate.simulate", small)
    monkeypatch.syspath_prepend(path.parent)
    runpy.run_path(str(path), run_name="__main__")
    assert all(run.metrics["status"] == "success" for run in runs)
    assert runs or "simulate" not in path.read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert out.startswith(SAYS.get(path.stem, "Run("))


def test_there_are_examples_and_they_are_short() -> None:
    assert len(EXAMPLES) >= 25
    for path in EXAMPLES:
        most = 150 if path.stem == "own_kind" else 30  # all of a kind, with its noise and its proof
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most
