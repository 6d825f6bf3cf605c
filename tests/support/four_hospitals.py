"""A table like that of four heart clinics: 910 patients, 13 columns, other ages and prevalence at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = (300, 290, 200, 120)
_SICK = (0.46, 0.36, 0.75, 0.8)  # share of the sick by hospital
_AGE = (0.0, -0.7, 0.7, 0.4)  # how much older its patients are, in deviations
_MISSING = (0.0, 0.15, 0.3, 0.3)  # share of the cells but the first that it lacks
_SHIFT = np.array([0.45, 0.3, 0.2, -0.9, 0.9, 0.5, 0.3, 0.8])  # of the sick, in deviations, by number
CODES = (2, 4, 3, 3, 4)  # values of each code
_SHIFTS = (0.6, 1.0, 0.3, 0.7, 1.1)  # the same as `_SHIFT`, of the codes
_WRONG = 0.1  # of the labels


@dataclass(frozen=True, slots=True, eq=False)
class Patients:
    """Rows float64 (910, 13) with NaN for what is missing, labels and hospitals int64 (910,)."""

    rows: NDArray[np.float64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]


def four_hospitals(seed: int) -> Patients:
    """Eight numbers and five codes, each of which tells a little of who is sick."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for size, share, age, missing in zip(SIZES, _SICK, _AGE, _MISSING, strict=True):
        sick = rng.random(size) < share
        numbers = rng.normal(0, 1, (size, 8)) + _SHIFT * (sick[:, None] - 0.5)
        numbers[:, 0] += age
        latent = rng.normal(0, 1, (size, 5)) + np.array(_SHIFTS) * (sick[:, None] - 0.5)
        many = np.array(CODES)
        codes = np.clip(np.floor((latent + 2) / 4 * many), 0, many - 1)
        found = np.hstack([numbers, codes])
        gone = rng.random(found.shape) < missing
        gone[:, 0] = False
        rows.append(np.where(gone, np.nan, found))
        labels.append(sick ^ (rng.random(size) < _WRONG))
    owners = np.repeat(np.arange(4), SIZES)
    return Patients(np.concatenate(rows), np.concatenate(labels).astype(np.int64), owners)


def central_model(table: Patients, chosen: NDArray[np.int64]) -> Any:
    """Logistic regression without privacy on the chosen rows, codes as codes."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    codes = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=-1), OneHotEncoder(handle_unknown="ignore")
    )
    parts = ColumnTransformer([("numbers", numbers, list(range(8))), ("codes", codes, list(range(8, 13)))])
    model = make_pipeline(parts, LogisticRegression(max_iter=1000))
    return model.fit(table.rows[chosen], table.labels[chosen])
