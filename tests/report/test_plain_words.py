"""The publishable report in plain words: what a board asks, answered from this run's own figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import vary
from report_page import Page
from saved_runs import LABELS, SUMS

from pate_fed.data.schema import Schema
from pate_fed.report.html import _best_guess, plain_answers, render_report
from pate_fed.report.result import PrivacyFigures, RunResult


def _answers(result: RunResult) -> dict[str, str]:
    return dict(plain_answers(result))


LEARNT = "What can somebody learn about one patient from what is published?"


def test_a_board_reads_what_was_done_and_how_good_it_is(run_result: RunResult) -> None:
    answers = _answers(run_result)
    assert answers["What was done?"].startswith("250 hospitals took part.")
    assert "It was a simulation" in answers["What was done?"]
    assert "votes on public images, which the coordinator saw" in answers["What left a hospital?"]
    assert "90.4 % of 1,000 test images" in answers["How good is the student?"]
    assert "class G: 60 of 98 found" in answers["How good is the student?"]
    assert "no bound: it sees every hospital's votes" in answers["What is not promised?"]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0, 1000.0])
def test_the_best_bet_is_the_bound_rounded_up(epsilon: float) -> None:
    """Randomised response attains it where δ is 0."""
    exact = 1 / (1 + math.exp(-epsilon))
    assert exact <= _best_guess(epsilon, 0.0) <= min(1.0, exact + 0.001)
    assert _best_guess(epsilon, 0.01) >= _best_guess(epsilon, 0.0)


def test_the_bet_says_what_epsilon_allows(run_result: RunResult) -> None:
    privacy = PrivacyFigures(student=1.0, spent=0.9)
    one = replace(run_result, outcome=replace(run_result.outcome, privacy=privacy))
    assert "right in at most 73.2 % of cases" in _answers(one)[LEARNT]
    unbounded = PrivacyFigures(student=None, student_reason="the terms set no cap")
    none = replace(run_result, outcome=replace(run_result.outcome, privacy=unbounded))
    assert _answers(none)[LEARNT] == "No bound is known: the terms set no cap."
    seeded = replace(one, study=vary(run_result.study, noise_private=False))
    assert "no protection" in _answers(seeded)[LEARNT] and "73" not in _answers(seeded)[LEARNT]


def test_other_kinds_of_study_and_ends(run_result: RunResult) -> None:
    sums = _answers(replace(run_result, study=SUMS))
    assert "That happened once." in sums["What was done?"] and "mask" in sums["What left a hospital?"]
    labels = _answers(replace(run_result, study=LABELS))
    assert "one label" in labels[LEARNT] and "one place" in labels["What left a hospital?"]
    failed = replace(run_result.outcome, status="failed", reason="too few answered")
    assert (
        "failed: too few answered." in _answers(replace(run_result, outcome=failed))["How can it be checked?"]
    )


def test_who_has_several_records_is_protected_less_where_a_record_is_the_unit(run_result: RunResult) -> None:
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),))
    for terms, several in (
        (vary(SUMS.terms, image_shape=(1,), table=schema), True),
        (vary(SUMS.terms, image_shape=(1,), table=replace(schema, patient="id")), True),
        (vary(SUMS.terms, image_shape=(1,), table=replace(schema, patient="id"), unit="patient"), False),
        (vary(run_result.study.terms, teachers_per_client=1), False),
        (vary(run_result.study.terms, teachers_per_client=2), True),
    ):
        told = _answers(replace(run_result, study=replace(SUMS, terms=terms)))["What is not promised?"]
        assert ("A patient with several records is protected less." in told) is several
        assert ("A patient with records at several hospitals is protected less." in told) is not several


def test_only_the_publishable_report_has_them_and_no_private_figure_is_in_them(run_result: RunResult) -> None:
    board = Page(render_report(run_result, publishable=True))
    assert "In plain words" in board.headings and "Words" in board.headings
    assert "The student's losses" not in board.headings
    analyst = Page(render_report(run_result))
    assert "In plain words" not in analyst.headings and "The student's losses" in analyst.headings
    words = " ".join(_answers(run_result).values())
    for private in ("62.3", "87.1", "3.12", "party-017"):
        assert private not in words
