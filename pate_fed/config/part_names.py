"""Where a study names parts, and what is built in of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pate_fed.config.parts import entry_points, full_name
from pate_fed.config.sections import AGGREGATORS
from pate_fed.data import DATASETS
from pate_fed.learning import RIDGE, STRATEGIES, STUDENTS, TABLE_STUDENTS, TABLE_TEACHERS, TEACHERS
from pate_fed.learning.features.settings import FEATURE_MAPS

__all__ = ["PLACES", "own_names"]

PLACES = (  # section, key, kind, and what is built in
    ("data", "dataset", "dataset", (*DATASETS, "table", "images")),
    ("parties", "partition", "partitioner", ("iid",)),
    ("student", "name", "student", (*STUDENTS, *TABLE_STUDENTS, RIDGE)),
    ("teacher", "name", "teacher", TEACHERS + TABLE_TEACHERS),
    ("aggregation", "aggregator", "aggregator", AGGREGATORS),
    ("queries", "strategy", "query strategy", STRATEGIES),
    ("sums", "features", "feature map", FEATURE_MAPS),
)


def own_names(values: dict[str, Any]) -> dict[str, Any]:
    """The sections of a study with full names in place of those that installed entry points have."""
    for section, key, kind, built_in in PLACES:
        table = values.get(section)
        name = table.get(key) if isinstance(table, Mapping) else None
        if isinstance(name, str) and name not in built_in and name in entry_points(kind):
            values[section] = {**values[section], key: full_name(name, kind)}
    return values
