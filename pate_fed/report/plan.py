"""The picture of a plan: labels, and how many of them are right, against ε."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pate_fed.errors import InputError

__all__ = ["draw_plan"]


def draw_plan(plan: Mapping[str, Any], path: Path) -> None:
    """Draw the curve of a plan (`Plan.to_dict()`) to a PNG.

    Raises:
        InputError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    points = [point for point in plan["curve"] if point["labels"]]
    epsilons = [point["epsilon"] for point in points]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.plot(epsilons, [point["labels"] for point in points], marker="o", color="#20639b", label="labels")
    right = [point["labels"] * point["right_share"] for point in points]
    axes.fill_between(epsilons, right, color="#20639b", alpha=0.18, label="of them right")
    axes.axvline(plan["epsilon"], color="#b5484b", linestyle="--", linewidth=1)
    axes.annotate(
        "budget",
        (plan["epsilon"], 0.97),
        (4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color="#b5484b",
        va="top",
    )
    axes.set(xlabel=f"ε (data-independent, δ={plan['delta']:g}, unit: {plan['unit']})", ylabel="labels")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{plan['num_teachers']} teachers, {plan['num_classes']} classes: what a budget affords")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"--picture {path}: cannot be written ({error})") from error
    finally:
        plt.close(figure)
