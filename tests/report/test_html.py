"""report.html: one file, nothing from outside, every section, hostile text escaped, private figures told."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders import vary

from pate_fed.errors import InputError
from pate_fed.report.html import render_report, write_report
from pate_fed.report.log import PartyWork, RunLog, read_result
from pate_fed.report.plots import top_vote_histogram
from pate_fed.report.result import Accuracy, Evaluation, Outcome, PrivacyFigures, RunResult, Spending

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
VOID = {"meta", "img", "br", "hr", "input", "link", "rect", "line", "polyline", "circle"}


class Page(HTMLParser):
    """The page's tags, headings and text; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.headings: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID or (tag in {"rect", "circle"} and not self.rawdata_self_closed()):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words += data
        if self._open and self._open[-1] in {"h1", "h2", "h3"}:
            self.headings.append(data.strip())

    def rawdata_self_closed(self) -> bool:
        return (self.get_starttag_text() or "").endswith("/>")

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


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
    assert len(page.of("svg")) >= 7
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.of("svg"))
    assert all(image["alt"] for image in page.of("img"))
    assert all("scope" in head for head in page.of("th"))
    assert page.of("html")[0]["lang"] == "en"


def test_a_private_run_of_many_hospitals_has_no_alarm(page: Page) -> None:
    assert not [tag for tag in page.of("aside") if "danger" in tag["class"]]


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


PRIVATE = ("62.3%", "87.1%", "3.124", "◆", "party-017", "Agreement of the teachers", "votes for the winner")


def test_the_analyst_sees_marked_what_comes_from_private_votes(page: Page) -> None:
    for figure in PRIVATE:
        assert figure in page.words
    assert "do not publish" in page.words


def test_a_publishable_copy_has_none_of_it(run_result: RunResult) -> None:
    text = render_report(run_result, publishable=True)
    for figure in (*PRIVATE, "62.30%", "87.10%", "do not publish"):
        assert figure not in text
    assert "ε = 6." in text and "90.4%" in text and "Released labels against the truth" in text


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
    assert (
        "while at most 199 hospitals pool what they know with it (149 where it breaks the protocol)" in page
    )
    assert f"up to {colluders} hospitals may tell it their own noise" in page
    assert "σ = 3.024 votes of every hospital; counted on are the" in page
    assert bound in page


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


@pytest.mark.parametrize("classes", [2, 21, 150])
def test_any_number_of_classes_makes_a_matrix(run_result: RunResult, classes: int) -> None:
    confusion = tuple(
        tuple(7 if row == column else int((row + column) % 9 == 0) for column in range(classes))
        for row in range(classes)
    )
    result = replace(run_result, evaluation=Evaluation(confusion=confusion))
    assert "Released labels against the truth" in Page(render_report(result)).headings


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


def test_the_engines_share_is_told_where_it_is_known(run_result: RunResult) -> None:
    assert "14.0 s (3.9% of the run) were Flower" in render_report(run_result)
    assert "were Flower" not in render_report(replace(run_result, engine_seconds=None))


def test_spending_is_drawn_along_the_batches(run_result: RunResult) -> None:
    after_batches = Page(render_report(run_result)).words
    along = Spending(asked=(10, 999), answered=(4, 411), epsilon=(0.4321, 2.9))
    words = Page(render_report(replace(run_result, spending=along))).words
    assert "0.433" in words
    assert "0.433" not in after_batches


def test_hospitals_own_tables_are_no_images_dealt_out(run_result: RunResult) -> None:
    study = vary(
        run_result.study, inputs="rows", partition=None, test_size=19, backend="grpc", labels=1, max_queries=1
    )
    words = Page(render_report(replace(run_result, study=study))).words
    assert "10,000 rows" in words and "on 19 public test rows" in words
    assert "every hospital's own" in words and "a process for each hospital" in words
    assert "at 1 label or 1 query" in words
    assert "iid" not in words and "images are kept" not in words and "hard images" not in words


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


def test_one_pass_draws_no_curve(run_result: RunResult) -> None:
    headings = Page(render_report(replace(run_result, epochs=run_result.epochs[:1]))).headings
    assert "The student's losses" not in headings and "The student's test accuracy" not in headings


def test_counts_have_whole_ticks(run_result: RunResult) -> None:
    found = Evaluation(
        confusion=((1, 0), (0, 0)), top_edges=(0, 1, 2), top_answered=(0, 1), top_refused=(0, 0)
    )
    figure = top_vote_histogram(replace(run_result, evaluation=found))
    assert figure is not None
    ticks = re.findall(r">([0-9.]+)</text>", figure.picture)
    assert ticks and all("." not in tick for tick in ticks)
