"""A contact sheet: what a data set looks like, as one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Dataset
from pate_fed.errors import InputError

# All lengths in pixels of the picture; matplotlib wants text in points of 1/72 inch.
_DPI = 100
_TILE, _ROW = 56, 62
_MARGIN, _HEAD, _FOOT = 48, 150, 64
_BAR, _COUNT = 150, 70
_GUTTER = 40
_INK, _FAINT, _ACCENT, _EMPTY = "#1d2733", "#6b7785", "#3b6ea8", "#eef1f4"
_TITLES = {
    "glyph": "Glyph",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
}
_FAMILY = ["DejaVu Sans", "STIXGeneral"]  # they have every symbol of Glyph, and matplotlib brings them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where classes stand: they run down one column of rows, then the next. Lengths in pixels."""

    rows: int
    examples: int
    name: int  # width of a class's name
    column: int  # and of a column
    width: int
    height: int

    @classmethod
    def of(cls, dataset: Dataset) -> _Layout:
        classes = dataset.num_classes
        columns, examples = next(
            (columns, examples)
            for most, columns, examples in ((16, 1, 18), (40, 2, 10), (90, 3, 8), (10**9, 5, 6))
            if classes <= most
        )
        rows, name = -(-classes // columns), max(52, 26 + 12 * max(map(len, dataset.class_names)))
        column = name + examples * _ROW + 14 + _BAR + _COUNT
        width = 2 * _MARGIN + columns * column + (columns - 1) * _GUTTER
        height = _HEAD + rows * _ROW + _FOOT
        return cls(rows=rows, examples=examples, name=name, column=column, width=width, height=height)


def contact_sheet(dataset: Dataset, path: Path) -> None:
    """Write a PNG: a row of private images for every class, its name, and how many images carry its label.

    Raises:
        InputError: the file cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout = _Layout.of(dataset)
    with matplotlib.rc_context({"font.family": _FAMILY, "text.parse_math": False, "text.usetex": False}):
        figure = Figure(figsize=(layout.width / _DPI, layout.height / _DPI), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
        axes.axis("off")
        _heading(axes, dataset, layout)
        _rows(axes, dataset, layout)
        try:
            figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})
        except OSError as error:
            raise InputError(f"--preview {path}: the picture cannot be written ({error.strerror})") from error


def _text(axes: Any, x: float, y: float, text: str, *, size: float, colour: str = _INK, **style: Any) -> None:
    points = size * 72 / _DPI
    axes.text(x, y, text, fontsize=points, color=colour, **{"va": "center", **style})


def _heading(axes: Any, dataset: Dataset, layout: _Layout) -> None:
    height, width, channels = dataset.public_images.shape[1:]
    colours = "grey" if channels == 1 else "colour"
    facts = (
        f"{dataset.num_classes} classes  ·  {len(dataset.private_labels):,} private images  ·  "
        f"{len(dataset.public_labels):,} public, {dataset.num_queries:,} of them to ask about  ·  "
        f"{height}×{width} {colours}"
    )
    _text(axes, _MARGIN, 48, _TITLES.get(dataset.name, dataset.name), size=34, weight="bold")
    _text(axes, _MARGIN, 86, facts, size=16)
    _text(axes, _MARGIN, 112, dataset.details, size=14, colour=_FAINT)
    end = layout.width - _MARGIN
    _text(axes, end, 48, "private images, by the label they carry", size=14, colour=_FAINT, ha="right")
    pool = f"public pool SHA-256 {dataset.pool_digest}"
    _text(axes, _MARGIN, layout.height - 30, pool, size=12, colour=_FAINT)


def _rows(axes: Any, dataset: Dataset, layout: _Layout) -> None:
    from matplotlib.patches import Rectangle

    labels = np.asarray(dataset.private_labels)
    counts = np.bincount(labels, minlength=dataset.num_classes)
    canvas = np.full((layout.height, layout.width, 3), 255, dtype=np.uint8)
    for label, name in enumerate(dataset.class_names):
        column, row = divmod(label, layout.rows)
        left, top = _MARGIN + column * (layout.column + _GUTTER), _HEAD + row * _ROW
        chosen = np.flatnonzero(labels == label)[: layout.examples]
        _paste(canvas, np.asarray(dataset.private_images[chosen]), left + layout.name, top, layout.examples)
        centre = top + _TILE / 2
        _text(axes, left, centre, name, size=20)
        bar = left + layout.name + layout.examples * _ROW + 14
        length = _BAR * counts[label] / max(1, counts.max())
        axes.add_patch(Rectangle((bar, centre - 5), _BAR, 10, color=_EMPTY, lw=0))
        axes.add_patch(Rectangle((bar, centre - 5), length, 10, color=_ACCENT, lw=0))
        end = bar + _BAR + _COUNT - 4
        _text(axes, end, centre, f"{counts[label]:,}", size=13, colour=_FAINT, ha="right")
    axes.imshow(canvas, extent=(0, layout.width, layout.height, 0), interpolation="nearest", zorder=-1)


def _paste(canvas: NDArray[np.uint8], images: NDArray[np.uint8], left: int, top: int, places: int) -> None:
    for place in range(places):
        x = left + place * _ROW
        spot = canvas[top : top + _TILE, x : x + _TILE]
        spot[:] = (0xEE, 0xF1, 0xF4)
        if place < len(images):
            image = images[place]
            rows = np.arange(_TILE) * image.shape[0] // _TILE
            columns = np.arange(_TILE) * image.shape[1] // _TILE
            spot[:] = image[rows][:, columns]  # one channel spreads over three
