"""A hospital's own records and a public pool, from files: CSV, .npz, a folder of images by class, idx files.

Inputs are `uint8 (n, height, width, channels)` images, or `float64 (n, features)` rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Dataset, pool_digest
from pate_fed.data.partition import patient_numbers
from pate_fed.data.pictures import (
    DICOM_SUFFIXES,
    PICTURE_SUFFIXES,
    pictures_in,
    read_arrays,
    read_dicom,
    read_labelled_images,
    read_picture,
)
from pate_fed.data.schema import Schema
from pate_fed.data.table import LARGEST, UNLABELLED, Rows, read_table
from pate_fed.disk import load_arrays
from pate_fed.errors import InputError
from pate_fed.format import FEW_TRIALS

# A class that a part of the pool lacks with less than this probability was sorted out of it.
_BY_CHANCE = 1e-5
_DRAWN = 1000  # rows


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """Specification of a study's inputs: rows of a table with a schema, or images of one shape.

    `shape` is that of one input, None where it is not known yet; `window` are the values of a DICOM image
    that are shown black and white. `decimal` is how this owner's CSV files write numbers, None: as can be
    told from each; it is nobody else's business.
    """

    classes: tuple[str, ...]
    schema: Schema | None = None
    shape: tuple[int, ...] | None = None
    window: tuple[float, float] | None = None
    decimal: str | None = None


def read_records(path: Path, spec: InputSpec) -> Rows:
    """A hospital's labelled records.

    Raises:
        InputError: the files are not there, damaged, or not what the study wants; the error says where.
    """
    rows = _read(path, spec, labelled=True)
    if (rows.labels == UNLABELLED).any():
        raise InputError(f"{path}: holds records without a label")
    return rows


def read_pool(path: Path, spec: InputSpec) -> Rows:
    """A public pool; rows may have true labels, which only measure. A .npy file is one as it was sent.

    A folder's pictures come in an order that their pixels give: by name they would be sorted by class, and a
    study asks about the first of them and is tested on the last.

    Raises:
        InputError: as `read_records`.
    """
    return _read_sent(path) if path.suffix == ".npy" else _read(path, spec, labelled=False)


def _read_sent(path: Path) -> Rows:
    try:
        inputs = load_arrays(path)[""]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: the public pool cannot be read; delete it, and it is sent again"
        ) from error
    return _own_patients(inputs, np.full(len(inputs), UNLABELLED))


def drawn_pool(schema: Schema) -> Rows:
    """Rows that stand for public inputs: numbers even over declared ranges, categories over their values."""
    rng, columns = np.random.default_rng(0), list[NDArray[np.float64]]()
    ranges = dict(schema.ranges)
    for name, values in schema.columns:
        if values:
            columns += list(np.eye(len(values))[rng.integers(0, len(values), _DRAWN)].T)
        else:
            columns.append(rng.uniform(*ranges[name], _DRAWN))
    return _own_patients(np.stack(columns, axis=1), np.full(_DRAWN, UNLABELLED))


def dataset_from_files(
    name: str,
    *,
    pool: Path | None,
    private: Sequence[Path],
    spec: InputSpec,
    num_queries: int | None,
    keep_more: bool = False,
    keep_none: bool = False,
) -> Dataset:
    """A data set of a pool and of private records: each party's of a simulation, or a hospital's own.

    Without `num_queries` a tenth of a labelled pool, its last inputs, is kept to test the student; with
    `keep_more` at least 100, but no more than a third; with `keep_none` nothing, as at a hospital. Without a
    `pool` rows drawn from the schema's ranges stand for it.

    Raises:
        InputError: files that cannot be used, more queries than the pool holds, or a pool that is sorted by
            class where its last inputs are to test.
    """
    if pool is not None:
        public, details = read_pool(pool, replace(spec, decimal=None)), f"public inputs from {pool.name}"
    else:
        assert spec.schema is not None  # `Data` holds it
        public, details = drawn_pool(spec.schema), "no public inputs: rows drawn from the schema's ranges"
    spec = replace(spec, shape=public.inputs.shape[1:])
    parts = [read_records(path, spec) for path in private]
    labelled = not keep_none and bool((public.labels != UNLABELLED).all())
    asked = num_queries or not_kept(len(public.labels), labelled=labelled, keep_more=keep_more)
    if asked > len(public.labels):
        where = pool or "the drawn pool"
        raise InputError(
            f"data.num_queries in study.toml is {asked}: {where} has {len(public.labels)} inputs"
        )
    most = None if spec.schema is None else spec.schema.most_label
    if pool is not None and labelled and num_queries is None and most is None:
        check_mixed(pool, public.labels, asked, spec.classes)
    empty = Rows(public.inputs[:0], public.labels[:0], public.patients[:0])
    patients = [each.patients ^ file_mark(number) for number, each in enumerate(parts)]
    named = bool(parts) and all(each.named for each in parts)
    return Dataset(
        name=name,
        num_classes=len(spec.classes),
        class_names=spec.classes,
        # One file's are not copied: there may be a million.
        private_images=parts[0].inputs
        if len(parts) == 1
        else np.concatenate([each.inputs for each in (*parts, empty)]),
        private_labels=np.concatenate([each.labels for each in (*parts, empty)]),
        public_images=public.inputs,
        public_labels=public.labels,
        num_queries=asked,
        pool_digest=pool_digest(public.inputs),
        details=details,
        owners=np.repeat(np.arange(len(parts)), [len(each.labels) for each in parts]).astype(np.int64),
        patients=np.concatenate(patients) if named else None,
        public_patients=public.patients,
        most_label=most,
    )


def not_kept(count: int, *, labelled: bool, keep_more: bool = False) -> int:
    """How many of a pool's inputs may be asked about; all where not each has a true label to test with."""
    if not labelled:
        return count
    tenth = count - max(1, count * 9 // 10)
    return count - (max(tenth, min(FEW_TRIALS, count // 3)) if keep_more else tenth)


def check_mixed(pool: Path | str, labels: NDArray[np.int64], asked: int, classes: Sequence[str]) -> None:
    """Refuse a pool that is sorted: before or after `asked` a class lacks, as by chance it would not."""
    for part, what in ((labels[asked:], "test the student"), (labels[:asked], "ask about")):
        for label in np.setdiff1d(labels, part):
            if (1 - np.mean(labels == label)) ** len(part) < _BY_CHANCE:
                raise InputError(
                    f"{pool}: is sorted, it seems: of the {len(part)} inputs to {what} none is "
                    f"{classes[label]!r}; shuffle its rows, as the last ones test what the rest teaches "
                    "(or give data.num_queries in study.toml)"
                )


def _read(path: Path, spec: InputSpec, *, labelled: bool) -> Rows:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if spec.schema is not None and path.suffix != ".npz":
        if path.is_dir():
            raise InputError(
                f"{path}: a folder; the study's records are a table: a CSV file, .fhir or .sql is meant"
            )
        return read_table(path, spec.schema, labelled=labelled, decimal=spec.decimal)
    if spec.schema is not None and spec.schema.most_label is not None:
        raise InputError(f"{path}: the study's label is no class: a CSV file is meant")
    if path.suffix == ".npz":
        rows = _read_npz(path, spec)
    elif path.is_dir():
        idx = any(path.glob("*idx3*"))
        rows = _read_idx(path, spec) if idx else _read_folder(path, spec)
        rows = rows if idx or labelled else _mixed(rows)
    else:
        raise InputError(
            f"{path}: .csv for a table; .npz (x, y), a folder by class or of idx files for images"
        )
    _check(path, rows, spec)
    return rows


def _check(path: Path, rows: Rows, spec: InputSpec) -> None:
    if not len(rows.labels):
        raise InputError(f"{path}: holds no records")
    if spec.shape is not None and rows.inputs.shape[1:] != spec.shape:
        raise InputError(f"{path}: inputs of {rows.inputs.shape[1:]}, but the study's are {spec.shape}")
    wrong = np.flatnonzero((rows.labels < UNLABELLED) | (rows.labels >= len(spec.classes)))
    if len(wrong):
        raise InputError(
            f"{path} row {wrong[0]}: label {rows.labels[wrong[0]]}: 0 to {len(spec.classes) - 1} is meant"
        )


def _read_npz(path: Path, spec: InputSpec) -> Rows:
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise InputError(f"{path}: holds {', '.join(arrays) or 'nothing'}: x (and y) are meant")
    inputs: NDArray[Any] = arrays["x"]
    if spec.schema is not None:
        inputs = _as_rows(path, inputs, spec.schema)
    elif inputs.dtype != np.uint8 or inputs.ndim not in (3, 4):
        raise InputError(f"{path}: x is {inputs.dtype} {inputs.shape}: uint8 (n, height, width[, channels])")
    elif inputs.ndim == 3:
        inputs = inputs[..., None]
    labels = arrays.get("y", np.full(len(inputs), UNLABELLED))
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: y is {labels.dtype} {labels.shape}: {len(inputs)} whole numbers are meant")
    return _own_patients(inputs, labels.astype(np.int64))


def _as_rows(path: Path, inputs: NDArray[Any], schema: Schema) -> NDArray[np.float64]:
    if inputs.ndim != 2 or inputs.shape[1] != schema.num_features or inputs.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: x is {inputs.dtype} {inputs.shape}: numbers (n, {schema.num_features}) are meant"
        )
    bad = np.argwhere(np.abs(inputs.astype(np.float64)) > LARGEST)
    if len(bad):
        row, column = bad[0]
        raise InputError(f"{path} row {row}, column {column}: not finite, or above {LARGEST:.1e} in size")
    return np.asarray(inputs, dtype=np.float64)


def _read_idx(path: Path, spec: InputSpec) -> Rows:
    images, labels = (sorted(path.glob(pattern)) for pattern in ("*idx3*", "*idx1*"))
    if len(images) != 1 or len(labels) != 1:
        raise InputError(f"{path}: {len(images)} idx3 and {len(labels)} idx1 files: one of each is meant")
    return _own_patients(*read_labelled_images(images[0], labels[0], num_classes=len(spec.classes)))


def _read_folder(path: Path, spec: InputSpec) -> Rows:
    """One folder a class, named as in the study, with image files; a pool may have images without a class."""
    found: list[tuple[Path, int]] = [(each, UNLABELLED) for each in _images_in(path)]
    for folder in sorted(each for each in path.iterdir() if each.is_dir()):
        if folder.name not in spec.classes:
            raise InputError(f"{folder}: no class of the study: {', '.join(spec.classes)}")
        found += [(each, spec.classes.index(folder.name)) for each in _images_in(folder)]
    if not found:
        suffixes = ", ".join(PICTURE_SUFFIXES + DICOM_SUFFIXES)
        raise InputError(f"{path}: holds no image files ({suffixes})")
    pictures: list[NDArray[np.uint8]] = []
    patients: list[str] = []
    for file, _ in found:
        shape = spec.shape or (pictures[0].shape if pictures else None)
        if file.suffix.lower() in DICOM_SUFFIXES:
            picture, patient = read_dicom(file, shape=shape, window=spec.window)
        else:
            picture, patient = read_picture(file, spec.shape[2] if spec.shape else None), ""
        if shape is not None and picture.shape != shape:
            raise InputError(f"{file}: an image of {picture.shape}, but the study's are {shape}")
        pictures.append(picture)
        patients.append(patient)
    labels = np.array([label for _, label in found], dtype=np.int64)
    return Rows(np.stack(pictures), labels, _patients_of(found, patients), named=any(patients))


def _images_in(folder: Path) -> list[Path]:
    dicom = [each for each in folder.iterdir() if each.suffix.lower() in DICOM_SUFFIXES]
    return sorted([*pictures_in(folder), *dicom])


def file_mark(number: int) -> int:
    """What is added, bit by bit, to the patients' numbers of a private file, by its number among them.

    A file's numbers are its own: one patient's in two files are two patients'. Twice added it is gone.
    """
    return int(patient_numbers([f"file {number}"])[0])


def _patients_of(files: Sequence[tuple[Path, int]], patients: Sequence[str]) -> NDArray[np.int64]:
    """Equal numbers for images of one patient, where the files name patients; else each is one of its own."""
    if not any(patients):
        return np.arange(len(patients), dtype=np.int64)
    # Images without a patient would all become one's, who is then protected less than it seems.
    for (file, _), patient in zip(files, patients, strict=True):
        if not patient:
            raise InputError(f"{file}: has no PatientID, and others have; give every file its patient's")
    return patient_numbers(patients)


def _mixed(rows: Rows) -> Rows:
    """The same in an order that every machine finds, whatever the files are called."""
    digests = [sha256(np.ascontiguousarray(each).tobytes()).digest() for each in rows.inputs]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return _own_patients(rows.inputs[order], rows.labels[order])  # a pool is public: patients are of no use


def _own_patients(inputs: NDArray[Any], labels: NDArray[np.int64]) -> Rows:
    return Rows(inputs, labels, np.arange(len(labels), dtype=np.int64))
