"""The site: built strictly, without anything from elsewhere, and its search leads to the answers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

ROOT = Path(__file__).parents[2]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs MkDocs: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", "docs/site/mkdocs.yml", "-d"]
    done = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_it_is_built_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50 and (site / "deploy.html") in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?([^\s\">]+)", text)
        assert not [link for link in loaded if "://" in link], page.name


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


QUESTIONS = {
    "what is epsilon here": ("questions", "privacy"),
    "what is ε here": ("questions", "privacy"),
    "how many hospitals do I need": ("how-to/few-hospitals", "questions"),
    "how do I plug in my model": ("how-to/plug-in",),
    "why was nothing answered": ("questions",),
    "how do I go on after a crash": ("how-to/after-a-crash",),
    "what leaves my house": ("questions", "explanation/adversaries"),
    "GPU": ("how-to/gpu",),
    "cluster": ("cluster",),
    "how do I cite it": ("how-to/cite",),
    "how do I upgrade": ("how-to/upgrade",),
}
_FIRST = "li.md-search-result__item > a.md-search-result__link"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=found, args=["--no-sandbox"])


def _first(page: Any, base: str, question: str) -> str:
    """The page that the search shows first."""
    page.goto("about:blank")
    page.goto(f"{base}/index.html?q={quote(question)}")
    page.wait_for_selector(".md-search-result__meta:has-text('matching') >> visible=true", timeout=60_000)
    page.wait_for_selector(_FIRST, timeout=60_000)
    link: str = page.eval_on_selector(_FIRST, "link => link.href")
    return link.removeprefix(f"{base}/").partition(".html")[0]


@pytest.mark.browser
def test_the_search_leads_to_the_page_that_answers(served: str, browser: Any) -> None:
    page, asked = browser.new_page(), set()
    page.on("request", lambda request: asked.add(request.url))
    found = {question: _first(page, served, question) for question in QUESTIONS}
    assert not {question: first for question, first in found.items() if first not in QUESTIONS[question]}
    assert all(url.startswith((served, "about:")) for url in asked)


@pytest.mark.browser
def test_the_search_works_from_the_disk(site: Path, browser: Any) -> None:
    page, asked = browser.new_page(), set()
    page.on("request", lambda request: asked.add(request.url))
    assert _first(page, site.as_uri(), "GPU") == "how-to/gpu"
    assert all(url.startswith(("file:", "about:")) for url in asked)
