"""Pictures of a reproduction: panels beside each other, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["COLOURS", "draw_panels"]

COLOURS = ("#b5651d", "#1b6f8a", "#7a9a01", "#8a1b5c", "#333333")


def draw_panels(
    path: Path,
    titles: Sequence[tuple[str, str, str]],
    draw: Callable[[Any], None],
    *,
    size: tuple[float, float] = (5.5, 4.2),
) -> None:
    """Write a PNG of one panel for each title, label of x and label of y; `draw` gets the list of axes.

    `size` is a panel's width and the picture's height, in inches.
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
    figure.savefig(path, dpi=120)
