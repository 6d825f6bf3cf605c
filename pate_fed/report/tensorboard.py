"""A run for TensorBoard, through its own library where that is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.report.result import RunResult
from pate_fed.report.tables import epoch_rows, figure_rows, spending_rows
from pate_fed.report.text import describe_terms


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
    told += f", {study.assumptions.short}" if study.assumptions else ""
    return [("epsilon", told), ("protects", study.protects), ("noise", noise)]
