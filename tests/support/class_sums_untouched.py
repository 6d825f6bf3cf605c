"""Noisy class sums on two sets of medical records that nothing here was chosen on.

Both come inside the Python package scikit-survival (GPL; `pip install --no-deps scikit-survival`), whose
files are read as they are:
- flchain: 7,874 residents of a county, death by age, sex, year, light chains, creatinine (Dispenzieri et al.,
  2012). Days of follow-up and cause of death are left out.
- whas500: 500 patients with a heart attack, death by their state at admission (Hosmer, Lemeshow and May,
  2008). Lengths of stay and of follow-up are left out.

Records are dealt by the seed: a quarter is the pool and the test, the others go to four hospitals. Every
setting is a study's default. This file was committed before it was first run on either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from class_sums_tables import (
    ALONE,
    CENTRAL,
    DELTAS,
    EPSILONS,
    HOSPITALS,
    Bench,
    SplitRecords,
    SumsRun,
    _exact,
    _in_rounds,
    _lines,
    _measured,
    _rounds_by_default,
    _without_privacy,
)
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import LINEAR, FeatureSettings
from pate_fed.reproduce.census import table_of
from pate_fed.reproduce.driver import Log, Table, run_tables
from pate_fed.reproduce.votes import inputs_of

DEFAULT = "by default"


@dataclass(frozen=True, slots=True)
class _Set:
    """A file, its label with the value for yes, and columns that say what came after."""

    name: str
    label: str
    yes: str
    later: tuple[str, ...]


SETS = (
    _Set("flchain", "death", "dead", ("futime", "chapter")),
    _Set("whas500", "fstat", "1", ("los", "lenfol")),
)
DELTAS |= {each.name: 1e-5 for each in SETS}


def folder_of_sets() -> Path | None:
    """Where the installed package has its files; None: it is not installed."""
    found = find_spec("sksurv")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "datasets" / "data"


def reproduce_untouched_sums(plan: Bench, log: Log) -> list[str]:
    """Both sets, beside one hospital alone and all records in one place."""
    sets = {each.name: _read(plan.data_dir, each) for each in SETS}
    tasks = []
    for name in sets:
        for seed in range(plan.seeds):
            tasks += [(name, method, 0.0, seed) for method in (CENTRAL, ALONE)]
            tasks += [(name, DEFAULT, epsilon, seed) for epsilon in EPSILONS]
    table = Table(
        path=plan.out_dir / f"{plan.name}-runs.csv",
        row=SumsRun,
        tasks=tasks,
        make=partial(_made, sets),
        inputs=inputs_of(plan, list(sets.values()), {}),
        lines=partial(_lines, plan.name),
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{plan.name}.txt", log=log)


def _read(folder: Path, of: _Set) -> Dataset:
    """Numbers as they are, NaN where one is missing; a category as one number for each of its values."""
    kinds, rows = {}, []
    for line in (folder / f"{of.name}.arff").read_text(encoding="utf-8").splitlines():
        if line.lower().startswith("@attribute"):
            _, name, kind = line.split(None, 2)
            kinds[name] = None if kind.lower() == "numeric" else kind.strip("{}").split(",")
        elif line and line[0] not in "@%":
            rows.append(line.split(","))
    cells = dict(zip(kinds, zip(*rows, strict=True), strict=True))
    columns, widths = [], []
    for name, values in kinds.items():
        if name in (of.label, *of.later):
            continue
        column = np.array(cells[name])
        if values is None or (len(values) > 2 and all(value.isdecimal() for value in values)):
            values, column = [], np.where(column == "?", "nan", column).astype(np.float64)
        columns.append(column[:, None] == np.array(values) if values else column[:, None])
        widths.append(len(values) or 1)
    labels = (np.array(cells[of.label]) == of.yes).astype(np.int64)
    inputs = np.hstack([column.astype(np.float64) for column in columns])
    details = " ".join(map(str, widths))
    return table_of(of.name, inputs, labels, train=len(labels), num_queries=0, details=details)


def _made(sets: dict[str, Dataset], task: tuple[str, str, float, int]) -> SumsRun:
    name, method, _, seed = task
    parts = _dealt(sets[name], np.random.default_rng(seed))
    if method in (CENTRAL, ALONE):
        return _without_privacy(task, parts)
    features = build_feature_map(FeatureSettings(name=LINEAR, columns=parts.columns), parts.pool)
    rounds = _rounds_by_default(task, parts)
    return (
        _in_rounds(task, parts, features, rounds)
        if rounds
        else _measured(task, parts, *_exact(parts, features))
    )


def _dealt(whole: Dataset, rng: np.random.Generator) -> SplitRecords:
    rows: NDArray[np.float64] = whole.private_images
    labels = whole.private_labels
    order = rng.permutation(len(labels))
    public, private = order[: len(order) // 4], order[len(order) // 4 :]
    owners = np.arange(len(private)) % HOSPITALS
    test, columns = (rows[public], labels[public]), tuple(map(int, whole.details.split()))
    return SplitRecords(rows[private], labels[private], owners, rows[public], test, columns)
