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
LONG = ("own_arrays", "own_pictures")  # which train networks
QUICK = {part: {"epochs": 1, "trees": 5} for part in ("teacher", "student")}  # names follow from the data


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in EXAMPLES
    ],
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
        for part, section in (("student", "student"), ("aggregator", "aggregation"), ("kind", "aggregation")):
            if part in parts:
                usual.pop(section, None)
        merged = {key: {**usual.get(key, {}), **given.get(key, {})} for key in {**usual, **given}}
        runs.append(simulate(merged, run_dir=tmp_path / f"run-{len(runs)}", quiet=True, **parts))
        return runs[-1]

    monkeypatch.setattr("pate_fed.cli.simulate.simulate", small)
    runpy.run_path(str(path), run_name="__main__")
    assert runs and all(run.metrics["status"] == "success" for run in runs)
    assert capsys.readouterr().out.startswith("Run(")


def test_there_are_examples_and_they_are_short() -> None:
    kinds = ("teacher_torch", "teacher_sklearn", "student", "data", "partition")
    kinds += ("aggregator", "query_strategy", "feature_map", "kind")
    assert {f"own_{kind}" for kind in kinds} <= {path.stem for path in EXAMPLES}
    for path in EXAMPLES:
        most = 150 if path.stem == "own_kind" else 40  # all of a kind, with its noise and its proof
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most
