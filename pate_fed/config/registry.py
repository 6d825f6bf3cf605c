"""The registry of parts: what each kind has built in, by name, and where a study names one.

A name is looked up in one place, whoever wrote the code: what is built in first, then installed entry points,
then module:attribute. What is built in is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import AUTO
from pate_fed.config.sections import CLASS_SUMS, FROM_FILES, INTERACTIVE, VOTES, Aggregation, Data
from pate_fed.data import DATASETS, Dataset
from pate_fed.errors import InputError
from pate_fed.learning import RIDGE, STRATEGIES, STUDENTS, TABLE_STUDENTS, TABLE_TEACHERS, TEACHERS
from pate_fed.learning.features.feature_map import FEATURE_MAPS
from pate_fed.structure import nearest
from pate_fed.structure.parts import entry_points, full_name, is_part, load_part

if TYPE_CHECKING:
    from pate_fed.privacy.mechanisms.class_sums import ClassSums, SharedClassSums
    from pate_fed.privacy.mechanisms.events import Mechanism


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of part: the section and key of a study that name one, and the names of what is built in.

    `with_value` are those that a value follows, as in dirichlet:0.5.
    """

    section: str
    key: str
    built_in: tuple[str, ...]
    with_value: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether a part of that name is built in."""
        bare, colon, _ = name.partition(":")
        return name in self.built_in or (bool(colon) and bare in self.with_value)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, for people."""
        return (*self.built_in, *(f"{name}:VALUE" for name in self.with_value))


KINDS: Mapping[str, Kind] = {
    "dataset": Kind("data", "dataset", DATASETS + FROM_FILES),
    "partitioner": Kind("parties", "partition", ("iid",), ("dirichlet",)),
    "teacher": Kind("teacher", "name", TEACHERS + TABLE_TEACHERS),
    "student": Kind("student", "name", (*STUDENTS, *TABLE_STUDENTS, RIDGE)),
    "aggregator": Kind("aggregation", "aggregator", ("gnmax", VOTES, INTERACTIVE, "lnmax", CLASS_SUMS)),
    "query strategy": Kind("queries", "strategy", STRATEGIES),
    "feature map": Kind("sums", "features", FEATURE_MAPS),
    "kind": Kind("aggregation", "kind", ()),
}


def _built_in(kind: str, name: str) -> Any:
    """What is built in of that kind and name, imported now."""
    if kind == "dataset":
        return _files() if name in FROM_FILES else _dataset(name)
    if kind == "partitioner":
        return _deal(name)
    if kind == "aggregator":
        return _sums() if name == CLASS_SUMS else _lnmax() if name == "lnmax" else _gaussian(name)
    if kind == "teacher" and name in TABLE_TEACHERS:
        from pate_fed.learning.teachers.forests import train_table_teacher

        return train_table_teacher
    if kind == "teacher":
        from pate_fed.learning.teachers.network import train_teacher

        return train_teacher
    if kind == "student":
        return _student(name)
    if kind == "feature map":
        from pate_fed.learning.features.build import build_feature_map

        return build_feature_map
    from pate_fed.learning import choose_order

    return partial(choose_order, name)


def _student(name: str) -> Any:
    if name == RIDGE:
        from pate_fed.learning.students.class_sums import fit_sums_student

        return fit_sums_student
    if name in TABLE_STUDENTS:
        from pate_fed.learning.teachers.forests import train_forest

        return train_forest
    from pate_fed.learning.students.train import train_student

    return train_student


def _dataset(name: str) -> Any:
    from pate_fed.data import load_dataset

    def load(data: Data, *, on_progress: Callable[[int, int], None] | None = None, **_: bool) -> Dataset:
        folder = None if data.data_dir is None else Path(data.data_dir)
        return load_dataset(
            name, glyph=data.glyph, data_dir=folder, download=data.download, on_progress=on_progress
        )

    return load


def _files() -> Any:
    from pate_fed.data import dataset_from_files

    def load(
        data: Data, *, keep_more: bool = False, keep_none: bool = False, decimal: str | None = None, **_: Any
    ) -> Dataset:
        return dataset_from_files(
            data.dataset if data.pool is None else Path(data.pool).stem,
            pool=None if data.pool is None else Path(data.pool),
            private=[Path(name) for name in data.private],
            spec=replace(data.kind(), decimal=decimal),
            num_queries=data.num_queries,
            keep_more=keep_more,
            keep_none=keep_none,
        )

    return load


def _deal(scheme: str) -> Any:
    from pate_fed.data import partition

    def deal(labels: NDArray[np.int64], num_parties: int, seed: int) -> list[NDArray[np.int64]]:
        return partition(labels, num_parties=num_parties, scheme=scheme, seed=seed)

    return deal


def _gaussian(name: str) -> Any:
    from pate_fed.privacy.mechanisms.distributed import DistributedGNMax
    from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax

    def make(size: Mapping[str, int], given: Aggregation, **at_hospitals: Any) -> Mechanism:
        threshold, sigma1, sigma2 = given.fixed()
        if at_hospitals:
            honest = at_hospitals["survivors"] - at_hospitals["colluders"]
            return DistributedGNMax(
                **size,
                threshold=threshold if given.has_threshold else None,
                sigma_party=at_hospitals["sigma_party"],
                least_honest=honest,
            )
        if name == "gnmax":
            return GNMax(**size, sigma=sigma2)
        return ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=sigma2)

    return make


def _lnmax() -> Any:
    from pate_fed.privacy.mechanisms.noisy_max import LNMax

    def make(size: Mapping[str, int], given: Aggregation) -> Mechanism:
        return LNMax(**size, scale=given.fixed()[2])

    return make


def _sums() -> Any:
    from pate_fed.privacy.mechanisms.class_sums import ClassSums, SharedClassSums

    def make(
        shape: Mapping[str, int], sigma: float | None, **at_hospitals: Any
    ) -> ClassSums | SharedClassSums:
        if at_hospitals:
            return SharedClassSums(**shape, **at_hospitals)
        if sigma is None:
            raise InputError("sums.sigma: noise is meant, by the coordinator or by the hospitals")
        return ClassSums(**shape, sigma=sigma)

    return make


def find_part(name: str, kind: str) -> Any:
    """What a name stands for: what is built in, or code of the user's own (`parts.load_part`).

    What is built in of one kind is called in one way: a data set of `Data`, a partitioner as the user's own,
    a teacher's and a student's training, a mechanism of sizes and `Aggregation` (sums: σ), a query strategy,
    a feature map of settings and the pool. A mechanism whose noise is the hospitals' is told it by
    `sigma_party`, `survivors` and `colluders`.

    Raises:
        InputError: nothing has that name, or the code cannot be loaded; the message names it.
    """
    known = KINDS[kind]
    if known.has(name):
        return _built_in(kind, name)
    if not is_part(name, kind):
        raise InputError(
            f"{kind} {name!r}: one of {', '.join(known.names)}, an installed entry point, or "
            f"module:attribute of your own is meant{nearest(name, (*known.built_in, *entry_points(kind)))}"
        )
    return load_part(name, kind)


def own_names(values: dict[str, Any]) -> dict[str, Any]:
    """The sections of a study with full names in place of those that installed entry points have.

    What is built in keeps its name, whatever is installed.
    """
    for kind, place in KINDS.items():
        table = values.get(place.section)
        name = table.get(place.key) if isinstance(table, Mapping) else None
        if not isinstance(name, str) or place.has(name) or (kind == "aggregator" and name == AUTO):
            continue
        if name in entry_points(kind):
            values[place.section] = {**values[place.section], place.key: full_name(name, kind)}
    return values
