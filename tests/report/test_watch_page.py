"""A run under way as a page's parts: what is on it, and what never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_page import Page
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, save_run

from pate_fed.cli.watch_web import PARTS, render_parts, render_watch_page
from pate_fed.report.html import asset
from pate_fed.report.log import Waiting
from pate_fed.report.result import LeftOut
from pate_fed.report.watching import read_snapshot

PRIVATE = ("45.7", "2.346", "12.3", "do not publish", "Agreement")


def _parts(folder: Path, **settings: Any) -> dict[str, str]:
    return render_parts(read_snapshot(folder), folder, **settings)


def test_the_page_shows_what_goes_on(tmp_path: Path) -> None:
    late = Waiting(phase="vote", asked=10, answered=9, missing=("hospital-2",), patience_s=600.0)
    parts = _parts(save_run(tmp_path / "run", [*events()[:3], late]))
    assert 'aria-current="step"><strong>answer</strong><span>9 of 10' in parts["course"]
    assert "hospital-2" in parts["hospitals"] and "no answer within 600 s" in parts["hospitals"]
    assert "running" in parts["head"] and "begun" in parts["heard"]
    learns = _parts(save_run(tmp_path / "learns", events()[:9]))
    assert 'value="0.8571"' in learns["numbers"]  # 3 of 3.5
    assert "never above 3.5" in learns["numbers"] and "test accuracy" in learns["figures"]
    over = _parts(save_run(tmp_path / "over", events()))
    assert "success" in over["head"] and "Released labels by class" in over["figures"]
    assert ">42<" in over["figures"]


@pytest.mark.parametrize(("record", "head"), [(RECORD, "queries"), (SUMS, "features")])
def test_what_was_summed_is_no_query(tmp_path: Path, record: Any, head: str) -> None:
    told = _parts(save_run(tmp_path / "run", events(record)[:4]))["hospitals"]
    assert f'<th scope="col">{head}</th><th scope="col">time</th>' in told and "<td>200</td>" in told


@pytest.mark.parametrize("record", [RECORD, SUMS, LABELS])
def test_nothing_from_private_votes_without_analyst(tmp_path: Path, record: Any) -> None:
    folder = save_run(tmp_path / "run", events(record))
    page = Page(render_watch_page(read_snapshot(folder), folder))
    assert not any(private in page.words for private in PRIVATE)
    if record is RECORD:
        analyst = Page(render_watch_page(read_snapshot(folder), folder, analyst=True))
        assert all(private in analyst.words for private in PRIVATE)


def test_hostile_names_stay_text_and_nothing_is_inline(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">'
    left = LeftOut(party=evil, phase="vote", reason=evil)
    folder = save_run(tmp_path / "run", [RECORD, left, *events()[2:-1], make_outcome()])
    text = render_watch_page(read_snapshot(folder), folder)
    page = Page(text)
    assert evil in page.words
    for name, attributes in page.tags:
        assert not any(key.startswith("on") for key in attributes) and "style" not in attributes, name
        for key in ("src", "href"):
            assert attributes.get(key, "data:,") in ("data:,", "style.css", "watch.js")
    assert "<style" not in text and "http" not in asset("watch.js")


def test_before_the_study_begins_it_waits(tmp_path: Path) -> None:
    page = Page(render_watch_page(None, tmp_path))
    assert "It waits for the study to begin." in page.words
    assert {attributes.get("id") for _, attributes in page.tags} >= set(PARTS)
