"""A run as plain numbers: its figures, student's epochs and spending, for tables and for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.report.metrics import make_metrics, without_private
from pate_fed.report.result import RunResult
from pate_fed.report.run import Run

Row = Sequence[object]


def figure_rows(result: RunResult, *, analyst: bool = False) -> list[tuple[str, Any]]:
    """The figures of `metrics.json` by dotted name; None is unknown.

    What was computed from private votes is there for the `analyst` alone, with `do_not_publish` in its name.
    """
    metrics = make_metrics(result)
    metrics["noise_private"] = result.study.noise_private
    return list(_flatten(metrics if analyst else without_private(metrics)))


def _flatten(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
        elif name.endswith("claimed_by"):
            for number, one in enumerate(value):
                yield from _flatten(one, f"{name}.{number}.")
        elif name.endswith("interval"):
            low, high = value or (None, None)
            yield from ((f"{name}.low", low), (f"{name}.high", high))
        else:
            yield name, value


def epoch_rows(result: RunResult) -> list[tuple[int, str, float]]:
    """Epoch, name and value of everything that is known of the student's passes."""
    found: list[tuple[int, str, float]] = []
    for epoch in result.epochs:
        if epoch.test_accuracy is not None:
            found.append((epoch.epoch, "test_accuracy", epoch.test_accuracy))
        found += [(epoch.epoch, name, value) for name, value in epoch.values.items()]
    return found


def spending_rows(result: RunResult) -> list[tuple[int, int, float]]:
    """Queries asked, labels released and data-independent ε so far, along the run."""
    spent = result.spending
    if spent is not None:
        return list(zip(spent.asked, spent.answered, spent.epsilon, strict=True))
    found: list[tuple[int, int, float]] = []
    asked = answered = 0
    for release in result.releases:
        asked, answered = asked + release.asked, answered + release.answered
        if release.epsilon is not None:
            found.append((asked, answered, release.epsilon))
    return found


def write_csv_files(run: Run, folder: Path, *, analyst: bool = False) -> list[str]:
    """Write figures.csv, labels.csv, epochs.csv and spending.csv; the names of those the run has.

    Raises:
        InputError: the folder or a file cannot be written.
    """
    result = run.result
    tables: list[tuple[str, tuple[str, ...], Iterable[Row]]] = [
        ("figures.csv", ("figure", "value"), figure_rows(result, analyst=analyst)),
        ("labels.csv", ("index", "answered", "label"), _label_rows(run)),
        ("epochs.csv", ("epoch", "name", "value"), epoch_rows(result)),
        ("spending.csv", ("asked", "answered", "epsilon"), spending_rows(result)),
    ]
    written = []
    for name, header, rows in tables:
        rows = list(rows)
        if rows:
            write_result(folder / name, _csv([header, *rows]).encode())
            written.append(name)
    return written


def _label_rows(run: Run) -> list[Row]:
    """Place in the pool, whether it was answered, and the class, empty where it was not."""
    try:
        held = run.labels
    except InputError:
        return []  # cut off before the first release, or nothing is asked about in such a study
    columns = zip(held.index.tolist(), held.answered.tolist(), held.label.tolist(), strict=True)
    return [(index, int(answered), label if answered else None) for index, answered, label in columns]


def _csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
