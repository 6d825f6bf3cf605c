"""Links between pages lead somewhere, here and on the site; pages stand in the site's list once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "deploy/README")),
    *sorted(DOCS.rglob("*.md")),
]
CODE = re.compile(r"(?ms)^```.*?^```$|`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _links(page: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in link:
            yield link


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as sites and repositories make them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    heads = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{link}: no such file"
        assert not anchor or anchor in _anchors(there), f"{link}: no such heading in {there.name}"


def test_every_page_stands_in_the_site_s_list_once() -> None:
    settings = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+(?:\.md|/))$", settings, re.M)
    assert len(listed) == len(set(listed))
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        assert str(name) in listed or f"{name.parent}/" in listed, f"{name} is not in docs/site/mkdocs.yml"


def test_nothing_is_fetched_by_the_site() -> None:
    for path in (DOCS / "site" / "mkdocs.yml", *(DOCS / "assets").iterdir()):
        text = re.sub(r'xmlns="[^"]+"', "", path.read_text(encoding="utf-8"))
        assert "://" not in text, f"{path.name} names another place"
