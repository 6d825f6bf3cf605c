"""The registry of parts: what each kind has built in, by name, and where a study names one.

A name is looked up in one place, whoever wrote the code: what is built in first, then installed entry points,
then module:attribute. What is built in is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pate_fed.config.parts import entry_points, full_name, is_part, load_part
from pate_fed.config.sections import AUTO, CLASS_SUMS, INTERACTIVE, VOTES
from pate_fed.data import DATASETS
from pate_fed.errors import InputError
from pate_fed.learning import RIDGE, STRATEGIES, STUDENTS, TABLE_STUDENTS, TABLE_TEACHERS, TEACHERS
from pate_fed.learning.features.settings import FEATURE_MAPS
from pate_fed.structure import nearest

__all__ = ["KINDS", "Kind", "find_part", "own_names"]

Loader = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of part: the section and key of a study that name one, and what is built in, by name."""

    section: str
    key: str
    built_in: Mapping[str, Loader]


def _dataset(name: str) -> Any:
    from pate_fed.data import load_dataset

    return partial(load_dataset, name)


def _files() -> Any:
    from pate_fed.data import dataset_from_files

    return dataset_from_files


def _iid() -> Any:
    from pate_fed.data import partition

    return partition


def _teacher_network() -> Any:
    from pate_fed.learning.teachers.network import train_teacher

    return train_teacher


def _table_teacher() -> Any:
    from pate_fed.learning.teachers.forests import train_table_teacher

    return train_table_teacher


def _student_network() -> Any:
    from pate_fed.learning.students.train import train_student

    return train_student


def _forest() -> Any:
    from pate_fed.learning.teachers.forests import train_forest

    return train_forest


def _ridge() -> Any:
    from pate_fed.learning.students.class_sums import SumsStudent

    return SumsStudent


def _gnmax() -> Any:
    from pate_fed.privacy.mechanisms.noisy_max import GNMax

    return lambda votes, given: GNMax(**votes, sigma=given.fixed()[2])


def _lnmax() -> Any:
    from pate_fed.privacy.mechanisms.noisy_max import LNMax

    return lambda votes, given: LNMax(**votes, scale=given.fixed()[2])


def _confident() -> Any:
    from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax

    names = ("threshold", "sigma1", "sigma2")
    return lambda votes, given: ConfidentGNMax(**votes, **dict(zip(names, given.fixed(), strict=True)))


def _sums() -> Any:
    from pate_fed.privacy.mechanisms.class_sums import ClassSums

    return ClassSums


def _strategy(name: str) -> Any:
    from pate_fed.learning import choose_order

    return partial(choose_order, name)


def _features() -> Any:
    from pate_fed.learning.features.build import build_feature_map

    return build_feature_map


def _all(names: tuple[str, ...], loader: Loader) -> dict[str, Loader]:
    return dict.fromkeys(names, loader)


def _each(names: tuple[str, ...], loader: Callable[[str], Any]) -> dict[str, Loader]:
    return {name: partial(loader, name) for name in names}


KINDS: Mapping[str, Kind] = {
    "dataset": Kind("data", "dataset", _each(DATASETS, _dataset) | _all(("table", "images"), _files)),
    "partitioner": Kind("parties", "partition", {"iid": _iid}),
    "teacher": Kind(
        "teacher", "name", _all(TEACHERS, _teacher_network) | _all(TABLE_TEACHERS, _table_teacher)
    ),
    "student": Kind(
        "student", "name", _all(STUDENTS, _student_network) | _all(TABLE_STUDENTS, _forest) | {RIDGE: _ridge}
    ),
    "aggregator": Kind(
        "aggregation",
        "aggregator",
        {"gnmax": _gnmax, "lnmax": _lnmax, VOTES: _confident, INTERACTIVE: _confident, CLASS_SUMS: _sums},
    ),
    "query strategy": Kind("queries", "strategy", _each(STRATEGIES, _strategy)),
    "feature map": Kind("sums", "features", _all(FEATURE_MAPS, _features)),
}


def find_part(name: str, kind: str) -> Any:
    """What a name stands for: what is built in, or code of the user's own (`parts.load_part`).

    What is built in of one kind is called in one way: a data set, a teacher's and a student's training, a
    mechanism of votes and `Aggregation`, a query strategy, a feature map of settings and the pool.

    Raises:
        InputError: nothing has that name, or the code cannot be loaded; the message names it.
    """
    built_in = KINDS[kind].built_in
    if name in built_in:
        return built_in[name]()
    if not is_part(name, kind):
        raise InputError(
            f"{kind} {name!r}: one of {', '.join(built_in)}, an installed entry point, or module:attribute "
            f"of your own is meant{nearest(name, (*built_in, *entry_points(kind)))}"
        )
    return load_part(name, kind)


def own_names(values: dict[str, Any]) -> dict[str, Any]:
    """The sections of a study with full names in place of those that installed entry points have.

    What is built in keeps its name, whatever is installed.
    """
    for kind, place in KINDS.items():
        table = values.get(place.section)
        name = table.get(place.key) if isinstance(table, Mapping) else None
        taken = name in place.built_in or (kind == "aggregator" and name == AUTO)
        if isinstance(name, str) and not taken and name in entry_points(kind):
            values[place.section] = {**values[place.section], place.key: full_name(name, kind)}
    return values
