"""A model without privacy of the four drawn clinics of the benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.tasks import Patients


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
