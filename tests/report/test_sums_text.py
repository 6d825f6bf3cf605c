"""Class sums in the report: who sees what, and no word of votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_sum_terms

from pate_fed.config.sections import Queries
from pate_fed.report.accuracy import Accuracy, HowTested
from pate_fed.report.figures import accuracy_bars
from pate_fed.report.html import write_report
from pate_fed.report.log import RunLog, read_result
from pate_fed.report.own_records import Estimate, OwnRecords
from pate_fed.report.result import Outcome, PrivacyFigures, ReleasedBatch, RunResult, StudyRecord
from pate_fed.report.terminal import print_summary
from pate_fed.report.text import banners, describe_terms, guarantees


def _result(*, at_hospitals: bool, epsilon: float = 1.0) -> RunResult:
    terms = make_sum_terms(at_hospitals=at_hospitals)
    fixed = terms.ledger_terms(noise="n", private=True)
    return RunResult(
        study=StudyRecord(
            terms=terms,
            dataset="glyph",
            queries=Queries(),
            student="ridge",
            protects=fixed.protects,
            noise="the operating system's CSPRNG",
            noise_private=True,
            coordinator=fixed.coordinator.kind,
            coordinator_sees=fixed.coordinator.text(),
        ),
        outcome=Outcome(
            status="success",
            privacy=PrivacyFigures(student=epsilon, coordinator=epsilon if at_hospitals else None),
        ),
        releases=(ReleasedBatch(batch=0, asked=1500, answered=1500, epsilon=epsilon),),
    )


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_nothing_speaks_of_votes(at_hospitals: bool, tmp_path: Path) -> None:
    result = _result(at_hospitals=at_hospitals)
    rows = guarantees(result)
    told = " ".join(f"{each.sees} {each.hidden} {each.by}" for each in (row.against for row in rows))
    told += " ".join(f"{name} {value}" for name, value in describe_terms(result))
    assert "vote" not in told.lower(), told
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(result.study)
        log.write(result.releases[0])
        log.write(result.outcome)
    read = read_result(tmp_path)
    assert read.study == result.study
    write_report(read, tmp_path / "report.html")
    assert "class-sums" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not [banner for banner in banners(result, publishable=False) if banner.title == "For the analyst"]


def test_no_public_input_is_said_to_be_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    result = _result(at_hospitals=True)
    tested = Accuracy(student=0.8, student_n=140, majority=0.5, tested=HowTested(kept=46, not_asked=94))
    result = replace(result, outcome=replace(result.outcome, accuracy=tested))
    print_summary(result)
    bars = accuracy_bars(result, publishable=True)
    assert bars is not None
    for told in (" ".join(capsys.readouterr().err.split()), bars.caption):
        assert "94 whose labels were made of the sums" in told and "not asked" not in told


def test_each_row_says_who_sees_what() -> None:
    public, coordinator, hospitals = guarantees(_result(at_hospitals=True))
    assert "Noisy sums of features by class" in public.against.sees and public.kind == "finite"
    assert (
        "Noisy class sums" in coordinator.against.sees
        and "up to 1 hospital may tell it" in coordinator.against.by
    )
    assert coordinator.bound == public.bound == hospitals.bound
    assert hospitals.against.hidden.startswith("Another hospital's sums.")
    _, coordinator, _ = guarantees(_result(at_hospitals=False))
    assert "The exact class sums" in coordinator.against.sees and coordinator.kind == "none"


def test_terms_say_the_noise_in_records() -> None:
    at_hospitals = dict(describe_terms(_result(at_hospitals=True)))
    assert at_hospitals["Noise σ"].startswith("6.201 records on every sum")
    assert (
        "σ = 2.344 records of every hospital; counted on are 7 hospitals"
        in (at_hospitals["Sums reach the coordinator"])
    )
    here = dict(describe_terms(_result(at_hospitals=False)))
    assert here["Noise σ"].startswith("5.859 records")
    assert here["Sums reach the coordinator"] == "masked: only the sum over hospitals can be read"
    assert here["Features"].startswith("20, kernel of images")


def test_a_large_epsilon_is_explained_without_teachers() -> None:
    [first, *_] = [
        each
        for each in banners(_result(at_hospitals=True, epsilon=30.0), publishable=False)
        if "ε" in each.title
    ]
    assert "smaller --epsilon" in first.text and "teacher" not in first.text


def test_an_epsilon_against_the_coordinator_says_why_it_stands_where_nothing_was_released(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The ledger cannot tell whether a coordinator saw sums whose row it did not write."""
    made, note = _result(at_hospitals=True), "its ε stands though nothing was released"
    for public in (0.0, 1.0):
        privacy = PrivacyFigures(student=public, coordinator=1.0)
        result = replace(made, outcome=Outcome(status="aborted", privacy=privacy))
        print_summary(result)
        [by] = [row.against.by for row in guarantees(result) if row.against.who == "The coordinator"]
        for told in (by, capsys.readouterr().err):
            assert (note in told) == (public == 0)


def test_the_summary_counts_releases_of_sums_and_no_queries(capsys: pytest.CaptureFixture[str]) -> None:
    """A study in rounds has five releases about a thousand inputs, and nobody asked five thousand queries."""
    result = _result(at_hospitals=True)
    print_summary(replace(result, releases=5 * (replace(result.releases[0], answered=300),)))
    told = capsys.readouterr().err
    assert "queries" not in told
    assert "class sums             one release\n" in told and "labels made of sums    1,500\n" in told
    assert "accuracy               not known" in told
    own = OwnRecords(records=800.0, noise=3.0, accuracy=Estimate(share=0.8, low=0.7, high=0.9))
    outcome = replace(result.outcome, accuracy=Accuracy(own_records=own))
    print_summary(replace(result, outcome=outcome))
    assert "accuracy               on hospitals' own records alone, above" in capsys.readouterr().err
