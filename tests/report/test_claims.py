"""Where an ε is a mechanism's own word, every place that prints it says whose."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import vary
from report_page import Page

from pate_fed.config.claim import CLAIMED_ORDERS, Claim
from pate_fed.config.parts import PartIdentity
from pate_fed.config.sections import Aggregation
from pate_fed.report.comparison import RunToCompare
from pate_fed.report.html import render_report
from pate_fed.report.metrics import make_metrics, outcome_json, outcome_line
from pate_fed.report.result import RunResult
from pate_fed.report.tables import figure_rows
from pate_fed.report.tensorboard import _privacy
from pate_fed.report.terminal import print_summary

NAME, DIGEST = "theirs.mech:make", "cd" * 32
CLAIM = Claim(
    part=PartIdentity(name=NAME, version="1.2", digest=DIGEST),
    parameters=(("scale", 40.0),),
    unit="record",
    adjacency="replace-one",
    votes_moved=1,
    rdp=tuple(order / 800 for order in CLAIMED_ORDERS),
)


@pytest.fixture
def claimed(run_result: RunResult) -> RunResult:
    """The run with a mechanism of somebody else's."""
    study = vary(run_result.study, aggregation=Aggregation(aggregator=NAME), claim=CLAIM)
    return replace(run_result, study=study)


def test_the_report_says_so_first_and_beside_each_figure(claimed: RunResult, run_result: RunResult) -> None:
    for publishable in (False, True):
        words = Page(render_report(claimed, publishable=publishable)).words
        assert "ε is claimed, not proven" in words
        assert f"{NAME} 1.2 (source SHA-256 {DIGEST})" in words
        assert words.count(f"claimed by {NAME}, not proven") >= 3  # the card, the public, other hospitals
        assert "scale = 40.0" in words
    assert "claimed" not in Page(render_report(run_result)).words


def test_summary_and_outcome_line_say_so(claimed: RunResult, run_result: RunResult) -> None:
    out = io.StringIO()
    print_summary(claimed, out)
    assert "has not proven them" in " ".join(out.getvalue().split()) and NAME in out.getvalue()
    assert f" claimed-by={NAME} δ=" in outcome_line(claimed)
    assert "claimed" not in outcome_line(run_result)
    values = json.loads(outcome_json(claimed, Path("r")))
    assert values["claimed_by"] == {"name": NAME, "version": "1.2", "digest": DIGEST}


def test_figures_for_programs_say_so(claimed: RunResult, run_result: RunResult) -> None:
    privacy = make_metrics(claimed)["privacy"]
    assert privacy["claimed_by"]["digest"] == DIGEST and "has not proven them" in privacy["claim"]
    assert "claimed_by" not in make_metrics(run_result)["privacy"]
    assert ("privacy.claimed_by.name", NAME) in figure_rows(claimed)
    assert _privacy(claimed)[0][1].endswith(f"claimed by {NAME}, not proven")
    compared = RunToCompare(name="a", result=claimed, settings={}, ledger="checked")
    assert compared.epsilon.endswith("(claimed, not proven)")


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
