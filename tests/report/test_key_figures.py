"""The four numbers of a run: what stands beside each, and which ε is marked as a danger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import vary

from pate_fed.config.sections import EPSILON_ALARM
from pate_fed.report.result import RunResult
from pate_fed.report.text import key_figures


def _with(result: RunResult, **changes: Any) -> RunResult:
    return replace(result, outcome=vary(result.outcome, **changes))


def test_each_has_its_name_value_and_what_belongs_to_it(run_result: RunResult) -> None:
    epsilon, student, labels, hospitals = key_figures(run_result)
    assert epsilon.name == "ε against the public" and epsilon.details[:2] == ("δ = 1e-5", "record")
    assert (student.value, student.details[0]) == ("90.4 %", "on 1,000 public images")
    assert "majority 11.2 %" in student.details
    share = run_result.queries_answered / run_result.queries_asked
    assert labels.value == f"{run_result.queries_answered:,}" and f"({share:.0%})" in labels.details[0]
    assert (hospitals.value, hospitals.details) == ("250", ("250 teachers", "quorum 200"))


@pytest.mark.parametrize(("epsilon", "kind"), [(1.0, ""), (EPSILON_ALARM + 1, "danger"), (None, "danger")])
def test_an_epsilon_that_protects_little_is_a_danger(
    run_result: RunResult, epsilon: float | None, kind: str
) -> None:
    privacy = replace(run_result.outcome.privacy, student=epsilon)
    found = key_figures(_with(run_result, privacy=privacy))[0]
    assert found.kind == kind and (found.value == "unbounded") is (epsilon is None)
    if epsilon is None:
        assert key_figures(_with(run_result, privacy=privacy, status="failed"))[0].value == "unknown"


def test_seeded_noise_is_a_danger_at_any_epsilon(run_result: RunResult) -> None:
    result = _with(run_result, privacy=replace(run_result.outcome.privacy, student=0.1))
    found = key_figures(replace(result, study=replace(result.study, noise_private=False)))[0]
    assert found.kind == "danger" and "not private: seeded noise" in found.details


def test_of_few_test_inputs_counts_are_told_and_without_any_none(run_result: RunResult) -> None:
    few = replace(run_result.outcome.accuracy, student=0.75, student_n=8)
    assert key_figures(_with(run_result, accuracy=few))[1].value == "6 of 8"
    none = replace(few, student=None, student_n=0)
    assert key_figures(_with(run_result, accuracy=none))[1].details == (
        "no public images with true labels tested it",
    )
