"""Findings of one check."""

from __future__ import annotations

from pate_fed.cli.doctor.findings import OK, PROBLEM, WARNING, CheckResult, run_check


def test_a_check_that_fails_in_a_way_of_its_own_is_a_finding_and_ends_nothing() -> None:
    def broken() -> CheckResult:
        raise RuntimeError("P017 is 43 years old")

    (row,) = run_check("it", broken)
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "RuntimeError" in row.file_text
    (row,) = run_check("it", broken, private=True)
    assert "P017" in row.text and "P017" not in row.file_text


def test_warnings_stand_in_place_of_the_text_and_private_figures_in_no_file() -> None:
    (row,) = run_check("it", lambda: CheckResult("95 records", file_text="readable"), private=True)
    assert (row.severity, row.text, row.file_text, row.exit_code) == (OK, "95 records", "readable", 0)
    first, second = run_check("it", lambda: CheckResult("fine", ("one", "two")))
    assert [first.severity, second.severity] == [WARNING, WARNING]
    assert (first.text, second.file_text) == ("one", "two")
    (row,) = run_check("it", lambda: CheckResult(warnings=("no 3",)), private=True)
    assert row.text == "no 3" and "terminal only" in row.file_text
