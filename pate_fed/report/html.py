"""`report.html`: one file that needs nothing from outside, runs no script, and fits phone and paper."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_result
from pate_fed.format import delta_text, duration_text, epsilon_text, share_text
from pate_fed.privacy.protection import PATIENT_UNIT, RECORD_UNIT
from pate_fed.report import figures, plots, text
from pate_fed.report.plots import Figure
from pate_fed.report.result import RunResult

_TEXT = 60  # letters of a caption in one line of a card
_LINE = 20.0  # a line's height, in units of the pictures
_CARD = 90.0  # title, legend and margins


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """A template of this room, filled in; `style` is the report's style sheet."""
    return str(_environment().get_template(template).render(style=asset("report.css"), **values))


def in_columns(figures: Sequence[Figure | None]) -> list[list[Figure]]:
    """Figures in two columns of about the same height, in one where there is but one; Nones are left out.

    Cards of unlike height side by side leave large empty ones.
    """
    shown = [figure for figure in figures if figure]
    if len(shown) < 2:
        return [shown] if shown else []
    columns: tuple[list[Figure], list[Figure]] = ([], [])
    heights = [0.0, 0.0]
    for figure in shown:
        place = heights.index(min(heights))
        columns[place].append(figure)
        found = re.search(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', figure.picture)
        height = float(found[1]) if found else _CARD
        heights[place] += _CARD + height + _LINE * (len(figure.caption) // _TEXT)
    return [*columns]


def asset(name: str) -> str:
    """The text of a file of this room."""
    return files("pate_fed.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(asset),
    )


def contact_sheet(images: NDArray[np.uint8], *, columns: int = 8, gap: int = 2) -> NDArray[np.uint8]:
    """Images side by side on mid grey.

    Shapes: uint8 (count, height, width, channels) to uint8 (rows, columns, channels), channels 1 or 3.
    """
    count, height, width, channels = images.shape
    columns = max(1, min(columns, count))
    rows = math.ceil(count / columns)
    shape = (rows * (height + gap) + gap, columns * (width + gap) + gap, channels)
    sheet = np.full(shape, 128, dtype=np.uint8)
    for place, image in enumerate(images):
        y, x = gap + place // columns * (height + gap), gap + place % columns * (width + gap)
        sheet[y : y + height, x : x + width] = image
    return sheet


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """A PNG file (ISO/IEC 15948): 8 bits a channel, no filter, one IDAT chunk.

    Shapes: uint8 (height, width, 1 or 3).
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)  # each row begins with filter type 0
    rows[:, 1:] = image.reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


# A run in plain words, for the board of a hospital: what was done, what left the house, what is promised.
#
# Everything here may be published.


def plain_answers(result: RunResult) -> list[tuple[str, str]]:
    """Questions that a board asks, each with its answer in a few sentences."""
    study = result.study
    simulated = " It was a simulation: one machine played every part." if study.simulated else ""
    done = study.words.done(study.inputs, asked=result.queries_asked, answered=result.queries_answered)
    answers = [
        ("What was done?", done + simulated),
        ("What left a hospital?", study.words.left(study.inputs)),
        ("What can somebody learn about one patient from what is published?", _learnt(result)),
        ("What is not promised?", _not_promised(result)),
        ("How good is the student?", _good(result)),
        ("How can it be checked?", _checked(result)),
    ]
    return [(question, answer) for question, answer in answers if answer]


def _learnt(result: RunResult) -> str:
    study, epsilon = result.study, result.outcome.privacy.student
    if not study.noise_private:
        return (
            "There is no protection: the noise of this run can be computed again by whoever knows its seed. "
            "It was made to try out settings."
        )
    if not result.queries_asked and epsilon == 0:
        return "Nothing: the run ended before anything was published."
    if epsilon is None:
        return f"No bound is known: {result.outcome.privacy.unbounded_because}."
    what = "one label" if study.terms.privacy.unit == "label" else f"one {study.terms.privacy.unit}"
    replaced = study.terms.privacy.adjacency == "replace-one"
    bet_on = f"which of two versions of {what} was used" if replaced else f"whether {what} was among the data"
    best = share_text(_best_guess(epsilon, study.terms.delta), 1000)
    assumed = study.assumptions
    holds = f"It is {assumed.short}: {assumed.warning}." if assumed else "It holds whatever the records are."
    return (
        f"Suppose somebody knows everything but {what}, and bets on {bet_on}, where both were equally "
        f"likely. With all that is published, that bet is right in at most {best} of cases; 50 % is a coin. "
        f"This is what ε = {epsilon_text(epsilon)} and δ = {delta_text(study.terms.delta)} mean. "
        f"{holds}"
    )


def _best_guess(epsilon: float, delta: float) -> float:
    """The most that a bet between two neighbours can win (Kairouz, Oh and Viswanath 2015), rounded up.

    The total variation of what (ε, δ)-DP allows is (e^ε - 1 + 2δ) / (e^ε + 1).
    """
    shrunk = math.exp(-epsilon)
    best = (1 + delta * shrunk) / (1 + shrunk)
    return min(1.0, math.ceil(1000 * best) / 1000)


def _not_promised(result: RunResult) -> str:
    study, outcome = result.study, result.outcome
    told = []
    if outcome.privacy.coordinator is None:
        told.append(f"Against the coordinator there is no bound: it sees {study.coordinator_sees}.")
    privacy = study.terms.privacy
    if privacy.unit == PATIENT_UNIT:
        several = f"more than {privacy.hospitals_moved:,}" if privacy.hospitals_moved > 1 else "several"
        told.append(f"A patient with records at {several} hospitals is protected less.")
    elif privacy.unit == RECORD_UNIT:
        several = "several records" if study.words.records_apart else "records at several hospitals"
        told.append(f"A patient with {several} is protected less.")
    told.append(
        "What is true of patients in general may be learnt; that is what a study is for. Studies on the same "
        "records add up."
    )
    return " ".join(told)


def _good(result: RunResult) -> str:
    accuracy, name = result.outcome.accuracy, result.study.class_name
    interval, count = accuracy.student_interval, accuracy.student_n
    own = accuracy.own_records
    if own is not None and own.accuracy is not None:
        about = f"of about {own.records:,.0f} records of the hospitals that it had not learnt from"
        chose = "" if own.at is None else " They also chose its operating point."
        return (
            f"It was right in {own.accuracy.text} {about}. They were counted with noise, which the interval "
            f"includes.{chose} Whether that is enough to be used on patients, this report does not say."
        )
    if (found := accuracy.no_class) is not None:
        said = found.said(result.study.inputs)
        return f"{said} Whether that is enough to be used on patients, this report does not say."
    if interval is None or not count or accuracy.student is None:
        true = result.study.words.true_ones or "a true label"
        return f"Nobody knows yet: no public input with {true} tested it."
    low, high = (share_text(end, count) for end in interval)
    told = (
        f"It was right in {share_text(accuracy.student, count)} of {count:,} test {result.study.inputs}. "
        f"Chance leaves the true share between {low} and {high} (95 % interval)."
    )
    if accuracy.majority is not None:
        told += f" Always naming the most frequent class is right in {share_text(accuracy.majority, count)}."
    weakest = accuracy.weakest
    if weakest is not None and len(accuracy.recall) > 1:
        told += f" It does worst on class {name(weakest.number)}: {weakest.right} of {weakest.count:,} found."
    return " ".join([told, "Whether that is enough to be used on patients, this report does not say."])


def _checked(result: RunResult) -> str:
    reason = result.outcome.reason
    ended = {
        "success": "The run came to its end.",
        "failed": f"The run failed: {reason}.",
    }.get(result.outcome.status, f"The run was cut off: {reason}.")
    return (
        f"{ended} Every release stands in a ledger whose rows are chained, so that none can be changed "
        "unseen. pate-fed ledger verify computes every ε again from it."
    )


def glossary(result: RunResult) -> list[tuple[str, str]]:
    """The report's words, for whoever meets them for the first time; only those that this study needs."""
    return [
        ("ε (epsilon)", "how much one person's data can change what is published: the smaller, the less"),
        ("δ (delta)", "the small probability with which that bound may fail"),
        *result.study.words.glossary,
        ("label", "the class that was given to a public input"),
        ("student", "the model that is published; it never saw a private record"),
        ("coordinator", "whoever puts the hospitals' answers together and adds up what they cost"),
        ("95 % interval", "where the true share lies, but for one study in twenty"),
        ("recall", "of all inputs of a class, the share that the student finds"),
        ("calibration", "whether the student is right as often as it is sure"),
    ]


def write_report(result: RunResult, path: Path, publishable: bool = False) -> None:
    """Write the report at once; `publishable` leaves out every figure computed from private votes."""
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
        "patient": text.to_a_patient_of(result),
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
    accuracy = figures.accuracy_bars(result, publishable=publishable)
    matrix, curve = plots.confusion_matrix(result), figures.test_accuracy_curve(result)
    sure = figures.calibration_curve(result)
    privacy = ("Privacy over the run", [plots.epsilon_curve(result), agreement])
    own, recall = figures.own_records(result), figures.recall_bars(result)
    apart, parts = figures.roc_curve(result), figures.subgroup_bars(result)
    shown = [accuracy, figures.of_no_class(result), recall, own, apart, sure, parts, matrix, curve]
    good = ("How good it is", shown)
    learnt = ("How the student learnt", [*figures.learning_curves(result), _samples(result)])
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
    png = base64.b64encode(encode_png(contact_sheet(images, columns=columns))).decode("ascii")
    alt = f"{len(images)} images drawn by the student's generator"
    return plots.Figure(
        title="What the generator draws",
        picture=f'<img class="samples" src="data:image/png;base64,{png}" alt="{alt}">',
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
