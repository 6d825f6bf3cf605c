"""What is written by hand stays short: whoever adds a page takes words away elsewhere."""

from __future__ import annotations

from pathlib import Path

import make
import pytest

CEILING = 28_000


def test_what_is_written_by_hand_has_at_most_so_many_words() -> None:
    counts = make.words()
    assert sum(counts.values()) <= CEILING, f"{sum(counts.values()):,} words: see docs/site/make.py --words"


def test_words_of_marks_and_of_generated_pages_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    (docs / "reference").mkdir(parents=True)
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text("one two\n", encoding="utf-8")
    (docs / "reference" / "made.md").write_text("many more words\n", encoding="utf-8")
    page = "# A title\n\n<!-- run by this -->\nfour `of code`\n<!-- made: x -->\na b\n<!-- end of x -->\n"
    (docs / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(make, "DOCS", docs)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    assert make.words() == {
        "README.md": 2,
        "CONTRIBUTING.md": 2,
        "SECURITY.md": 2,
        str(Path("docs/page.md")): 6,
    }
