"""A run for MLflow, through its own library where that is installed, in a SQLite store as it recommends."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.report.result import RunResult
from pate_fed.report.tables import epoch_rows, figure_rows, spending_rows
from pate_fed.report.text import describe_terms

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
    metrics = [Metric(key, value, now, step) for key, value, step in _metrics(result, analyst=analyst)]
    params = [Param(_key(key), value) for key, value in describe_terms(result)][:_MOST_PARAMETERS]
    tags = [RunTag(key, value) for key, value in _tags(result).items()]
    for start in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + _AT_ONCE])
    client.log_batch(run.info.run_id, params=params, tags=tags)
    client.set_terminated(run.info.run_id, status=_STATUS.get(result.outcome.status, "KILLED"))
    return str(run.info.run_id)


def _metrics(result: RunResult, *, analyst: bool) -> list[tuple[str, float, int]]:
    """Names, numbers and steps: figures, the student's epochs, ε over the queries."""
    found = [
        (name, float(value), 0)
        for name, value in figure_rows(result, analyst=analyst)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    found += [(f"student/{name}", value, epoch) for epoch, name, value in epoch_rows(result)]
    found += [("privacy/epsilon_over_queries", value, asked) for asked, _, value in spending_rows(result)]
    return [(_key(name), value, step) for name, value, step in found if math.isfinite(value)]


def _tags(result: RunResult) -> dict[str, str]:
    study, epsilon = result.study, result.outcome.privacy.student
    claimed = f", {study.assumptions.short}" if study.assumptions else ""
    return {
        "epsilon": f"{epsilon_text(epsilon)} at δ = {delta_text(study.terms.delta)}{claimed}",
        "protects": study.protects,
        "noise": "private" if study.noise_private else "not private: seeded noise",
        "status": result.outcome.status,
    }


def _key(name: str) -> str:
    """The name with nothing that MLflow refuses in one."""
    return re.sub(r"[^\w./ -]", "_", name)
