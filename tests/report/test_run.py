"""A run's directory as a value: labels, figures and report, and what it says where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from saved_runs import events, save_run

from pate_fed.errors import InputError
from pate_fed.report.run import Report, Run


def test_a_directory_is_read(made_up: Path) -> None:
    run = Run.load(str(made_up))
    assert (run.epsilon, run.delta) == (3.5, 1e-5) and run.metrics["accuracy"]["student"] == 0.9
    assert len(run.labels) == 100 and f"{run.labels}" == "Labels(100 of 150 answered)"
    assert (run.labels.label[~run.labels.answered] == -1).all()
    assert f"{run}".startswith(f"Run({str(made_up)!r}, success, ε=3.5 δ=1e-5, student 90 % right")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        Run.load(tmp_path)
    cut = Run.load(save_run(tmp_path / "cut", events()[:3]))
    with pytest.raises(InputError, match="holds no labels"):
        _ = cut.labels
    (cut.path / "predictions.npz").touch()
    with pytest.raises(InputError, match="the run that `simulate` gave has the student itself"):
        _ = cut.student


def test_a_notebook_shows_the_report_without_its_scripts_or_links(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<script>1</script>", encoding="utf-8")
    shown = Report(tmp_path / "report.html")._repr_html_()
    assert shown.startswith('<iframe src="data:text/html;base64,') and " sandbox " in shown
    assert "<script>" not in shown
