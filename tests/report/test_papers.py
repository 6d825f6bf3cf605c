"""Papers beside a student: figures as they stand in metrics.json, hostile texts, and what is left open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_page import Page
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, make_study, save_run

from pate_fed.cli.main import main
from pate_fed.config.sections import About
from pate_fed.report.accuracy import Ranking
from pate_fed.report.own_records import Estimate, OwnRecords
from pate_fed.report.papers import figures_of, make_papers, write_papers
from pate_fed.report.run import Run

HOSTILE = "<script>alert(1)</script> | `x` _y_ **z**"
FILES = ("board", "ethics", "impact-assessment", "model-card")


def _run(folder: Path, record: Any = RECORD, outcome: Any = None) -> Run:
    save_run(folder, events(record, outcome or make_outcome()), study=make_study())
    return Run.load(folder)


def _numbers(value: Any) -> set[float]:
    """All numbers of a file, however deep."""
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(_numbers, value))
    return {float(value)} if isinstance(value, (int, float)) and not isinstance(value, bool) else set()


def test_every_figure_stands_in_metrics(tmp_path: Path) -> None:
    own = OwnRecords(
        records=800.0,
        noise=3.0,
        accuracy=Estimate(share=0.81, low=0.77, high=0.85),
        recall=(Estimate(share=0.7, low=0.6, high=0.8), None),
        auc=Estimate(share=0.91, low=0.88, high=0.93),
        slope=0.93,
    )
    ranking = Ranking(auc=0.875, interval=(0.861, 0.887), roc=(0.625,) * 101, positive=40, negative=60)
    outcome = make_outcome()
    outcome = replace(outcome, accuracy=replace(outcome.accuracy, own_records=own, ranking=ranking))
    run = _run(tmp_path / "run", outcome=outcome)
    known = _numbers(json.loads(json.dumps(run.metrics)))
    figures = figures_of(run.result)
    assert {"accuracy", "balanced accuracy", "AUC", "calibration slope"} <= {each.name for each in figures}
    assert sum("own records" in each.on for each in figures) == 4
    for each in figures:
        assert {each.value, *(each.ends or ())} <= known, each
    write_papers(run, tmp_path)
    card = json.loads((tmp_path / "model-card.cdx.json").read_text(encoding="utf-8"))
    metrics = card["components"][0]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert [float(each["value"]) for each in metrics] == [each.value for each in figures]
    page = (tmp_path / "model-card.md").read_text(encoding="utf-8")
    assert all(each.text in page for each in figures)


@pytest.mark.parametrize("record", [RECORD, SUMS, LABELS], ids=["votes", "sums", "labels"])
def test_the_model_card_fits_its_schema_and_says_who_is_protected(tmp_path: Path, record: Any) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    run = _run(tmp_path / "run", record)
    assert len(write_papers(run, tmp_path)) == 9
    text = (tmp_path / "model-card.cdx.json").read_text(encoding="utf-8")
    check = JsonStrictValidator(SchemaVersion.V1_6)
    assert check.validate_str(text) is None
    assert check.validate_str(text.replace('"performanceMetrics"', '"metrics"')) is not None
    facts = {
        each["name"]: each["value"] for each in json.loads(text)["components"][0]["modelCard"]["properties"]
    }
    assert facts["pate_fed:protects"] == record.protects and facts["pate_fed:delta"] == "1e-5"
    for name in FILES:
        page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert "ε" in page and page.count("\n# ") == 0, name


def test_what_people_wrote_is_text_and_what_they_did_not_is_left_open(tmp_path: Path) -> None:
    stated = replace(RECORD.terms, study=HOSTILE, about=About(purpose=HOSTILE, requester="The university"))
    run = _run(tmp_path / "run", replace(RECORD, terms=stated))
    write_papers(run, tmp_path)
    for name in FILES:
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "<script" not in page and "<script" in Page(page).words
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert "\\<script\\>" in text and "**z**" not in text and "The university" in text
    text = (tmp_path / "impact-assessment.md").read_text(encoding="utf-8")
    assert "| Legal basis | (to be filled in by the controller) |" in text
    assert "| Purpose | (to be filled" not in text


def test_nothing_of_private_votes_is_in_a_paper(tmp_path: Path) -> None:
    """The same papers whatever the teachers' own accuracy was."""
    outcome = make_outcome()
    pages = []
    for number, share in enumerate((0.61, 0.62)):
        found = replace(outcome.accuracy, teacher_mean=share, ensemble=share + 0.01)
        run = _run(tmp_path / str(number), outcome=replace(outcome, accuracy=found))
        pages.append([paper.markdown for paper in make_papers(run.result)])
    assert pages[0] == pages[1]


def test_a_simulation_and_seeded_noise_are_said_in_every_paper(tmp_path: Path) -> None:
    record = replace(RECORD, backend="inline", noise_private=False, noise="not private: seeded")
    for paper in make_papers(_run(tmp_path / "run", record).result):
        assert "no hospital took part" in paper.markdown
        assert "seed" in paper.markdown, paper.name


def test_a_run_without_a_student_has_no_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(make_outcome(), status="failed", reason="too few hospitals answered")
    run = _run(tmp_path / "run", outcome=failed)
    assert main(["report", str(run.path), "--papers", str(tmp_path / "papers")]) == 2
    assert "the run ended as failed; papers go with a student" in capsys.readouterr().err
    assert not (tmp_path / "papers").exists()
