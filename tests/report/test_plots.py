"""The report's figures: matrix, spending, agreement, time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from builders import vary
from report_page import Page

from pate_fed.report.html import render_report
from pate_fed.report.plots import top_vote_histogram
from pate_fed.report.result import Evaluation, RunResult, Spending


@pytest.mark.parametrize("classes", [2, 21, 150])
def test_any_number_of_classes_makes_a_matrix(run_result: RunResult, classes: int) -> None:
    confusion = tuple(
        tuple(7 if row == column else int((row + column) % 9 == 0) for column in range(classes))
        for row in range(classes)
    )
    result = replace(run_result, evaluation=Evaluation(confusion=confusion))
    assert "Released labels against the truth" in Page(render_report(result)).headings


def test_the_engines_share_is_told_where_it_is_known(run_result: RunResult) -> None:
    assert "14.0 s (3.9% of the run) were Flower" in render_report(run_result)
    assert "were Flower" not in render_report(replace(run_result, engine_seconds=None))


def test_spending_is_drawn_along_the_batches(run_result: RunResult) -> None:
    after_batches = Page(render_report(run_result)).words
    along = Spending(asked=(10, 999), answered=(4, 411), epsilon=(0.4321, 2.9))
    words = Page(render_report(replace(run_result, spending=along))).words
    assert "0.433" in words
    assert "0.433" not in after_batches


def test_without_a_threshold_nothing_is_said_of_one(run_result: RunResult) -> None:
    words = Page(render_report(replace(run_result, study=vary(run_result.study, aggregator="gnmax")))).words
    assert "this mechanism has no threshold" in words
    assert "the threshold passes over" not in words and "the threshold is asked" not in words


def test_hospitals_noise_is_in_the_totals_already(run_result: RunResult) -> None:
    study = vary(
        run_result.study,
        coordinator="hospital-noise",
        secure_sum=True,
        noise_at="hospitals",
        colluders=1,
        sigma_party=3.0,
    )
    words = Page(render_report(replace(run_result, study=study))).words
    assert "With the hospitals' noise in them" in words and "so the two kinds overlap" not in words
    assert "up to 1 hospital may tell it their own noise" in words


def test_counts_have_whole_ticks(run_result: RunResult) -> None:
    found = Evaluation(
        confusion=((1, 0), (0, 0)), top_edges=(0, 1, 2), top_answered=(0, 1), top_refused=(0, 0)
    )
    figure = top_vote_histogram(replace(run_result, evaluation=found))
    assert figure is not None
    ticks = re.findall(r">([0-9.]+)</text>", figure.picture)
    assert ticks and all("." not in tick for tick in ticks)


def test_what_was_spent_at_once_is_no_line(run_result: RunResult) -> None:
    once = Spending(asked=(999,), answered=(411,), epsilon=(2.9,))
    headings = Page(render_report(replace(run_result, spending=once))).headings
    assert "Privacy spent" not in headings
    assert "Privacy spent" in Page(render_report(run_result)).headings


def test_a_line_that_ends_level_says_why(run_result: RunResult) -> None:
    fixed = run_result.outcome.privacy.student
    assert fixed is not None
    level = Spending(asked=(10, 500, 999), answered=(4, 200, 411), epsilon=(0.5, fixed, fixed))
    assert "It ends level" in Page(render_report(replace(run_result, spending=level))).words
    rising = replace(level, epsilon=(0.5, 0.9 * fixed, fixed))
    assert "It ends level" not in Page(render_report(replace(run_result, spending=rising))).words
