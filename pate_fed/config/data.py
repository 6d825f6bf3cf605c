"""The data of a study: a known data set, files that it names, or the user's own; and how they are dealt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import AUTO
from pate_fed.config.registry import KINDS, find_part
from pate_fed.config.study import Study
from pate_fed.data import Dataset, as_dataset, check_dataset, check_parts
from pate_fed.data.partition import deal_patients
from pate_fed.errors import InputError, require_libraries
from pate_fed.format import counted
from pate_fed.learning import TABLE_STUDENTS, TABLE_TEACHERS
from pate_fed.privacy.protection import PATIENT_UNIT
from pate_fed.structure.faults import telling
from pate_fed.structure.parts import full_name, hold_dataset, is_part, load_part

IMAGES = ("torch", "torchvision", "matplotlib", "fontTools")


def require_study_libraries(study: Study) -> None:
    """Hold that what the study needs is installed, or raise an InputError that names the extra."""
    if study.data.dataset != "table":
        require_libraries(*IMAGES, what="a study of images")
    if study.engine.backend == "ray":
        require_libraries("ray", what="--backend ray (inline is the other)")


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
    if KINDS["dataset"].has(name) or not is_part(name, "dataset"):
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


_ROWS = 10_000


def load_study_data(study: Study, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """What a coordinator or a simulation has of a study's data; an InputError where it has none."""
    data, what = study.data, f"dataset {study.data.dataset!r}"
    part = find_part(data.dataset, "dataset")
    if data.own:
        return as_dataset(part, what=what, name=data.dataset, num_queries=data.num_queries)
    dataset: Dataset = part(data, keep_more=not study.cross_validates, on_progress=on_progress)
    check_dataset(dataset, what=what)
    return dataset


def fix_unit(study: Study, dataset: Dataset) -> Study:
    """The study with the unit that its data imply where it says none: a patient where these are named.

    Raises:
        InputError: the unit patient where the records name none.
    """
    if len(dataset.private_labels):
        return study.with_unit(dataset.patients is not None)
    named = study.data.names_patients  # hospitals' records are elsewhere: each of them sees to its own
    return study.with_unit(False if named is None and study.privacy.unit == AUTO else named)


def deal_records(study: Study, dataset: Dataset) -> list[NDArray[np.int64]]:
    """The private records of each party: ascending int64 places, disjoint, together all, none empty.

    Patients who are named are dealt whole, unless the unit is a record.

    Raises:
        InputError: a partition that is not that, one where the data say already whose a record is, or one in
            which a patient is in more parties than the study says.
    """
    study = fix_unit(study, dataset)
    parts = _deal(study, dataset)
    if study.privacy.unit == PATIENT_UNIT and dataset.patients is not None:
        most = study.privacy.hospitals_per_patient
        if most_parties(parts, dataset.patients) > most:
            by = study.parties.partition if dataset.owners is None else "owners"
            raise InputError(
                f"dataset {study.data.dataset!r} with {by}: a patient is in more than "
                f"{counted(most, 'party')}, so the ε of one patient would not hold; nothing was asked. "
                "Give parts that keep patients together, a larger privacy.hospitals_per_patient, which "
                'costs more, or privacy.unit = "record", which protects such patients less'
            )
    return parts


def most_parties(parts: list[NDArray[np.int64]], patients: NDArray[np.int64]) -> int:
    """The most parts that one patient's records are in."""
    each = [np.unique(patients[part]) for part in parts]
    return int(np.unique(np.concatenate(each), return_counts=True)[1].max())


def _deal(study: Study, dataset: Dataset) -> list[NDArray[np.int64]]:
    parties, scheme, seed = study.parties.num_clients, study.parties.partition, study.seed_for("partition")
    own, labels, sizes = study.parties.own_partition, dataset.private_labels, {"num_parties": parties}
    what = f"partitioner {scheme!r}"
    if dataset.owners is not None:
        if own:
            raise InputError(f"{what}: would have no effect, as the data set says whose each record is")
        parts = [np.flatnonzero(dataset.owners == party) for party in range(parties)]
        whose = f"dataset {study.data.dataset!r}: owners"
        return check_parts(parts, num_records=len(labels), what=whose, **sizes)
    deal = find_part(scheme, "partitioner")
    if not own:
        if dataset.patients is not None and study.privacy.by_patient:
            parts = deal_patients(deal, labels, dataset.patients, num_parties=parties, seed=seed)
        else:
            parts = deal(labels, parties, seed)
        return check_parts(parts, num_records=len(labels), what=what, **sizes)
    if not callable(deal):
        raise InputError(f"{what}: is a {type(deal).__name__}; a function is meant")
    found = []
    for _ in range(2):
        with telling(f"{what}: fails"):
            parts = deal(labels, parties, seed)
        found.append(check_parts(parts, num_records=len(labels), what=what, **sizes))
    if not all(map(np.array_equal, *found)):
        raise InputError(f"{what}: gives other parts each time; draw what is random in it from its seed")
    return found[0]


def data_digest(dataset: Dataset) -> str:
    """SHA-256 hex of all inputs and private labels of a data set, with their types and shapes."""
    digest = sha256()
    for array in (dataset.private_images, dataset.private_labels, dataset.public_images):
        digest.update(f"{array.dtype.str}{array.shape}\n".encode())
        for start in range(0, len(array), _ROWS):  # a data set may be larger than what memory there is
            digest.update(np.ascontiguousarray(array[start : start + _ROWS]).data)
    return digest.hexdigest()


def records_digest(study: Study, dataset: Dataset) -> str:
    """SHA-256 hex of who has which labels: what every process must find alike, whoever wrote the code.

    Also whose each record is, where a patient's are taken together.
    """
    digest, patients = sha256(), dataset.patients
    by_patient = fix_unit(study, dataset).privacy.by_patient
    for part in deal_records(study, dataset):
        whose = () if patients is None or not by_patient else (patients[part],)
        for array in (part, dataset.private_labels[part], *whose):
            digest.update(f"{len(array)}\n".encode() + np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()
