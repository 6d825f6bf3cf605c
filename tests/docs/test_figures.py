"""Figures in the pages: each is a stored result that its block names, or the block says why it is none.

A comment on the line before a paragraph, list or table says so: `<!-- figures: FILE, FILE -->` of
docs/results/, or `<!-- no result: REASON -->`. What docs/site/make.py makes inside of a page another test
holds. A figure is a number with %, points, or a unit of time or size, one after ±, an ε with two decimals or
more, and whatever stands under a table's head with %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import results_page
from make import PARTS

ROOT = Path(__file__).parents[2]
# Generated pages are held by other tests; a proof's shares are lemmas, and it names the test that measures; a
# report to Flower is about the limits in Flower's code.
ELSEWHERE = ("docs/reference/", "docs/results.md", "docs/proofs/", "docs/upstream/")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not str(page.relative_to(ROOT)).startswith(ELSEWHERE)
    ),
]
MARK = re.compile(r"<!-- (?:figures: (?P<files>[^>]+?)|no result: (?P<reason>[^>]{10,}?)) -->")
NUMBER = r"\d[\d,]*(?:\.\d+)?"
LIST = rf"{NUMBER}(?:(?:, | and | or | to | ± |/){NUMBER})*"
UNITS = r"%|points?\b|(?:µs|ms|s|min|minutes|seconds|KB|MB|GB|KiB|MiB|GiB)\b"
FIGURE = re.compile(rf"({LIST})\s?(?:{UNITS})|± ?({NUMBER})|ε ?=? ?(\d+\.\d\d+)")


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each paragraph, list or table without code, with the mark before it."""
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    for name in PARTS:
        text = re.sub(f"(?s)<!-- made: {name} -->.*<!-- end of {name} -->", "", text)
    for block in re.split(r"\n\s*\n", text):
        mark = re.match(r"(<!--[^\n]*-->)\n", block)
        yield (mark[1] if mark else ""), re.sub(r"<!--.*?-->", "", block, flags=re.S)


def _figures(block: str) -> list[str]:
    block = block.replace("95 % interval", "interval")
    found = [part for match in FIGURE.finditer(block) for part in match.groups() if part]
    table = [line.strip("| ").split("|") for line in block.splitlines() if line.startswith("|")]
    for row in table[2:]:
        found += [cell for name, cell in zip(table[0], row, strict=False) if "%" in name]
    return [number for part in found for number in re.findall(NUMBER, part)]


def _stored(name: str) -> set[str]:
    """How a result file's figures may be written: as in the page of results, or with fewer places."""
    result, found = results_page.read_results()[name], set[str]()
    for figure in result["figures"]:
        for values in (figure["mean"], figure["spread"]):
            for measure, value in values.items():
                if value is not None:
                    _, factor, places = results_page._MEASURES[measure]
                    found |= {f"{factor * value:,.{less}f}" for less in range(places + 1)}
        found |= {number for value in figure["of"].values() for number in re.findall(NUMBER, str(value))}
    return found


def _unstored(mark: str, block: str) -> list[str]:
    """The figures of a block that are neither in the files that it names nor excused."""
    told = MARK.fullmatch(mark)
    if told and told["reason"]:
        return []
    files = told["files"].split(", ") if told else []
    return [number for number in _figures(block) if not any(number in _stored(name) for name in files)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_is_a_stored_one_or_says_why_not(page: Path) -> None:
    for mark, block in _blocks(page.read_text(encoding="utf-8")):
        missing = _unstored(mark, block)
        assert not missing, f"{missing} in: {mark}\n{block}\n(see this test's first lines)"
        if MARK.fullmatch(mark):
            assert _figures(block), f"a mark without a figure: {mark}\n{block}"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("It is 87.6, 89.1 and 89.6 % right.", ["87.6", "89.1", "89.6"]),
        ("It took 12 s or 3.5 ± 0.2 minutes; 4 hospitals, ε 2, δ 1e-5.", ["12", "3.5", "0.2"]),
        ("ε=3.901, 1.6 to 2.4 points, 5.5 GB", ["3.901", "1.6", "2.4", "5.5"]),
        ("| of | right, % |\n| --- | --- |\n| 12 | 88.9 |", ["88.9"]),
    ],
)
def test_what_counts_as_a_figure(text: str, figures: list[str]) -> None:
    assert sorted(_figures(text)) == sorted(figures)
    assert _unstored("", text) and not _unstored("<!-- no result: it is an example -->", text)
    assert _unstored("<!-- no result: so -->", text)  # that is no reason


@pytest.mark.slow
def test_the_table_of_ε_is_what_the_command_below_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| .+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page)
    [code] = re.findall(r'(?ms)^python -c "\n(.*?)"\n```', page)
    exec(code, {})
    printed = [tuple(map(float, line.split())) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(printed) > 3
    for told, found in zip(rows, printed, strict=True):
        assert [float(each) for each in told] == [math.ceil(1000 * each) / 1000 for each in found]
