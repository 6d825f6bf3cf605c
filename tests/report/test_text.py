"""What the report says in words: alarms, adversaries, bounds, terms."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import vary
from report_page import Page

from pate_fed.report.accuracy import Accuracy
from pate_fed.report.html import render_report
from pate_fed.report.log import RunLog, read_result
from pate_fed.report.result import Outcome, PrivacyFigures, RunResult
from pate_fed.report.terminal import print_summary


def test_seeded_noise_is_loud(run_result: RunResult) -> None:
    study = vary(run_result.study, seed=0, noise_private=False, noise="seeded generator")
    page = Page(render_report(replace(run_result, study=study)))
    assert "Not private: seeded noise" in page.words
    assert "None: the noise was seeded" in page.words
    assert "would grow, with private noise," in page.words
    assert [tag for tag in page.of("aside") if "danger" in tag["class"]]


@pytest.mark.parametrize(("epsilon", "alarm"), [(10.0, False), (10.1, True), (4000.0, True)])
def test_a_large_epsilon_is_loud(run_result: RunResult, epsilon: float, alarm: bool) -> None:
    study = vary(run_result.study, num_clients=8, least_clients=7, sigma2=1.28)
    outcome = replace(run_result.outcome, privacy=PrivacyFigures(student=epsilon))
    words = Page(render_report(replace(run_result, study=study, outcome=outcome))).words
    assert ("promises almost nothing" in words) is alarm
    assert ("8 teachers can outvote only a little noise" in words) is alarm


@pytest.mark.parametrize("kind", ["plain", "secure-sum", "hospital-noise"])
def test_each_kind_of_coordinator_is_described(run_result: RunResult, kind: str) -> None:
    epsilon = 2.5 if kind == "hospital-noise" else None
    result = replace(
        run_result,
        study=vary(run_result.study, coordinator=kind, coordinator_sees=f"what {kind} shows"),
        outcome=replace(run_result.outcome, privacy=PrivacyFigures(student=1.5, coordinator=epsilon)),
    )
    words = Page(render_report(result)).words
    assert f"What {kind} shows" in words
    assert ("Unbounded" in words) is (epsilon is None)
    assert ("ε = 2.5, δ = 1e-5" in words) is (epsilon is not None)


@pytest.mark.parametrize(
    ("colluders", "bound"), [(25, "up to 25 hospitals may pool"), (0, "No bound is stated")]
)
def test_how_many_may_pool_what_they_know_is_said(run_result: RunResult, colluders: int, bound: str) -> None:
    study = vary(
        run_result.study,
        coordinator="hospital-noise",
        secure_sum=True,
        noise_at="hospitals",
        colluders=colluders,
        sigma_party=3.0237,
        seed=None,
    )
    page = Page(render_report(replace(run_result, study=study))).words
    assert "while at most 50 hospitals pool what they know with it (each masks with 98 others)" in page
    assert f"up to {colluders} hospitals may tell it their own noise" in page
    assert "σ = 3.024 votes of every hospital; counted on are the" in page
    assert bound in page


def test_a_run_that_was_stopped_at_once_has_a_report(run_result: RunResult) -> None:
    bare = RunResult(
        study=vary(run_result.study, classes=(), versions={}),
        outcome=Outcome(status="aborted", reason="stopped by the user", privacy=PrivacyFigures(student=0.0)),
    )
    words = Page(render_report(bare)).words
    assert "Stopped by the user." in words
    assert "Nothing was released, so nothing was spent." in words


def test_a_cut_off_run_names_no_epsilon(run_result: RunResult, tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(run_result.study)
        log.write(run_result.releases[0])
    words = Page(render_report(read_result(tmp_path))).words
    assert "unknown" in words and "pate-fed ledger show" in words and "No bound" in words


def test_a_success_without_a_bound_is_loud(run_result: RunResult) -> None:
    privacy = PrivacyFigures(student_reason="the ledger is empty")
    outcome = Outcome(status="success", accuracy=Accuracy(), privacy=privacy)
    words = Page(render_report(replace(run_result, outcome=outcome))).words
    assert "No privacy bound" in words and "unbounded" in words and "The ledger is empty." in words


@pytest.mark.parametrize(
    ("fixed", "words"), [(8.0, "fixed beforehand: ε = 8"), (500.0, "lies far above"), (None, "No bound")]
)
def test_what_was_fixed_beforehand_is_shown(run_result: RunResult, fixed: float | None, words: str) -> None:
    outcome = run_result.outcome
    privacy = replace(outcome.privacy, student=fixed, spent=6.1)
    assert words in render_report(replace(run_result, outcome=replace(outcome, privacy=privacy)))
    assert "none was set" in render_report(run_result)


@pytest.mark.parametrize(("epsilon", "factor"), [(3.9, "49.403"), (1.2, "3.3201"), (12.0, "162754.8")])
def test_a_factor_that_is_a_most_is_rounded_up(run_result: RunResult, epsilon: float, factor: str) -> None:
    privacy = replace(run_result.outcome.privacy, student=epsilon)
    page = render_report(replace(run_result, outcome=replace(run_result.outcome, privacy=privacy)))
    [shown] = re.findall(r"e\^ε = ([\d,.]+), plus", page)
    assert float(factor) < float(shown.replace(",", "")) < float(factor) + 1


def test_a_run_that_was_cut_off_still_keeps_its_promise(run_result: RunResult, tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(vary(run_result.study, guaranteed=4.5))
        log.write(run_result.releases[0])
    words = Page(render_report(read_result(tmp_path))).words
    assert "4.5" in words
    assert "cut off before its end" in words


def test_hospitals_own_tables_are_no_images_dealt_out(run_result: RunResult) -> None:
    study = vary(
        run_result.study, inputs="rows", partition=None, test_size=19, backend="grpc", labels=1, max_queries=1
    )
    words = Page(render_report(replace(run_result, study=study))).words
    assert "10,000 rows" in words and "on 1,000 public rows" in words
    assert "every hospital's own" in words and "a process for each hospital" in words
    assert "at 1 label or 1 query" in words
    assert "iid" not in words and "images are kept" not in words and "hard images" not in words


def test_cautions_are_shown_and_kept(run_result: RunResult, tmp_path: Path) -> None:
    caution = "The threshold refuses class b: of the inputs that the student takes for it 55% were answered."
    outcome = replace(run_result.outcome, cautions=(caution,))
    page = Page(render_report(replace(run_result, outcome=outcome), publishable=True))
    assert caution in page.words  # made of released figures alone, so it may be published
    assert caution not in Page(render_report(run_result)).words
    print_summary(replace(run_result, outcome=outcome), stream := io.StringIO())
    assert "The threshold refuses class b" in stream.getvalue()
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(run_result.study)
        log.write(outcome)
    assert read_result(tmp_path).outcome.cautions == (caution,)
