"""No sentence of the documentation is longer than it needs to be; proofs, which quote formulas, may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"reference", "proofs", "upstream"}  # generated, of formulas, and a report to Flower
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name not in ELSEWHERE),
]
MOST = 36  # words


def _sentences(text: str) -> Iterator[str]:
    """The sentences of prose and lists; tables, headings, code and links' addresses are none."""
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"(?m)^(\||#| {4}).*$", "\n", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        told = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()))
        yield from re.split(r"(?<=[.!?:;])\**\s+", told)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    long = [each for each in _sentences(page.read_text(encoding="utf-8")) if len(each.split()) > MOST]
    assert not long, "\n".join(long)


def test_what_counts_as_a_sentence() -> None:
    text = "# A title\n\n- One [link](a b c).\n- Two: three; four\n\n| a | b |\n\n```\ncode\n```\n"
    assert [each for each in _sentences(text) if each] == ["- One [link].", "- Two:", "three;", "four"]
