"""report.html: one file, nothing from outside, every section, hostile text escaped, private figures told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import vary
from report_page import Page

from pate_fed.errors import InputError
from pate_fed.report.html import render_report, write_report
from pate_fed.report.log import PartyWork, RunLog, read_result
from pate_fed.report.result import RunResult
from pate_fed.report.text import to_a_patient_of

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = (
    "Who is protected against whom",
    "The study's terms",
    "Privacy spent",
    "Agreement of the teachers",
    "Accuracy",
    "Released labels against the truth",
    "The student's test accuracy",
    "The student's losses",
    "The labels that it learns from",
    "The labels in dispute",
    "What the generator draws",
    "Time by phase",
    "Versions and resources",
)


@pytest.fixture
def page(run_result: RunResult) -> Page:
    return Page(render_report(run_result))


def test_nothing_comes_from_outside(run_result: RunResult) -> None:
    text = render_report(run_result)
    page = Page(text)
    names = {name for name, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base", "audio", "video"}
    for name, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"):
            assert attributes.get(key, "data:").startswith("data:"), (name, attributes)
        assert not any(key.startswith("on") for key in attributes)
        assert "url(" not in attributes.get("style", "")
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text


def test_the_page_forbids_scripts_and_loading(page: Page) -> None:
    (policy,) = [
        meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'") and "script" not in policy


def test_every_section_is_there(page: Page) -> None:
    assert page.headings[0] == "glyph-250"
    for section in SECTIONS:
        assert section in page.headings


def test_it_says_who_is_protected_against_whom(page: Page) -> None:
    for part in (
        "Anyone who gets the student or its labels",
        "The coordinator",
        "Unbounded: no promise",
        "Every hospital's votes",
        "The other hospitals",
        "δ = 1e-5",
        "one record replaced (one vote of a query moves)",
        "replace-one",
        "data-dependent ε (do not publish) = 3.124",
    ):
        assert part in page.words


def test_pictures_have_words_and_tables_have_heads(page: Page) -> None:
    pictures = [svg for svg in page.of("svg") if svg.get("aria-hidden") != "true"]
    assert len(pictures) >= 7
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    assert all(image["alt"] for image in page.of("img"))
    assert all("scope" in head for head in page.of("th"))
    assert page.of("html")[0]["lang"] == "en"


def test_a_private_run_of_many_hospitals_has_no_alarm(page: Page) -> None:
    assert not [tag for tag in page.of("aside") if "danger" in tag["class"]]


def test_hostile_text_stays_text(run_result: RunResult) -> None:
    evil = '<script>alert("x")</script>'
    quote = '"><img src=http://evil.example/x onerror=alert(1)>'
    names = tuple(quote + str(number) for number in range(10))
    hostile = replace(
        run_result,
        study=vary(
            run_result.study,
            terms=vary(run_result.study.terms, study=evil, classes=names),
            dataset=quote,
            protects=evil,
            coordinator_sees=evil,
            noise=quote,
            versions={evil: quote},
        ),
        outcome=replace(run_result.outcome, status="failed", reason=evil),
        left_out=tuple(replace(left, party=evil, reason=quote) for left in run_result.left_out),
        epochs=tuple(replace(epoch, values={evil + "loss": 1.0}) for epoch in run_result.epochs),
    )
    page = Page(render_report(hostile))
    assert "script" not in {name for name, _ in page.tags}
    assert all(image["src"].startswith("data:image/png") for image in page.of("img"))
    assert evil in page.words


PRIVATE = (
    "62.3 %",
    "87.1 %",
    "85.9 %",
    "3.124",
    "◆",
    "party-017",
    "Agreement of the teachers",
    "votes for the winner",
)


def test_the_analyst_sees_marked_what_comes_from_private_votes(page: Page) -> None:
    for figure in PRIVATE:
        assert figure in page.words
    assert "do not publish" in page.words


def test_a_publishable_copy_has_none_of_it(run_result: RunResult) -> None:
    text = render_report(run_result, publishable=True)
    for figure in (*PRIVATE, "62.30", "87.10", "do not publish"):
        assert figure not in text
    assert "ε = 6." in text and "90.4 %" in text and "Released labels against the truth" in text


def test_the_sanitised_figure_may_be_published(run_result: RunResult) -> None:
    privacy = replace(run_result.outcome.privacy, sanitised=4.00001, sanitised_sd=0.25)
    outcome = replace(run_result.outcome, privacy=privacy)
    result = replace(run_result, outcome=outcome)
    assert "4.001 (standard deviation of its noise 0.250)" in render_report(result)
    text = render_report(result, publishable=True)
    assert "4.001" in text
    assert "0.250" not in text  # a function of the votes
    assert "in one direction" in text
    # Its noise is centred: half of all draws are below the figure that they stand for.
    assert "It is a reading and no bound" in text


def test_equal_results_give_equal_reports(run_result: RunResult) -> None:
    assert render_report(run_result) == render_report(replace(run_result))


def test_the_report_comes_from_the_run_directory_alone(run_result: RunResult, tmp_path: Path) -> None:
    assert run_result.samples is not None and run_result.engine_seconds is not None
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(run_result.study)
        log.write(PartyWork(seconds=230.1, engine_seconds=run_result.engine_seconds))
        for event in (*run_result.releases, *run_result.left_out, *run_result.epochs):
            log.write(event)
        log.write(run_result.evaluation)
        log.write(run_result.samples)
        log.write(run_result.outcome)
    read = replace(read_result(tmp_path), started=run_result.started, ended=run_result.ended)
    assert render_report(read) == render_report(run_result)


def test_writing_is_whole_or_not_at_all(run_result: RunResult, tmp_path: Path) -> None:
    write_report(run_result, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_report(run_result)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="cannot be written"):
        write_report(run_result, tmp_path / "nowhere" / "report.html")


def test_importing_the_room_is_light() -> None:
    code = (
        "import sys, pate_fed.report.html, pate_fed.report.log, pate_fed.report.metrics, "
        "pate_fed.report.terminal\n"
        "heavy = {'torch', 'ray', 'flwr', 'matplotlib', 'jinja2', 'rich', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("coordinator", [None, 4.0])
@pytest.mark.parametrize("publishable", [False, True])
def test_the_report_says_in_one_sentence_whom_the_study_protects(
    run_result: RunResult, coordinator: float | None, publishable: bool
) -> None:
    privacy = replace(run_result.outcome.privacy, coordinator=coordinator)
    result = replace(run_result, outcome=replace(run_result.outcome, privacy=privacy))
    told = to_a_patient_of(result)
    assert told in Page(render_report(result, publishable=publishable)).words
    assert ("which no ε covers" in told) == (coordinator is None)
