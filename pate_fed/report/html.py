"""`report.html`: one file that needs nothing from outside, runs no script, and fits phone and paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pate_fed.disk import write_result
from pate_fed.format import duration_text, epsilon_text
from pate_fed.report import curves, plots, quality, text
from pate_fed.report.page import in_columns, render_page
from pate_fed.report.plain_words import glossary, plain_answers
from pate_fed.report.png import contact_sheet, data_uri
from pate_fed.report.result import RunResult


def write_report(result: RunResult, path: Path, publishable: bool = False) -> None:
    """Write the report at once; `publishable` leaves out every figure computed from private votes.

    Raises:
        InputError: the file cannot be written.
    """
    write_result(path, render_report(result, publishable=publishable).encode())


def render_report(result: RunResult, *, publishable: bool = False) -> str:
    """The report's text; equal results give equal text."""
    return render_page("report.html.jinja", _context(result, publishable=publishable))


def _context(result: RunResult, *, publishable: bool) -> dict[str, Any]:
    notes = text.banners(result, publishable=publishable)
    return {
        "result": result,
        "study": result.study,
        "outcome": result.outcome,
        "publishable": publishable,
        "alarms": [note for note in notes if note.kind == "danger"],
        "notes": [note for note in notes if note.kind != "danger"],
        "key_figures": text.key_figures(result),
        "guarantees": text.guarantees(result),
        "lead": text.protection_lead(result),
        "flow": text.flow_of(result),
        "plain": plain_answers(result) if publishable else [],
        "glossary": glossary(result) if publishable else [],
        "terms": text.describe_terms(result),
        "groups": _groups(result, publishable=publishable),
        "time": None if publishable else plots.time_bars(result),
        "hidden": [] if publishable else text.unpublishable(result),
        "sanitised": _sanitised(result, publishable=publishable),
        "duration": duration_text(result.outcome.seconds.total),
        "versions": sorted(result.study.versions.items()),
    }


def _groups(result: RunResult, *, publishable: bool) -> list[tuple[str, list[list[plots.Figure]]]]:
    """Titles, each with its figures in columns."""
    agreement = None if publishable else plots.top_vote_histogram(result)
    accuracy = quality.accuracy_bars(result, publishable=publishable)
    matrix, curve = plots.confusion_matrix(result), curves.test_accuracy_curve(result)
    sure = quality.calibration_curve(result)
    privacy = ("Privacy over the run", [plots.epsilon_curve(result), agreement])
    good = ("How good it is", [accuracy, quality.recall_bars(result), sure, matrix, curve])
    learnt = ("How the student learnt", [*curves.learning_curves(result), _samples(result)])
    groups: list[tuple[str, Sequence[plots.Figure | None]]] = (
        [good, privacy] if publishable else [privacy, good, learnt]
    )
    return [(title, in_columns(figures)) for title, figures in groups]


def _samples(result: RunResult) -> plots.Figure | None:
    """What the generator draws, in whole rows, so that no corner stays empty."""
    if result.samples is None or not len(result.samples.images):
        return None
    images = result.samples.images
    columns = next((number for number in range(16, 7, -1) if len(images) % number == 0), 8)
    images = images[: max(len(images) // columns * columns, min(len(images), columns))]
    uri = data_uri(contact_sheet(images, columns=columns))
    alt = f"{len(images)} images drawn by the student's generator"
    return plots.Figure(
        title="What the generator draws",
        picture=f'<img class="samples" src="{uri}" alt="{alt}">',
        caption=f"{len(images)} images from noise; the generator learnt from public images and released "
        "labels.",
    )


def _sanitised(result: RunResult, *, publishable: bool) -> str | None:
    privacy = result.outcome.privacy
    if privacy.sanitised is None:
        return None
    # The noise is scaled by the votes' own smooth sensitivity, so its size is for the analyst alone.
    sd = None if publishable else privacy.sanitised_sd
    spread = "" if sd is None else f" (standard deviation of its noise {sd:.3f})"
    return epsilon_text(privacy.sanitised) + spread
