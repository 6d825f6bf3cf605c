"""Progress and summary: few plain lines, bars on a terminal, silence on request, no foreign escape codes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from builders import vary

from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import Outcome, PrivacyFigures, RunResult
from pate_fed.report.terminal import _Lines, counted_phase, make_progress, print_summary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quiet_shows_nothing() -> None:
    stream = Terminal()
    progress = make_progress(True, stream)
    with progress.phase("teaching", 3) as phase:
        phase.advance()
        phase.advance(2, note="x")
    progress.log("something")
    assert stream.getvalue() == ""


def test_a_quick_phase_is_one_plain_line() -> None:
    stream = io.StringIO()
    with make_progress(False, stream).phase("teaching", 250) as phase:
        for _ in range(250):
            phase.advance()
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("teaching: 250/250 in ")


@pytest.mark.parametrize("step_s", [0.01, 0.5, 3.0, 60.0])
def test_plain_lines_are_at_most_one_for_a_tenth_and_for_ten_seconds(step_s: float) -> None:
    stream, clock = io.StringIO(), Clock()
    with _Lines(stream, clock).phase("voting", 100) as phase:
        for _ in range(100):
            clock.now += step_s
            phase.advance(note="batch 1")
    lines = stream.getvalue().splitlines()
    assert len(lines) <= min(11, 1 + step_s * 100 / 10)
    assert lines[-1].startswith("voting: 100/100") and lines[-1].endswith("(batch 1)")
    if step_s == 3.0:
        assert lines[0] == "voting: 10/100, about 4 min 30 s left (batch 1)"


def test_a_phase_that_fails_says_how_far_it_came() -> None:
    stream = io.StringIO()
    with pytest.raises(RuntimeError), make_progress(False, stream).phase("voting", 4) as phase:
        phase.advance()
        raise RuntimeError
    assert stream.getvalue().startswith("voting: 1/4 in ")


def test_bars_on_a_terminal_count_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = make_progress(False, stream)
    with progress.phase("voting", 5) as votes, progress.phase("releasing", 2) as releases:
        votes.advance(5, note="batch [bold]1")
        progress.log("party-3 was left out: late\x1b[2J")
        releases.advance(2)
    with progress.phase("learning", 1) as learning:
        learning.advance()
    text = stream.getvalue()
    for part in (
        "voting",
        "5/5",
        "releasing",
        "2/2",
        "learning",
        "1/1",
        "batch [bold]1",
        "party-3 was left out",
    ):
        assert part in text
    assert "\x1b[2J" not in text


def test_the_summary_marks_what_comes_from_private_votes(run_result: RunResult) -> None:
    print_summary(run_result, stream := io.StringIO())
    (line,) = [line for line in stream.getvalue().splitlines() if "62.3 %" in line or "87.1 %" in line]
    private = "ensemble 87.1 % right (n 3,478, 85.9 to 88.2 %; majority 10.8 %)"
    assert line.strip() == f"◆ teachers 62.3 %, {private} (from private votes: do not publish)"
    outcome = replace(run_result.outcome, accuracy=Accuracy(student=0.9))
    print_summary(replace(run_result, outcome=outcome), again := io.StringIO())
    assert "◆" not in again.getvalue() and "student 90 % right" in again.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_summary_names_every_adversary(
    run_result: RunResult, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_summary(run_result, stream)
    text = stream.getvalue()
    for part in (
        "glyph-250",
        "250 hospitals",
        "1 left out",
        "unbounded: it sees every hospital's votes",
        "student 90.4 % right (n 1,000, 88.4 to 92.1 %; majority 11.2 %)",
        "least recall: G, 60 of 98 right (51 to 70 %)",
    ):
        assert part in text
    assert "not private" not in text
    assert "party-017" not in text
    assert "3.12" not in text  # the data-dependent figure is not for the terminal


def test_the_summary_of_a_run_without_protection(run_result: RunResult) -> None:
    stream = io.StringIO()
    reason = "the quorum was not reached"
    outcome = Outcome(status="failed", reason=reason, privacy=PrivacyFigures(student_reason=reason))
    study = vary(run_result.study, noise_private=False, noise="seeded noise")
    print_summary(replace(run_result, study=study, outcome=outcome), stream)
    assert "not private: seeded noise" in stream.getvalue()
    assert f"unknown ({reason})" in stream.getvalue()
    assert "failed" in stream.getvalue()


def test_where_nothing_was_asked_nothing_is_called_fixed_beforehand(run_result: RunResult) -> None:
    for releases, said in ((run_result.releases, True), ((), False)):
        stream = io.StringIO()
        privacy = replace(run_result.outcome.privacy, spent=0.0)
        outcome = replace(run_result.outcome, privacy=privacy)
        print_summary(replace(run_result, outcome=outcome, releases=releases), stream)
        assert ("fixed beforehand" in stream.getvalue()) is said


def test_a_counted_phase_shows_only_where_something_is_reported() -> None:
    stream = io.StringIO()
    with counted_phase(make_progress(False, stream), "drawing") as report:
        assert stream.getvalue() == ""
        report(3, 10)
        report(10, 10)
    assert "drawing: 10/10" in stream.getvalue()
    silent = io.StringIO()
    with counted_phase(make_progress(False, silent), "drawing"):
        pass
    assert silent.getvalue() == ""


def test_a_cap_on_queries_that_came_before_the_labels_is_told_with_what_to_do(run_result: RunResult) -> None:
    def told(asked: int, answered: int) -> str:
        terms = vary(run_result.study.terms, labels=500, max_queries=1250)
        release = replace(run_result.releases[0], asked=asked, answered=answered)
        study = replace(run_result.study, terms=terms)
        stream = io.StringIO()
        print_summary(replace(run_result, study=study, releases=(release,)), stream)
        return stream.getvalue()

    text = told(1250, 444)
    assert "All 1,250 queries were asked for 444 of 500 labels" in text
    assert "lower --threshold, which costs no ε" in text and "larger --max-queries" in text
    # Not where the labels were reached, nor where something else ended the questions.
    assert "queries were asked for" not in told(1250, 500) + told(1100, 444)
