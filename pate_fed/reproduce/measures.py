"""What several reproductions measure or draw, each in one place: labels, noise, accuracy, pictures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, LNMax, PrivacyEvent, SeededNoise, epsilon_of
from pate_fed.reproduce.driver import Reproduction

if TYPE_CHECKING:
    from pate_fed.learning import Student


COLOURS = ("#b5651d", "#1b6f8a", "#7a9a01", "#8a1b5c", "#333333")


def draw_panels(
    path: Path | BinaryIO,
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


Ints = NDArray[np.int64]
AnyMechanism = GNMax | LNMax | ConfidentGNMax


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedLabels:
    """Released labels (m,) and their inputs (m,), the inputs that were asked about, and the event."""

    index: Ints
    label: Ints
    asked: Ints
    event: PrivacyEvent


def release_labels(mechanism: AnyMechanism, totals: Ints, *, seed: int, labels: int) -> ReleasedLabels:
    """Up to so many labels of inputs in random order, with seeded noise: not private.

    Shapes: totals (n, classes).
    """
    order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
    release = mechanism.release(totals[order], SeededNoise(seed), max_answers=labels)
    asked = order[: release.asked]
    return ReleasedLabels(asked[release.answered], release.label[release.answered], asked, release.event)


def least_noise(
    mechanism: Callable[[float], AnyMechanism],
    *,
    queries: int,
    epsilon: float,
    delta: float,
    above: float = 1.0,
    most: float = 10_000.0,
) -> float:
    """The least noise in (`above`, `most`], to a tenth of a vote, at which queries cost at most `epsilon`.

    `mechanism` gives the one with that noise, which answers every query; its cost falls as the noise grows.
    Queries are charged as their noisy totals, as the papers do.
    """

    def fits(tenths: int) -> bool:
        spent = mechanism(tenths / 10).cost_asked(RECORD) * queries
        return epsilon_of(spent.as_totals, delta) <= epsilon

    low, high = round(10 * above), round(10 * most)
    if not fits(high):
        raise InputError(f"{queries} queries cost more than ε {epsilon:g} with noise of {most:g} votes")
    return bisect_left(range(high), True, lo=low + 1, key=fits) / 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentRow:
    """What every row of a student has, as shares; `accuracy_single` is its networks' mean, each alone."""

    labels_wrong: float
    accuracy: float
    accuracy_single: float


def train_and_test(
    plan: Reproduction, dataset: Dataset, index: Ints, label: Ints, settings: StudentSettings, *, seed: int
) -> tuple[Student, dict[str, Any]]:
    """A study's own student of the queries' images, and how often it is right in the other public ones.

    The second is what a `StudentRow` has, by name. `index` (m,) are the labelled images, `label` (m,) their
    labels.
    """
    from pate_fed.learning import LabelledPool, train_student

    tested = slice(dataset.num_queries, None)
    pool = LabelledPool(
        images=dataset.public_images[: tested.start],
        labelled_index=index,
        labels=label,
        num_classes=dataset.num_classes,
    )
    student = train_student(pool, settings, seed=seed, device=plan.device)
    images, truth = dataset.public_images[tested], dataset.public_labels[tested]
    figures = StudentRow(
        labels_wrong=float(np.mean(label != dataset.public_labels[index])),
        accuracy=float(np.mean(student.predict(images) == truth)),
        accuracy_single=float(np.mean(student.predict_each(images) == truth)),
    )
    return student, asdict(figures)
