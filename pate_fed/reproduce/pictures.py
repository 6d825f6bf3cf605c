"""Pictures of a reproduction: panels beside each other, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from pate_fed.reproduce.columns import Cell

COLOURS = ("#b5651d", "#1b6f8a", "#7a9a01", "#8a1b5c", "#333333")


def draw_panels(
    path: Path,
    titles: Sequence[tuple[str, str, str]],
    draw: Callable[[Any], None],
    *,
    size: tuple[float, float] = (5.5, 4.2),
) -> None:
    """Write a PNG of one panel for each title, label of x and label of y; `draw` gets the list of axes.

    Where it draws no legend, each panel gets one of what is labelled in it. `size` is a panel's width and the
    picture's height, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * len(titles) + 0.5, size[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, len(titles), place + 1) for place in range(len(titles))]
    for each, (title, across, up) in zip(axes, titles, strict=True):
        each.set_title(title, fontsize=10)
        each.set_xlabel(across)
        each.set_ylabel(up)
        each.grid(alpha=0.3)
    draw(axes)
    for each in axes:
        if each.get_legend_handles_labels()[0] and each.get_legend() is None and not figure.legends:
            each.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def plot_curves(
    axes: Any,
    cells: Iterable[Cell[Any]],
    curve: Callable[[Cell[Any]], str],
    x: Callable[[Cell[Any]], float],
    *,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    ticks: Sequence[float] = (),
) -> None:
    """A line for each `curve` through its cells' accuracies in %, with their standard deviation as bars.

    With `ticks` x is on a logarithmic scale that names these values.
    """
    curves: dict[str, list[Cell[Any]]] = {}
    for cell in cells:
        curves.setdefault(curve(cell), []).append(cell)
    base: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 0.9}
    for (name, found), colour in zip(curves.items(), cycle(COLOURS), strict=False):
        means, spreads = zip(*(cell.percent() for cell in found), strict=True)
        style = base | {"color": colour, "label": name} | dict((styles or {}).get(name, {}))
        axes.errorbar([x(cell) for cell in found], means, yerr=np.nan_to_num(spreads), **style)
    if ticks:
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
