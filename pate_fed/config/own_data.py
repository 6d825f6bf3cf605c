"""The models of a study that names none, where its data set is the user's own and has rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pate_fed.config.registry import KINDS
from pate_fed.data import Dataset, as_dataset
from pate_fed.learning import TABLE_STUDENTS, TABLE_TEACHERS
from pate_fed.structure.parts import full_name, hold_dataset, is_part, load_part

_MODELS = {"teacher": TABLE_TEACHERS[0], "student": TABLE_STUDENTS[0]}


def imply_models(values: dict[str, Any]) -> None:
    """Name the models that a simulation's nested dictionaries leave open, where its own data set has rows.

    Only the data can tell, so they are loaded, once: this process holds them until `release_parts`.

    Raises:
        InputError: the data set cannot be loaded.
    """
    data = values.get("data")
    name = data.get("dataset") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(name, str) or not _open_models(values):
        return
    if KINDS["dataset"].loader(name) is not None or not is_part(name, "dataset"):
        return
    asked = data.get("num_queries")
    loaded = as_dataset(
        load_part(name, "dataset"),
        what=f"dataset {name!r}",
        name=name,
        num_queries=asked if isinstance(asked, int) else None,
    )
    hold_dataset(loaded, full_name(name, "dataset"))
    imply_models_for(values, loaded)


def imply_models_for(values: dict[str, Any], dataset: Dataset) -> None:
    """The same for data that are there."""
    if dataset.public_images.ndim == 2:  # as for tables
        for section in _open_models(values):
            values[section] = {**values.get(section, {}), "name": _MODELS[section]}


def _open_models(values: Mapping[str, Any]) -> list[str]:
    """Sections that name no model; what is no table is refused when it is read."""
    given = {section: values.get(section, {}) for section in _MODELS}
    return [key for key, table in given.items() if isinstance(table, Mapping) and "name" not in table]
