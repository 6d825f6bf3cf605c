"""PATE++ (arXiv 2211.01628), Tables I to III on Fashion-MNIST: published, as published here, and our default.

250 teachers of 240 images, 2,200 labels at ε 4.05 and 5.04, students trained on the first 9,000 test images
and tested on the last 1,000. The paper states neither σ1, σ2 nor T; here every query is answered and σ2
follows from Proposition 2, which gives about its share of wrong labels.

"as published" is a study's `--as-published`, "default" its own student, with the β or τ by which a row
differs from Table I. Both are on the same network and of as many epochs: without `--paper` the small one and
the default's ten, with it the paper's. `steps` and `encoder` are not in the paper, whose Table IV is SVHN.
`steps` goes from the one to the other for PATE++ at ε 4.05: each column has one change more that is ours, and
after the default come the default on the encoder and a head in closed form of the same labels. `encoder` is
Table I by default on a public encoder, of labels of light teachers on it.

What is ours was chosen on inputs 7,000 to 8,999 with students of the first 7,000, and with one draw of labels
at ε 4.05; the last 1,000 had no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text, epsilon_text
from pate_fed.learning import ADDITIONS, PUBLISHED, StudentSettings
from pate_fed.privacy import GNMax
from pate_fed.privacy.bounds.conversion import confident_mu, gaussian_dp_epsilon
from pate_fed.reproduce.columns import Cell, Column, cells_of, text_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import ReleasedLabels, StudentRow, release_labels, train_and_test
from pate_fed.reproduce.votes import ensemble_size, inputs_of, teachers_totals

LABELS, DELTA = 2200, 1e-5
BETA, TAU = 0.2, 0.318
THEIRS, OURS = "as published", "default"
ON_ENCODER, HEAD, LIGHT = "on the encoder", "head alone", "light teachers"
# What is ours, each beside all before it; "default" has β and the labels to remove of its own, too.
STEPS: dict[str, dict[str, Any]] = {
    "rate": {"learning_rate": 0.003, "decay_start": 0.5},
    "averaged": {"ema_decay": 0.998},
    "deformed": {"additions": ADDITIONS[:1], "dropout": 0.1, "input_noise": 0.05},
    **{name: {"additions": ADDITIONS[: place + 1]} for place, name in enumerate(ADDITIONS) if place},
}

Row = tuple[float, str, float | None, float | None]  # ε, student, β and τ; None where a student has none
_ONE: tuple[tuple[str, float | None, float | None], ...] = (
    ("gan", None, None),
    ("co-teaching", BETA, None),
    ("pate+", BETA, None),
    ("pate++", BETA, TAU),
)
# Published test accuracy in %: Tables I, II and III.
PAPER: dict[Row, float] = {
    **{(4.05, *row): share for row, share in zip(_ONE, (74.8, 77.3, 76.5, 79.6), strict=True)},
    **{(5.04, *row): share for row, share in zip(_ONE, (82.1, 82.5, 82.7, 82.9), strict=True)},
    **{(4.05, "co-teaching", beta, None): at for beta, at in ((0.1, 76.2), (0.3, 77.0), (0.4, 76.2))},
    **{(4.05, "pate+", beta, None): at for beta, at in ((0.1, 76.4), (0.3, 77.3), (0.4, 77.4))},
    **{(4.05, "pate++", BETA, tau): at for tau, at in ((0.091, 78.1), (0.182, 78.6), (0.227, 79.0))},
    **{(4.05, "pate++", BETA, tau): at for tau, at in ((0.273, 79.5), (0.364, 78.2))},
}
Key = tuple[float, str, float | None, float | None, str]  # ε, student, β, τ, and which of its settings


def _both(rows: Sequence[Row]) -> list[Key]:
    return [(*row, way) for row in rows for way in (THEIRS, OURS)]


def _of_table() -> dict[str, list[Key]]:
    one = [cell for cell in PAPER if cell[2] in (None, BETA) and cell[3] in (None, TAU)]
    two = [cell for cell in PAPER if cell not in one and cell[3] is None]
    three = [cell for cell in PAPER if cell[3] not in (None, TAU)]
    steps = (THEIRS, *STEPS, OURS, ON_ENCODER, HEAD)
    return {
        "I": _both(one),
        "steps": [(*row, step) for row in one if row[:2] == (4.05, "pate++") for step in steps],
        "II": _both(two),
        "III": _both(three),
        "encoder": [(*row, LIGHT) for row in one],
    }


@dataclass(frozen=True, slots=True)
class StudentRun(StudentRow):
    """One trained student; `removed_wrong` is the share of wrong ones among `removed`."""

    epsilon: float
    student: str
    beta: float | None
    tau: float | None
    settings: str
    seed: int
    _: KW_ONLY
    removed: int | None
    removed_wrong: float | None


def proposition2_sigma(*, answered: int, epsilon: float, delta: float) -> float:
    """The σ2 at which `answered` labels without a threshold check cost `epsilon` (PATE++, Proposition 2).

    It says ε = λ·c + ln(1/δ)/(λ - 1) with c = answered/σ2², at its best λ > 1: c + 2·√(c·ln(1/δ)).
    """
    log = math.log(1 / delta)
    return math.sqrt(answered) / (math.sqrt(log + epsilon) - math.sqrt(log))


def reproduce_tables(plan: Reproduction, log: Log) -> list[str]:
    """Fill tables-quick.txt, runs-quick.csv and totals-quick.npz, or -paper's."""
    dataset = plan.load("fashion-mnist")
    tasks = list(_tasks(plan))
    teachers = sorted({_teacher(plan, task[4]) for task in tasks})
    totals = {each: _totals(plan, dataset, each, log) for each in teachers}
    table = Table(
        path=plan.file("runs", "csv"),
        row=StudentRun,
        tasks=tasks,
        make=partial(_train, plan, dataset, totals),
        inputs=inputs_of(plan, [dataset], {f"totals of {each}": found for each, found in totals.items()}),
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.file("tables", "txt"), log=log)


def _tasks(plan: Reproduction) -> list[tuple[Any, ...]]:
    """Key and seed of every student that the wanted tables need, seeds outermost."""
    of_table = _of_table()
    wanted = [key for table in plan.tables or ("I", "steps", "II", "III") for key in of_table[table]]
    return [(*key, seed) for seed in range(plan.seeds) for key in dict.fromkeys(wanted)]


def released_labels(
    totals: NDArray[np.int64], *, epsilon: float, seed: int, labels: int | None = None
) -> ReleasedLabels:
    """2,200 labels, or as many as are asked for, at Proposition 2's noise for `epsilon`."""
    count = LABELS if labels is None else labels
    sigma = proposition2_sigma(answered=count, epsilon=epsilon, delta=DELTA)
    return release_labels(GNMax(**ensemble_size(totals), sigma=sigma), totals, seed=seed, labels=count)


def _teacher(plan: Reproduction, way: str) -> str:
    """Whose votes a student learns from."""
    if plan.totals is not None:
        return "the file given"
    return "encoder-head" if way == LIGHT else _scale(plan)["network"]


def _totals(plan: Reproduction, dataset: Dataset, teacher: str, log: Log) -> NDArray[np.int64]:
    light = plan.out_dir / "totals-encoder-head.npz"
    path = plan.totals or (light if teacher == "encoder-head" else plan.file("totals", "npz"))
    return teachers_totals(plan, dataset, path, teacher=teacher, log=log)


def _train(
    plan: Reproduction, dataset: Dataset, totals: Mapping[str, NDArray[np.int64]], task: tuple[Any, ...]
) -> StudentRun:
    epsilon, student, beta, tau, way, seed = task
    given = released_labels(totals[_teacher(plan, way)], epsilon=epsilon, seed=seed)
    settings = _settings(plan, student, beta, tau, way)
    made, figures = train_and_test(plan, dataset, given.index, given.label, settings, seed=seed)
    wrong = given.label != dataset.public_labels[given.index]
    return StudentRun(
        *task,
        removed=None if made.removed is None else int(made.removed.sum()),
        removed_wrong=None if not np.any(made.removed) else float(wrong[made.removed].mean()),
        **figures,
    )


def _scale(plan: Reproduction) -> dict[str, Any]:
    if plan.paper:
        return {name: PUBLISHED["pate++"][name] for name in ("network", "epochs")}
    return {"network": "small-cnn", "epochs": StudentSettings.DEFAULT_EPOCHS}


def _settings(
    plan: Reproduction, student: str, beta: float | None, tau: float | None, way: str
) -> StudentSettings:
    """A row's student, in one `way` or at a step between both; "gan" is that of this paper, not of 2017."""
    if way == HEAD:
        return StudentSettings(name="encoder-head")
    if way in (ON_ENCODER, LIGHT):
        return StudentSettings(name=student, epochs=_scale(plan)["epochs"])
    if way == OURS:
        rate, share = (None if value in (BETA, TAU) else value for value in (beta, tau))
        return StudentSettings(name=student, noise_rate=rate, removal=share, **_scale(plan))
    chosen = {**PUBLISHED["pate+"], "noise_rate": beta, "removal": tau, **_scale(plan)}
    for step in list(STEPS)[: list(STEPS).index(way) + 1] if way in STEPS else ():
        chosen |= STEPS[step]
    return StudentSettings(name=student, **chosen)


def _title(cell: Cell[StudentRun]) -> str:
    epsilon, student, beta, tau = cell.task
    options = [f"{name} {value:g}" for name, value in (("β", beta), ("τ", tau)) if value is not None]
    return f"ε {epsilon:g}, {student}" + (f" ({', '.join(options)})" if options else "")


def _percent(way: str, name: str = "accuracy") -> Callable[[Cell[StudentRun]], str]:
    """What tells it of a cell's rows of these settings."""
    return lambda cell: Cell(cell.task, [row for row in cell.rows if row.settings == way]).text(name)


def _seeds(ways: Sequence[str]) -> Column:
    def shown(cell: Cell[StudentRun]) -> str:
        counts = {sum(row.settings == way for row in cell.rows) for way in ways}
        return " to ".join(map(str, sorted({min(counts), max(counts)})))

    return Column("seeds", shown)


_BLOCKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Tables I to III, right in %: published, and here", ("I", "II", "III"), (THEIRS, OURS)),
    ("Not in the paper: each column has one change more that is ours", ("steps",), (THEIRS, *STEPS, OURS)),
    ("Not in the paper: of the same labels", ("steps",), (ON_ENCODER, HEAD)),
    ("Not in the paper: Table I by default on the encoder, light teachers' labels", ("encoder",), (LIGHT,)),
)


def _lines(rows: list[StudentRun]) -> Iterator[str]:
    of_table = _of_table()
    for title, tables, ways in _BLOCKS:
        meant = {key[:4] for table in tables for key in of_table[table]}
        shown = set(ways) - {THEIRS, OURS} or set(ways)
        cells = [
            cell
            for cell in cells_of(rows, PAPER)
            if cell.task in meant and any(row.settings in shown for row in cell.rows)
        ]
        if not cells:
            continue
        columns = [Column("student", _title), Column("paper", lambda cell: PAPER.get(cell.task), ".1f")]
        columns += [*(Column(way, _percent(way)) for way in ways), _seeds(ways)]
        if "I" in tables:
            wrong = ("labels wrong", "labels_wrong"), ("removed, wrong", "removed_wrong")
            columns += [Column(head, _percent(THEIRS, name)) for head, name in wrong]
        yield title
        yield from text_table(columns, cells)
    for epsilon in sorted({row.epsilon for row in rows}):
        sigma = proposition2_sigma(answered=LABELS, epsilon=epsilon, delta=DELTA)
        exact = gaussian_dp_epsilon(confident_mu(LABELS, LABELS, sigma1=None, sigma2=sigma), DELTA)
        yield (
            f"ε {epsilon:g} at δ {delta_text(DELTA)} by Proposition 2, data-independent "
            f"({epsilon_text(exact)} by exact Gaussian accounting): {LABELS} labels, σ2 {sigma:.1f} votes, "
            "no threshold"
        )
    yield "not private: seeded noise, on a public data set"
