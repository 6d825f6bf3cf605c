"""Where an ε is a mechanism's own word, every place that prints it says whose."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from builders import THEIRS, own_map_terms, vary
from report_page import Page

from pate_fed.config.sections import Aggregation
from pate_fed.learning import TeacherSettings
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS, Claim
from pate_fed.report.comparison import RunToCompare
from pate_fed.report.export import _privacy, figure_rows
from pate_fed.report.html import render_report
from pate_fed.report.metrics import make_metrics, outcome_json, outcome_line
from pate_fed.report.result import RunResult
from pate_fed.report.terminal import print_summary

NAME = THEIRS.name
CLAIM = Claim(
    part=THEIRS,
    parameters=(("scale", 40.0),),
    unit="record",
    adjacency="replace-one",
    votes_moved=1,
    rdp=tuple(order / 800 for order in CLAIMED_ORDERS),
)


@pytest.fixture(params=["mechanism", "feature map", "teacher"])
def kind(request: pytest.FixtureRequest) -> str:
    """What of somebody else's is in the run."""
    return str(request.param)


@pytest.fixture
def claimed(run_result: RunResult, kind: str) -> RunResult:
    """The run with it."""
    study = run_result.study
    if kind == "mechanism":
        study = vary(study, aggregation=Aggregation(aggregator=NAME), claim=CLAIM)
    elif kind == "feature map":
        study = replace(study, terms=own_map_terms())  # type: ignore[arg-type]
    else:
        study = vary(study, teacher=TeacherSettings(name=NAME), teacher_part=THEIRS)
    return replace(run_result, study=study)


def test_the_report_says_so_first_and_beside_each_figure(
    claimed: RunResult, run_result: RunResult, kind: str
) -> None:
    for publishable in (False, True):
        words = Page(render_report(claimed, publishable=publishable)).words
        assert "ε is claimed, not proven" in words
        assert THEIRS.text in words and "has not proven th" in words
        # The card, the public, other hospitals; the words for a board.
        assert words.count(f"claimed by {NAME}, not proven") >= 3 + publishable
        assert ("scale = 40.0" in words) is (kind == "mechanism")
    assert "claimed" not in Page(render_report(run_result)).words


def test_summary_and_outcome_line_say_so(claimed: RunResult, run_result: RunResult, kind: str) -> None:
    out = io.StringIO()
    print_summary(claimed, out)
    assert "has not proven th" in " ".join(out.getvalue().split()) and NAME in out.getvalue()
    assert f" claimed-by={NAME} δ=" in outcome_line(claimed)
    assert "claimed" not in outcome_line(run_result)
    values = json.loads(outcome_json(claimed, Path("r")))
    assert values["claimed_by"] == [{"kind": kind, **asdict(THEIRS)}]


def test_figures_for_programs_say_so(claimed: RunResult, run_result: RunResult, kind: str) -> None:
    privacy = make_metrics(claimed)["privacy"]
    assert privacy["claimed_by"][0]["digest"] == THEIRS.digest and "has not proven th" in privacy["claim"]
    assert "claimed_by" not in make_metrics(run_result)["privacy"]
    rows = figure_rows(claimed)
    assert ("privacy.claimed_by.0.name", NAME) in rows and ("privacy.claimed_by.0.kind", kind) in rows
    assert _privacy(claimed)[0][1].endswith(f"claimed by {NAME}, not proven")
    compared = RunToCompare(name="a", result=claimed, settings={}, ledger="checked")
    assert compared.epsilon.endswith("(claimed, not proven)")


def test_two_of_them_are_both_named(run_result: RunResult) -> None:
    other = replace(THEIRS, name="others:make")
    study = vary(run_result.study, aggregation=Aggregation(aggregator=NAME), claim=CLAIM)
    study = vary(study, teacher=TeacherSettings(name="others:make"), teacher_part=other)
    both = replace(run_result, study=study)
    assert f" claimed-by={NAME},others:make δ=" in outcome_line(both)
    assert study.assumptions.short == f"claimed by {NAME} and others:make, not proven"
    told = make_metrics(both)["privacy"]
    assert [each["kind"] for each in told["claimed_by"]] == ["mechanism", "teacher"]
    assert "has not proven them; every ε rests" in told["claim"]


def test_a_claim_must_be_that_of_the_terms_aggregator(run_result: RunResult) -> None:
    from pate_fed.errors import InputError

    for changes in (
        {"claim": CLAIM},
        {"aggregation": Aggregation(aggregator=NAME)},
        {"aggregation": Aggregation(aggregator="theirs.mech:other"), "claim": CLAIM},
        {"aggregation": Aggregation(aggregator=NAME, parameters=(("scale", 41.0),)), "claim": CLAIM},
    ):
        with pytest.raises(InputError, match="what the very mechanism claims, where it is none of ours"):
            vary(run_result.study, **changes)
