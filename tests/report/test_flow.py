"""The picture of who sees what: it is this study's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import vary
from report_page import Page
from saved_runs import LABELS, RECORD, SUMS

from pate_fed.report.html import render_report
from pate_fed.report.result import RunResult
from pate_fed.report.text import flow_of

SECURE = {"coordinator": "secure-sum", "secure_sum": True}
AT_HOME = {
    **SECURE,
    "coordinator": "hospital-noise",
    "noise_at": "hospitals",
    "colluders": 1,
    "sigma_party": 3.0,
}


@pytest.mark.parametrize(
    ("changes", "sent", "kind"),
    [
        ({}, "votes on public inputs, as they are", "none"),
        (SECURE, "masked votes: only their sum can be read", "none"),
        (AT_HOME, "masked votes with noise added at home", "none"),
    ],
)
def test_what_hospitals_send_is_said_of_each_way(
    run_result: RunResult, changes: dict[str, object], sent: str, kind: str
) -> None:
    home, coordinator, anyone = flow_of(replace(run_result, study=vary(run_result.study, **changes)))
    assert home.name == "250 hospitals" and home.sends == sent and not home.bound
    assert coordinator.kind == kind and "noise" in coordinator.sends + home.sends
    assert anyone.bound.startswith("ε = ") and anyone.kind == "finite" and "labels" in anyone.holds


def test_sums_and_private_labels_have_pictures_of_their_own(run_result: RunResult) -> None:
    sums = flow_of(replace(run_result, study=SUMS))
    assert "masked sums" in sums[0].sends and "sums" in sums[1].sends
    one = flow_of(replace(run_result, study=LABELS))
    assert one[0].name == "One place" and one[1].kind == "none"
    many = flow_of(replace(run_result, study=replace(LABELS, coordinator="noisy-labels", num_clients=4)))
    assert many[0].name == "4 hospitals" and "at home" in many[0].sends


def test_a_seeded_run_shows_no_bound(run_result: RunResult) -> None:
    seeded = flow_of(replace(run_result, study=replace(RECORD, noise_private=False)))
    assert seeded[-1].kind == "broken" and "seeded" in seeded[-1].bound


def test_it_is_in_both_reports(run_result: RunResult) -> None:
    for publishable in (False, True):
        words = Page(render_report(run_result, publishable=publishable)).words
        assert "votes on public inputs, as they are" in words and "keep records" in words
