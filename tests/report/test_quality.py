"""The report's figures of accuracy: each with its number and interval, and recall by class."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import vary
from report_page import Page

from pate_fed.report.accuracy import Accuracy
from pate_fed.report.html import render_report
from pate_fed.report.quality import accuracy_bars, recall_bars
from pate_fed.report.result import RunResult


def _with(result: RunResult, accuracy: Accuracy) -> RunResult:
    return replace(result, outcome=replace(result.outcome, accuracy=accuracy))


def test_every_accuracy_has_its_number_interval_and_the_guess(run_result: RunResult) -> None:
    figure = accuracy_bars(run_result, publishable=False)
    assert figure is not None and len(figure.rows) == 4
    teachers, *others = figure.rows
    assert teachers[2:] == ("3,478", "-", "10.8 %")  # of several teachers, so of no independent trials
    for _, share, number, interval, guess in others:
        assert share.endswith("%") and int(number.replace(",", "")) > 900
        assert " to " in interval and guess.endswith("%")
    assert figure.picture.count('class="interval"') == 9


def test_a_small_test_is_counted_in_the_report(run_result: RunResult) -> None:
    small = Accuracy(student=0.8, student_n=15, majority=8 / 15, by_class=((7, 8), (5, 7)))
    result = _with(run_result, small)
    figure = accuracy_bars(result, publishable=True)
    assert figure is not None and figure.rows == (("student", "12 of 15", "15", "55 % to 93 %", "53 %"),)
    assert "80" not in figure.picture.split("aria-label=")[1].split('"')[1]
    assert "12 of 15" in Page(render_report(result)).words


@pytest.mark.parametrize(("classes", "drawn"), [(2, 2), (20, 20), (150, 20)])
def test_recall_is_drawn_by_class(run_result: RunResult, classes: int, drawn: int) -> None:
    by_class = tuple((number % 7, 7) for number in range(classes))
    accuracy = Accuracy(student=0.4, student_n=7 * classes, majority=1 / classes, by_class=by_class)
    names = tuple(f"class {number}" for number in range(classes))
    terms = vary(run_result.study.terms, classes=names, num_classes=classes)
    study = vary(run_result.study, terms=terms)
    figure = recall_bars(_with(replace(run_result, study=study), accuracy))
    assert figure is not None and len(figure.rows) == drawn
    assert figure.rows[0] == ("class 0", "0 of 7 right (0 to 35 %)") and "0 of 7<" in figure.picture
    assert figure.picture.count('class="interval"') == 3 * drawn
    assert (f"{drawn} classes of least recall" in figure.caption) == (classes > drawn)


def test_without_a_tested_student_there_is_no_recall(run_result: RunResult) -> None:
    assert recall_bars(_with(run_result, Accuracy(labels=0.9, labels_n=10))) is None
    assert accuracy_bars(_with(run_result, Accuracy()), publishable=False) is None
