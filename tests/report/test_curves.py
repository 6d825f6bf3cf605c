"""The student's curves: which are drawn, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

from builders import vary
from report_page import Page

from pate_fed.report.html import render_report
from pate_fed.report.result import RunResult


def test_a_student_that_keeps_every_label_shows_no_shares(run_result: RunResult) -> None:
    values = {"loss_supervised": 0.5, "kept_share": 1.0, "disagreements": 0.0}
    epochs = tuple(replace(epoch, values=values) for epoch in run_result.epochs)
    headings = Page(render_report(replace(run_result, epochs=epochs))).headings
    assert "The labels that it learns from" not in headings
    assert {"The student's losses", "The labels in dispute"} <= set(headings)


def test_a_student_that_starts_again_and_what_disagreement_keeps_are_explained(run_result: RunResult) -> None:
    """Without a word its accuracy falls in the middle, and 99 % of the labels seem to look wrong."""
    once = Page(render_report(run_result)).words
    assert "trained again" not in once and "the rest look wrong and are passed over" in once
    epochs = tuple(
        replace(epoch, values=epoch.values | {"stage": 1.0 if epoch.epoch <= 15 else 2.0})
        for epoch in run_result.epochs
    )
    study = vary(run_result.study, student="pate++")
    page = Page(render_report(replace(run_result, epochs=epochs, study=study)))
    assert page.words.count("starts again from scratch") == page.words.count("trained again") == 4
    assert "disagree on them" in page.words and "the rest look wrong" not in page.words


def test_one_pass_draws_no_curve(run_result: RunResult) -> None:
    headings = Page(render_report(replace(run_result, epochs=run_result.epochs[:1]))).headings
    assert "The student's losses" not in headings and "The student's test accuracy" not in headings
