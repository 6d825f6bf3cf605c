"""A run as plain numbers: its figures, student's epochs and spending, for tables and for other programs."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.report.metrics import flatten, make_metrics, without_private
from pate_fed.report.result import RunResult
from pate_fed.report.run import Run
from pate_fed.report.text import describe_terms

Row = Sequence[object]


def figure_rows(result: RunResult, *, analyst: bool = False) -> list[tuple[str, Any]]:
    """The figures of `metrics.json` by dotted name; None is unknown.

    What was computed from private votes is there for the `analyst` alone, with `do_not_publish` in its name.
    """
    metrics = make_metrics(result)
    metrics["noise_private"] = result.study.noise_private
    found: list[tuple[str, Any]] = []
    for name, value in flatten(metrics if analyst else without_private(metrics)):
        if name.endswith("claimed_by"):
            for number, one in enumerate(value):
                found += flatten(one, f"{name}.{number}.")
        elif name.endswith("interval"):
            low, high = value or (None, None)
            found += [(f"{name}.low", low), (f"{name}.high", high)]
        else:
            found.append((name, value))
    return found


def epoch_rows(result: RunResult) -> list[tuple[int, str, float]]:
    """Epoch, name and value of everything that is known of the student's passes."""
    found: list[tuple[int, str, float]] = []
    for epoch in result.epochs:
        if epoch.test_accuracy is not None:
            found.append((epoch.epoch, "test_accuracy", epoch.test_accuracy))
        found += [(epoch.epoch, name, value) for name, value in epoch.values.items()]
    return found


def write_csv_files(run: Run, folder: Path, *, analyst: bool = False) -> list[str]:
    """Write figures.csv, labels.csv, epochs.csv and spending.csv; the names of those the run has."""
    result = run.result
    tables: list[tuple[str, tuple[str, ...], Iterable[Row]]] = [
        ("figures.csv", ("figure", "value"), figure_rows(result, analyst=analyst)),
        ("labels.csv", ("index", "answered", "label"), _label_rows(run)),
        ("epochs.csv", ("epoch", "name", "value"), epoch_rows(result)),
        ("spending.csv", ("asked", "answered", "epsilon"), result.spent_so_far),
    ]
    written = []
    for name, header, rows in tables:
        if rows := list(rows):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header, *rows])
            write_result(folder / name, text.getvalue().encode())
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


STORE = "mlflow.db"
_AT_ONCE = 1000  # metrics that a store takes in one call; of parameters it takes 100
_MOST_PARAMETERS = 100
_STATUS = {"success": "FINISHED", "failed": "FAILED"}


def write_mlflow(result: RunResult, folder: Path, *, name: str, analyst: bool = False) -> str:
    """Add the run to the store `mlflow.db` in a folder, in the experiment of its study; the run's id.

    Raises:
        InputError: MLflow is not installed, or cannot use the store.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of every call
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise InputError(
            "--mlflow needs MLflow: pip install mlflow, or mlflow-skinny sqlalchemy alembic"
        ) from error
    try:
        client = MlflowClient(tracking_uri=f"sqlite:///{(folder / STORE).resolve()}")
        return _write(client, result, folder, name=name, analyst=analyst)
    except (MlflowException, ImportError) as error:  # mlflow-skinny brings no SQLAlchemy
        raise InputError(f"--mlflow {folder}: {error}") from error


def _write(client: Any, result: RunResult, folder: Path, *, name: str, analyst: bool) -> str:
    from mlflow.entities import Metric, Param, RunTag

    study = result.study.terms.study
    found = client.get_experiment_by_name(study)
    artifacts = (folder / "artifacts").resolve().as_uri()
    experiment = client.create_experiment(study, artifact_location=artifacts) if found is None else None
    run = client.create_run(experiment or found.experiment_id, run_name=name)
    now = int(1000 * time.time())
    named = [(name, value, 0) for name, value in _numbers(result, analyst=analyst)] + _series(result)
    metrics = [Metric(_key(name), value, now, step) for name, value, step in named if math.isfinite(value)]
    params = [Param(_key(key), value) for key, value in describe_terms(result)][:_MOST_PARAMETERS]
    tags = [RunTag(*each) for each in (*_privacy(result), ("status", result.outcome.status))]
    for start in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + _AT_ONCE])
    client.log_batch(run.info.run_id, params=params, tags=tags)
    client.set_terminated(run.info.run_id, status=_STATUS.get(result.outcome.status, "KILLED"))
    return str(run.info.run_id)


def _key(name: str) -> str:
    """The name with nothing that MLflow refuses in one."""
    return re.sub(r"[^\w./ -]", "_", name)


def write_tensorboard(result: RunResult, folder: Path, *, analyst: bool = False) -> None:
    """Write an event file: the student's epochs, ε over the queries, figures, and terms as text.

    Raises:
        InputError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("--tensorboard needs tensorboard: pip install tensorboard") from error
    with SummaryWriter(str(folder)) as writer:
        for name, value, step in _series(result):
            writer.add_scalar(name, value, step)
        for name, value in _numbers(result, analyst=analyst):
            writer.add_scalar(f"figures/{name}", value, 0)
        lines = [f"**{name}**: {value}" for name, value in (*_privacy(result), *describe_terms(result))]
        writer.add_text("terms", "  \n".join(lines))


def _series(result: RunResult) -> list[tuple[str, float, int]]:
    """Names, numbers and steps: the student's epochs, ε over the queries."""
    found = [(f"student/{name}", value, epoch) for epoch, name, value in epoch_rows(result)]
    return found + [("privacy/epsilon_over_queries", value, asked) for asked, _, value in result.spent_so_far]


def _numbers(result: RunResult, *, analyst: bool) -> Iterator[tuple[str, float]]:
    for name, value in figure_rows(result, analyst=analyst):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


def _privacy(result: RunResult) -> list[tuple[str, str]]:
    study, epsilon = result.study, result.outcome.privacy.student
    noise = "private" if study.noise_private else "not private: seeded noise"
    told = f"{epsilon_text(epsilon)} at δ = {delta_text(study.terms.delta)}"
    told += f", {study.assumptions.short}" if study.assumptions else ""
    return [("epsilon", told), ("protects", study.protects), ("noise", noise)]
