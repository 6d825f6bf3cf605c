"""Noisy class sums of four hospitals where one of two classes is rare: balanced accuracy against ε.

4,400 images of two classes, 12 % of them of the second; what tests has 37 % of it. The rest of the public
images of both is the pool. That a rare class is called from halfway was chosen on garments 2 and 4, and on
none of the other pairs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from class_sums_tables import (
    CENTRAL,
    DELTAS,
    EPSILONS,
    HOSPITALS,
    Bench,
    SplitRecords,
    SumsRun,
    _exact,
    _lines,
    _row,
)

from pate_fed.data import Dataset
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import fit_sums_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SumShape, least_sigma
from pate_fed.reproduce.driver import Log, Table, run_tables
from pate_fed.reproduce.votes import inputs_of

DEFAULT, ALIKE = "by default", "records alike"
_RECORDS, _RARE, _TESTED, _RARE_TESTED = 4400, 0.12, 635, 0.37
PAIRS = {
    "garments 2 and 4": ("fashion-mnist", 2, 4),
    "garments 0 and 6": ("fashion-mnist", 0, 6),
    "digits 4 and 9": ("mnist", 4, 9),
    "digits 3 and 5": ("mnist", 3, 5),
}
DELTAS |= dict.fromkeys(PAIRS, 1e-5)


def reproduce_sums_of_rare(plan: Bench, log: Log) -> list[str]:
    """Each pair by default, with records counted alike, and all records in one place with classes alike."""
    sets = {name: plan.load(name) for name, *_ in PAIRS.values()}
    tasks: list[tuple[str, str, float, int]] = []
    for pair in PAIRS:
        for seed in range(plan.seeds):
            tasks.append((pair, CENTRAL, 0.0, seed))
            tasks += [(pair, method, e, seed) for e in EPSILONS for method in (DEFAULT, ALIKE)]
    table = Table(
        path=plan.out_dir / f"{plan.name}-runs.csv",
        row=SumsRun,
        tasks=tasks,
        make=partial(_made, sets, {}),
        inputs=inputs_of(plan, list(sets.values()), {}),
        lines=partial(_lines, plan.name),
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{plan.name}.txt", log=log)


def _made(sets: dict[str, Dataset], kept: dict[Any, Any], task: tuple[str, str, float, int]) -> SumsRun:
    pair, method, epsilon, seed = task
    if (pair, seed) not in kept:
        kept.clear()
        parts = _dealt(sets[PAIRS[pair][0]], *PAIRS[pair][1:], np.random.default_rng(seed))
        features, total = _exact(parts, build_feature_map(FeatureSettings(), parts.pool))
        kept[pair, seed] = parts, features, total
    parts, features, total = kept[pair, seed]
    if method == CENTRAL:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(class_weight="balanced", C=30, max_iter=500)
        model.fit(features.scaled(parts.inputs), parts.labels)
        return _row(task, np.asarray(model.predict_proba(features.scaled(parts.test[0]))), parts)
    size: dict[str, Any] = {"num_classes": 2, "dimension": features.dimension}
    size["squared_norm"] = features.squared_norm
    sigma = least_sigma(epsilon, DELTAS[pair], SumShape(**size))
    noisy = ClassSums(**size, sigma=sigma).noisy(total, SeededNoise(seed))
    balanced = False if method == ALIKE else None
    student = fit_sums_student(noisy, features, parts.pool, sigma=sigma, balanced=balanced)
    return _row(task, student.predict_proba(parts.test[0]), parts, sigma=sigma / features.squared_norm**0.5)


def _dealt(whole: Dataset, usual: int, rare: int, rng: np.random.Generator) -> SplitRecords:
    few, tested = round(_RECORDS * _RARE), round(_TESTED * _RARE_TESTED)
    often, seldom = (rng.permutation(np.flatnonzero(whole.private_labels == each)) for each in (usual, rare))
    rows = rng.permutation(np.concatenate([often[: _RECORDS - few], seldom[:few]]))
    often, seldom = (rng.permutation(np.flatnonzero(whole.public_labels == each)) for each in (usual, rare))
    test = np.concatenate([often[: _TESTED - tested], seldom[:tested]])
    pool = rng.permutation(np.setdiff1d(np.concatenate([often, seldom]), test))
    owners = np.arange(len(rows)) % HOSPITALS
    return SplitRecords(
        whole.private_images[rows],
        (whole.private_labels[rows] == rare).astype(np.int64),
        owners,
        whole.public_images[pool],
        (whole.public_images[test], (whole.public_labels[test] == rare).astype(np.int64)),
    )
