"""A run for MLflow and TensorBoard, through their own libraries where these are installed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.report.result import RunResult
from pate_fed.report.tables import epoch_rows, figure_rows, spending_rows
from pate_fed.report.text import describe_terms

__all__ = ["write_mlflow", "write_tensorboard"]


def write_tensorboard(result: RunResult, folder: Path, *, analyst: bool = False) -> None:
    """Write an event file: the student's epochs, ε over the queries, figures, and terms as text.

    Raises:
        InputError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("--tensorboard needs tensorboard: pip install tensorboard") from error
    with SummaryWriter(str(folder)) as writer:  # type: ignore[no-untyped-call]
        for name, value, step in _series(result):
            writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        for name, value in _numbers(result, analyst=analyst):
            writer.add_scalar(f"figures/{name}", value, 0)  # type: ignore[no-untyped-call]
        lines = [f"**{name}**: {value}" for name, value in (*_privacy(result), *describe_terms(result))]
        writer.add_text("terms", "  \n".join(lines))  # type: ignore[no-untyped-call]


def write_mlflow(result: RunResult, folder: Path, *, name: str, analyst: bool = False) -> None:
    """Add a run to the MLflow store in a folder: terms as parameters, figures and curves as metrics.

    Raises:
        InputError: mlflow is not installed.
    """
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise InputError("--mlflow needs mlflow: pip install mlflow-skinny") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MLflow means to change in itself
        client: Any = MlflowClient(folder.absolute().as_uri())
        study = result.study.terms.study
        experiment = client.get_experiment_by_name(study)
        number = client.create_experiment(study) if experiment is None else experiment.experiment_id
        run = client.create_run(number, run_name=name, tags=dict(_privacy(result))).info.run_id
        for key, value in describe_terms(result):
            client.log_param(run, _key(key), value)
        for key, number, step in _series(result):
            client.log_metric(run, _key(key), number, step=step)
        for key, number in _numbers(result, analyst=analyst):
            client.log_metric(run, _key(key), number)
        client.set_terminated(run, "FINISHED" if result.outcome.status == "success" else "FAILED")


def _series(result: RunResult) -> Iterator[tuple[str, float, int]]:
    for epoch, name, value in epoch_rows(result):
        yield f"student/{name}", value, epoch
    for asked, _, epsilon in spending_rows(result):
        yield "privacy/epsilon_over_queries", epsilon, asked


def _numbers(result: RunResult, *, analyst: bool) -> Iterator[tuple[str, float]]:
    for name, value in figure_rows(result, analyst=analyst):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


def _privacy(result: RunResult) -> list[tuple[str, str]]:
    study, epsilon = result.study, result.outcome.privacy.student
    noise = "private" if study.noise_private else "not private: seeded noise"
    told = f"{epsilon_text(epsilon)} at δ = {delta_text(study.terms.delta)}"
    return [("epsilon", told), ("protects", study.protects), ("noise", noise)]


def _key(name: str) -> str:
    """A name of the letters that MLflow takes."""
    plain = name.replace("₁", "1").replace("₂", "2").replace("σ", "sigma").replace("ε", "epsilon")
    return "".join(each if each.isascii() and (each.isalnum() or each in "_-. /") else "-" for each in plain)
