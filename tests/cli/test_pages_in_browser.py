"""Our pages in a real browser: they read well at any width, axe-core finds no serious fault, news arrive.

A Chromium on the PATH is taken, or PATE_FED_CHROMIUM names one, or the one that `playwright install chromium`
brought. `pytest -m browser` runs these; without a browser they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, make_study, save_run

from pate_fed.cli.main import main
from pate_fed.identity import Admission
from pate_fed.identity.admission import login_name
from pate_fed.report.accuracy import Calibration
from pate_fed.report.html import write_report
from pate_fed.report.log import RunLog, Waiting, read_result

pytestmark = [
    pytest.mark.browser,
    # Playwright's pipes to a browser that has ended are closed by the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WIDTHS = (1200, 768, 400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("PATE_FED_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as driver:
        try:
            # Nothing but our own pages is opened, and in containers the sandbox has no rights to start.
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(
                f"no browser (playwright install chromium, or PATE_FED_CHROMIUM): {error.message[:80]}"
            )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Votes, class sums, private labels, and a failed run that was seeded."""
    folder = tmp_path_factory.mktemp("runs")
    outcome = make_outcome()
    sure = Calibration(bins=((100, 60, 0.5), (400, 390, 0.96)), by_class=((240.0, 250), (260.0, 250)))
    outcome = replace(outcome, accuracy=replace(outcome.accuracy, calibration=sure))
    save_run(folder / "votes", events(outcome=outcome), study=make_study())
    save_run(folder / "sums", events(SUMS))
    save_run(folder / "labels", events(LABELS))
    failed = replace(make_outcome(epsilon=40.0), status="failed", reason="too few hospitals answered")
    save_run(folder / "failed", events(replace(RECORD, noise_private=False), failed))
    return folder


@pytest.fixture(scope="module")
def pages(runs: Path) -> dict[str, Path]:
    """The files of every kind of page, by name."""
    found: dict[str, Path] = {}
    for run in sorted(runs.iterdir()):
        for publishable in (False, True):
            path = run / f"report-{publishable}.html"
            write_report(read_result(run), path, publishable=publishable)
            found[f"{run.name}-{'publishable' if publishable else 'report'}"] = path
    compared = runs / "votes" / "compare.html"
    assert main(["compare", str(runs / "votes"), str(runs / "failed"), "--html", str(compared)]) == 0
    assert main(["report", str(runs / "votes"), "--papers", str(runs / "papers")]) == 0
    papers = {path.stem: path for path in (runs / "papers").glob("*.html")}
    assert len(papers) == 4
    return {**found, **papers, "compare": compared}


PAGES = [
    *(f"{run}-{kind}" for run in ("votes", "sums", "labels", "failed") for kind in ("report", "publishable")),
    "compare",
]


def _require_no_serious_fault(page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    serious = [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:160]})"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert not serious, serious


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_serious_fault(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    # axe-core is put into the page, whose own policy would refuse it.
    context = browser.new_context(
        bypass_csp=True, color_scheme=scheme, viewport={"width": 1200, "height": 900}
    )
    page = context.new_page()
    page.goto(pages[name].as_uri())
    _require_no_serious_fault(page)
    page.set_viewport_size({"width": 400, "height": 800})
    _require_no_serious_fault(page)
    context.close()


# Text of a picture shrinks with it; what is smaller than this nobody reads.
SMALLEST_TEXT = """() => Math.min(99, ...Array.from(document.querySelectorAll("svg text"), (text) => {
  const picture = text.ownerSVGElement;
  const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}))"""

# Labels of marks and axes in the way of each other.
TEXT_ON_TEXT = """() => {
  const met = [];
  for (const picture of document.querySelectorAll("figure svg")) {
    const place = (each) => [each, each.getBoundingClientRect()];
    const texts = Array.from(picture.querySelectorAll("text"), place);
    for (const [at, [one, a]] of texts.entries()) {
      for (const [other, b] of texts.slice(at + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && high > 4) met.push(`${one.textContent} / ${other.textContent}`);
      }
    }
  }
  return met;
}"""


@pytest.mark.parametrize("name", PAGES)
def test_it_reads_well_at_any_width_and_loads_nothing(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(pages[name].as_uri())
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        smallest = page.evaluate(SMALLEST_TEXT)
        assert smallest >= 7, f"{smallest} px at {width}"
        assert page.evaluate(TEXT_ON_TEXT) == [], width
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    page.close()


@pytest.mark.parametrize("name", ["votes-report", "votes-publishable", "compare"])
def test_it_prints_on_a4(browser: Any, pages: dict[str, Path], name: str) -> None:
    page = browser.new_page()
    page.goto(pages[name].as_uri())
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert printed.startswith(b"%PDF") and b"/Count" in printed
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 695, "height": 1000})  # what A4 leaves between the margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 695
    page.close()


class Served:
    """A command that prints the address of its pages, and serves them until it is ended."""

    def __init__(self, *command: str) -> None:
        whole = [sys.executable, "-m", "pate_fed.cli", *command]
        self._process = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)


class Watched(Served):
    """`pate-fed watch --web` of a run that is written step by step."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        super().__init__("watch", str(folder), "--web", *options)

    def write(self, *told: Any) -> None:
        with RunLog(self.folder / "log.jsonl") as log:
            for event in told:
                log.write(event)


def test_news_of_a_run_arrive_by_themselves(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(make_study().to_toml(), encoding="utf-8")
    told = events()
    with Watched(tmp_path) as watched:
        page, asked, faults = browser.new_page(), list[str](), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: faults.append(message.text))
        page.goto(watched.url)
        page.get_by_text("It waits for the study to begin.").wait_for()
        watched.write(told[0])
        watched.write(Waiting(phase="connect", asked=10, answered=9, missing=("west",), patience_s=60.0))
        page.get_by_text("9 of 10 connected; not yet: west").wait_for()
        watched.write(*told[1:3])
        page.locator("#course .now", has_text="answer").wait_for()
        watched.write(Waiting(phase="vote", asked=10, answered=9, missing=("hospital-2",), patience_s=60.0))
        page.get_by_text("9 of 10 hospitals answered (vote); not yet: hospital-2").wait_for()
        watched.write(*told[3:9])
        page.locator("#course .now", has_text="epoch 3").wait_for()
        page.get_by_text("The numbers").first.click()
        watched.write(told[9])
        page.locator("#course .now", has_text="epoch 4").wait_for()
        assert page.locator("details[open]").count() == 1  # what was opened stays open
        watched.write(*told[10:])
        page.locator("#head .status", has_text="success").wait_for()
        assert page.locator("#line").is_hidden() and not faults
        assert all(url.startswith((watched.url, "data:")) for url in asked), asked
        assert "45.7" not in page.content() and "2.346" not in page.content()
        page.close()


def test_a_broken_line_is_told(browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    with Watched(save_run(tmp_path / "run", events()[:9])) as watched:
        page.goto(watched.url)
        page.locator("#course .now", has_text="epoch 3").wait_for()
        assert page.locator("#line").is_hidden()
    page.locator("#line").wait_for(state="visible")
    page.close()


@pytest.mark.parametrize("run", ["votes", "failed"])
def test_the_watched_page_has_no_serious_fault_at_any_width(browser: Any, runs: Path, run: str) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    with Watched(runs / run, "--analyst") as watched:
        page.goto(watched.url)
        page.locator("#figures figure").first.wait_for()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(TEXT_ON_TEXT) == []
            _require_no_serious_fault(page)
        assert "2.346" in page.content()
    context.close()


def _tab_to(page: Any, name: str) -> None:
    """Press Tab until the focus stands on what has that name, where it is seen."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = "document.activeElement"
        names = f"[...({focus}.labels || []), {focus}].map((each) => each.textContent.trim()).join(' ')"
        if name in page.evaluate(names):
            assert page.evaluate(f"parseFloat(getComputedStyle({focus}).outlineWidth)") >= 2
            return
    raise AssertionError(f"no Tab leads to {name}")


SECTIONS = ("The study", "Rehearsal", "What left", "Account", "The student")


def _enter(page: Any) -> None:
    with page.expect_navigation():
        page.keyboard.press("Enter")


def test_a_no_and_a_whole_consent_by_keyboard_alone(
    browser: Any, demonstration: Path, masked: dict[str, str], own: Path
) -> None:
    options = ("--data", str(demonstration / "north.csv"), "--pool", str(demonstration / "pool.csv"))
    with Served("hospital", "open", "own/north.admission", "--dir", "own", *options) as served:
        page, asked, faults = browser.new_page(), list[str](), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: faults.append(message.text))
        page.goto(served.url)
        page.wait_for_url("**/study")  # it goes on by itself
        assert served.url.rsplit("/", 1)[1] not in page.url and page.evaluate("document.cookie") == ""
        before = sorted(path.name for path in own.iterdir())
        _tab_to(page, "No: accept nothing")
        _enter(page)
        page.get_by_text("not accepted: nothing was changed, and nobody was told").wait_for()
        assert sorted(path.name for path in own.iterdir()) == before

        _tab_to(page, "Rehearsal")
        _enter(page)
        _tab_to(page, "Rehearse")
        _enter(page)
        for _ in range(20):
            if not page.get_by_text("Look again").count():
                break
            _enter(page)  # the focus stands on it
        assert "all that this rehearsal made is erased" in page.locator("main").inner_text()

        _tab_to(page, "The study")
        _enter(page)
        for label, text in (
            ("The authority's fingerprint", Admission.read(own / "north.admission").words),
            ("What east reads to you", masked["east"]),
            ("What west reads to you", masked["west"]),
            ("Your login name", login_name()),
            ("Type yes to accept", "yes"),
        ):
            _tab_to(page, label)
            page.keyboard.type(text)
        _enter(page)
        page.get_by_text("accepted by").wait_for()
        assert (own / "consent.jsonl").exists() and (own / "admission.json").exists()
        assert not faults and all(url.startswith((served.url.rsplit("/", 1)[0], "data:")) for url in asked)
        stolen = browser.new_context().new_page()
        for address in (served.url, page.url):
            assert stolen.goto(address).status == 403
        stolen.context.close()
        page.close()


def test_no_other_page_sends_the_consent(browser: Any, masked: dict[str, str], own: Path) -> None:
    """Neither of another site, nor of another server on loopback, where cookies are the same site's."""
    with Served("hospital", "open", "own/north.admission", "--dir", "own") as served:
        context = browser.new_context()
        page = context.new_page()
        page.goto(served.url)
        page.wait_for_url("**/study")  # it goes on by itself
        action, before = page.url, sorted(path.name for path in own.iterdir())
        names = ("form", "digest")
        values = {name: page.locator(f"input[name={name}]").first.input_value() for name in names}
        given = {**values, "user": login_name(), "yes": "yes", "answer": "yes"}  # all but where it comes from
        inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in given.items())
        text = f'<form method="post" action="{action}">{inputs}<button>Send</button></form>'
        for origin in ("http://127.0.0.1:9/", "http://evil.example/"):
            page = context.new_page()
            page.route(origin, lambda route: route.fulfill(body=text, content_type="text/html"))
            page.goto(origin)
            with page.expect_response(action) as sent:
                page.get_by_role("button").click()
            assert sent.value.status == 403
            assert sorted(path.name for path in own.iterdir()) == before
        context.close()


def test_a_hospitals_pages_have_no_serious_fault_at_any_width(
    browser: Any, masked: dict[str, str], own: Path
) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    with Served("hospital", "open", "own/north.admission", "--dir", "own") as served:
        for scheme in ("light", "dark"):
            if scheme == "light":
                context = browser.new_context(bypass_csp=True)
                page = context.new_page()
                page.goto(served.url)
                page.wait_for_url("**/study")  # it goes on by itself
            page.emulate_media(color_scheme=scheme)
            for section in SECTIONS:
                page.get_by_role("link", name=section, exact=True).click()
                page.wait_for_load_state()
                for width in (1200, 360):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                    _require_no_serious_fault(page)
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 695, "height": 1000})
        assert page.evaluate("document.documentElement.scrollWidth") <= 695
        context.close()
