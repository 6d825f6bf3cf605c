"""`pate-fed compare`: runs side by side, without what may not be published."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_page import Page
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, make_study, save_run

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs that differ in σ₂, one that was cut off, one of class sums, one of private labels."""
    folder = tmp_path_factory.mktemp("runs")
    for sigma, epsilon, right in ((2.0, 6.2, 470), (4.0, 3.5, 450), (8.0, 1.9, 380)):
        study = make_study(aggregator="gnmax", sigma2=sigma)
        told = events(outcome=make_outcome(epsilon=epsilon, right=right))
        save_run(folder / f"sigma-{sigma:g}", told, study=study)
    save_run(folder / "cut", events()[:6])
    save_run(folder / "sums", events(SUMS))
    save_run(folder / "labels", events(LABELS))
    return folder


def test_figures_and_what_differs(runs: Path, run: Run) -> None:
    done = run("compare", str(runs / "sigma-2"), str(runs / "sigma-8"))
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[1][:5] == ["sigma-2", "success", "6.2", "1e-5", "100"]
    assert lines[2][:5] == ["sigma-8", "success", "1.9", "1e-5", "100"]
    assert ["aggregation.sigma2", "2", "8"] in lines
    assert "94 %" in done.out and "92 to 96 %" in done.out  # Wilson of 470 of 500
    assert "teacher.name" not in done.out  # the same in both
    assert "add up" in done.out


def test_figures_from_private_votes_are_for_the_analyst_alone(runs: Path, run: Run, tmp_path: Path) -> None:
    """0.4567 is the ensemble's accuracy, 2.3456 the data-dependent ε."""
    command = ("compare", str(runs / "sigma-2"), str(runs / "sigma-8"), "--html", str(tmp_path / "page.html"))
    for analyst in (False, True):
        extra = ("--analyst",) if analyst else ()
        text, plain = run(*command, *extra).out, run(*command, *extra, "--format", "json").out
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        for shown in (text, page):
            assert ("2.346" in shown) is analyst and ("45.7 %" in shown) is analyst
        assert ("2.3456" in plain) is analyst and ("0.4567" in plain) is analyst
        assert ("do_not_publish" in plain) is analyst
        assert not any(name in text + page + plain for name in ("hospital-7", "top_answered"))


def test_what_keeps_runs_from_comparing(runs: Path, run: Run) -> None:
    names = [str(runs / name) for name in ("sigma-2", "cut", "sums", "labels")]
    found = json.loads(run("compare", *names, "--format", "json").out)
    notes = " ".join(found["notes"])
    assert "different kinds: votes (sigma-2, cut); class sums (sums); private labels (labels)" in notes
    assert "cut: the run was cut off before its end" in notes
    assert "No ledger lies beside sigma-2, cut, sums, labels" in notes
    assert "δ = 1e-5, label, replace-one (labels)" in notes
    assert "not measured on the same test inputs" in notes
    assert [each["status"] for each in found["runs"]] == ["success", "aborted", "success", "success"]
    assert found["runs"][1]["accuracy"]["student"] is None
    assert found["differing"]["Kind"]["labels"] == "private labels"


def test_equal_runs_have_no_such_notes(runs: Path, run: Run, tmp_path: Path) -> None:
    record = replace(RECORD, noise_private=False)
    for name in ("one", "two"):
        save_run(tmp_path / name, events(record))
    done = run("compare", str(tmp_path / "one"), str(tmp_path / "two"))
    assert "all settings are the same" in done.out
    assert "3.5 (seeded: not private)" in done.out and "Seeded noise protects nobody: one, two." in done.out
    assert not any(word in done.out for word in ("different kinds", "differ,", "add up", "cut off"))


def test_a_damaged_ledger_is_told_of(runs: Path, run: Run, tmp_path: Path) -> None:
    save_run(tmp_path / "one", events())
    (tmp_path / "one" / "ledger.sqlite").write_bytes(b"no ledger")
    done = run("compare", str(tmp_path / "one"), str(runs / "cut"))
    assert done.code == 0 and "FAILS ITS CHECK" in done.out and "does not pass its check: one." in done.out


def test_the_page_has_pictures_and_nothing_from_outside(runs: Path, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    names = [str(runs / f"sigma-{sigma}") for sigma in (2, 4, 8)]
    assert run("compare", *names, "--html", str(path)).code == 0
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.of("svg")) == 2 and not page.of("script") and not page.of("link")
    assert sum(each.get("class", "").startswith("dot c1") for each in page.of("circle")) >= 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("sigma-2",), "one run alone"),
        (("sigma-2", "sigma-2"), "given twice"),
        (("sigma-2", "none"), "none: holds no run"),
        (("sigma-2", "sigma-4", "--html", "."), "--html ."),
    ],
)
def test_errors_are_one_sentence(runs: Path, run: Run, given: tuple[str, ...], told: str) -> None:
    names = [str(runs / each) if each[0].isalpha() else each for each in given]
    done = run("compare", *names)
    assert done.code == 2 and told in done.err and len(done.err.splitlines()) == 1 and not done.out
