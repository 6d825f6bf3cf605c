"""Progress and summary: few plain lines, bars on a terminal, silence on request, no foreign escape codes."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from builders import vary

from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import Outcome, PrivacyFigures, RunResult
from pate_fed.report.terminal import (
    Step,
    _Lines,
    counted_phase,
    make_progress,
    print_summary,
    tell_progress,
)


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


def test_a_function_hears_what_is_shown_beside_it() -> None:
    stream, heard = io.StringIO(), list[Step]()
    progress = tell_progress(heard.append, make_progress(False, stream))
    with progress.phase("teaching", 2) as phase:
        phase.advance()
        phase.advance(note="last")
    progress.status("ε 1")
    assert [(step.phase, step.done, step.total, step.note) for step in heard] == [
        ("teaching", 0, 2, ""),
        ("teaching", 1, 2, ""),
        ("teaching", 2, 2, "last"),
        ("", 0, 0, "ε 1"),
    ]
    first, second = stream.getvalue().splitlines()
    assert first.startswith("teaching: 2/2 in ") and first.endswith("(last)") and second == "ε 1"


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
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    private = [line for line in lines if "62.3 %" in line or "87.1 %" in line]
    assert private == [
        "teachers ◆ 62.3 % 3,478 - 10.8 %",
        "ensemble ◆ 87.1 % 3,478 85.9 to 88.2 % 10.8 %",
    ]
    assert "◆ computed from private votes: for the analyst, do not publish" in lines
    outcome = replace(run_result.outcome, accuracy=Accuracy(student=0.9))
    print_summary(replace(run_result, outcome=outcome), again := io.StringIO())
    assert "◆" not in again.getvalue() and "student                      90 %        -" in again.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_summary_names_every_adversary(
    run_result: RunResult, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_summary(run_result, stream)
    text = stream.getvalue()
    for part in (
        "glyph-250",
        "hospitals 250, with 250 teachers",
        "1 left out",
        "unbounded: it sees every hospital's votes",
        "student 90.4 % 1,000 88.4 to 92.1 % 11.2 %",
        "least recall: G 60 of 98 98 51 to 70 %",
        "right n 95 % interval majority",
    ):
        assert part in " ".join(text.split())
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


@pytest.mark.parametrize("columns", ["80", "120"])
def test_bars_of_all_phases_align_with_epsilon_beside_them(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = make_progress(False, stream)
    with progress.phase("teaching", 1250) as teaching:
        teaching.advance(1250)
    with progress.phase("voting, batch 10", 5) as votes:
        progress.status("ε 1.234 of 2.758")
        votes.advance(5)
    with progress.phase("learning", 10) as learning:
        learning.advance(10)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    ends = [line.rstrip() for line in plain if re.search(r"(1,250/1,250|5/5|10/10)", line)]
    assert {len(line.split("━")[0]) for line in ends} == {22}  # where the bar begins
    assert {line.index("/") - len(line[: line.index("/")].rstrip("0123456789,")) > 0 for line in ends}
    assert {re.search(r"(\d+)/(\d+,?\d*)", line).end() for line in ends if line} == {  # type: ignore[union-attr]
        ends[0].index("1,250/1,250") + len("1,250/1,250")
    }
    assert ends[-1].endswith("ε 1.234 of 2.758") and max(map(len, plain)) <= int(columns)


def test_off_a_terminal_epsilon_is_a_line() -> None:
    make_progress(False, stream := io.StringIO()).status("ε 1.2 of 2.8")
    assert stream.getvalue() == "ε 1.2 of 2.8\n"


@pytest.mark.parametrize("columns", ["72", "80", "200"])
def test_the_table_keeps_its_columns_in_any_terminal(
    run_result: RunResult, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_summary(run_result, stream := Terminal())
    lines = stream.getvalue().splitlines()
    head = next(line for line in lines if "95 % interval" in line)
    for line in lines:
        if line.startswith(("labels ", "student ", "ensemble ", "  balanced", "  least")):
            assert line[head.index("95") - 2 : head.index("95")] == "  " and line[head.index("95")].isdigit()
    assert max(map(len, lines)) <= int(columns)


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars would show nothing there before the end of a phase."""
    monkeypatch.setenv("TERM", "dumb")
    with make_progress(False, stream := Terminal()).phase("teaching", 2) as phase:
        phase.advance(2)
    assert stream.getvalue().startswith("teaching: 2/2 in ")
