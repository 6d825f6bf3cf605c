"""The picture of a plan: labels, and how many of them are right, against ε."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import delta_text


def draw_plan(plan: Mapping[str, Any], path: Path) -> None:
    """Draw the curve of a plan (`Plan.to_dict()`) to a PNG.

    Raises:
        InputError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    points = plan["curve"]
    epsilons, labels = [at["epsilon"] for at in points], [at["labels"] for at in points]
    right = [at["labels"] * (at["right_share"] or 0.0) for at in points]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.plot(epsilons, labels, marker="o", color="#20639b", label="labels")
    axes.fill_between(epsilons, right, color="#20639b", alpha=0.18, label="of them right")
    axes.axvline(plan["epsilon"], color="#b5484b", linestyle="--", linewidth=1, label="budget")
    axes.set(
        xlabel=f"ε (data-independent, δ={delta_text(plan['delta'])}, unit: {plan['unit']})", ylabel="labels"
    )
    axes.set_ylim(0, max(1.0, 1.08 * max(labels)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    axes.set_title(
        f"{plan['num_teachers']} teachers, {plan['num_classes']} classes: what a budget affords",
        loc="left",
        pad=28,
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    # Above the plot, where neither curve nor budget can be.
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"--picture {path}: cannot be written ({error})") from error
    finally:
        plt.close(figure)
