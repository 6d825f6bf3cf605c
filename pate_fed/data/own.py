"""A data set of the user's own: what `load()` gives, checked, as a `Dataset`; adapters for others' data sets.

`load() -> Dataset`, or a mapping of arrays, memory maps among them:
- `private_images`, `public_images`: images uint8 (n, height, width[, 1 or 3]), or any other arrays of numbers
  (n, ...), NaN where one is missing: tables, embeddings, volumes, series, tokens. These become float64 rows
  (n, features), and a network of one's own gets them in their `shape` again;
- `private_labels`, `public_labels`: whole numbers (n,) from 0 on. Public ones only measure; -1 where a true
  label is not known, or left out altogether;
- if it is wanted: `class_names`, `num_queries` (the first so many public inputs may be asked about, the rest
  test), `owners` (the party of each record; else they are dealt out, by patient where these are named),
  `patients` and `public_patients` (equal for one patient's, in whichever party), `details` for a caption.
Every call must give the same: in a simulation parties call it in processes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.data.dataset import Dataset, pool_digest
from pate_fed.data.files import check_mixed, not_kept
from pate_fed.data.partition import patient_numbers
from pate_fed.data.table import LARGEST, UNLABELLED
from pate_fed.errors import InputError
from pate_fed.structure import nearest
from pate_fed.structure.faults import telling

_NEEDED = ("private_images", "private_labels", "public_images")
_KNOWN = tuple(each.name for each in fields(Dataset) if each.name != "pool_digest")
_MOST_CLASSES = 100_000


def as_dataset(given: Any, *, what: str, name: str, num_queries: int | None = None) -> Dataset:
    """The data set of a mapping, of a `Dataset`, or of a function that gives one of them.

    `what` names it in errors. `num_queries` takes precedence over what the data set says.

    Raises:
        InputError: it is none of these, or its arrays are not what the module's text says.
    """
    if callable(given):
        with telling(f"{what}: fails when it is loaded"):
            given = given()
    if isinstance(given, Dataset):
        given = {key: getattr(given, key) for key in _KNOWN}
    if not isinstance(given, Mapping):
        raise InputError(
            f"{what}: gives a {type(given).__name__}; a Dataset or a mapping of arrays "
            f"({', '.join(_NEEDED)}, …) is meant"
        )
    arrays: dict[str, Any] = {str(key): value for key, value in given.items() if value is not None}
    for key in arrays:
        if key not in _KNOWN:
            known = nearest(key, _KNOWN) or f"; its parts are {', '.join(_KNOWN)}"
            raise InputError(f"{what}: {key} is no part of a data set{known}")
    for key in _NEEDED:
        if key not in arrays:
            raise InputError(f"{what}: lacks {key}")
    return _from_arrays(arrays, what=what, name=name, num_queries=num_queries)


def _from_arrays(arrays: dict[str, Any], *, what: str, name: str, num_queries: int | None) -> Dataset:
    (private, shape), (public, shared) = (
        _inputs(arrays[key], f"{what}: {key}") for key in ("private_images", "public_images")
    )
    told = _shape(arrays.get("shape", ()), f"{what}: shape")
    for whose, other in (("public ones", shared), ("the shape given", told if len(shape) > 1 else ())):
        if shape and other and other != shape:
            raise InputError(f"{what}: private inputs are {shape}, {whose} {other}")
    labels = _labels(arrays["private_labels"], f"{what}: private_labels", len(private))
    none = np.full(len(public), UNLABELLED)
    truth = _labels(arrays.get("public_labels", none), f"{what}: public_labels", len(public))
    names = tuple(str(each) for each in arrays.get("class_names", ()))
    least = 1 + int(max(labels.max(initial=-1), truth.max(initial=-1)))
    classes = arrays.get("num_classes", len(names) or least)
    labelled = bool(len(truth)) and bool((truth != UNLABELLED).all())
    asked = num_queries or arrays.get("num_queries") or not_kept(len(public), labelled=labelled)
    dataset = Dataset(
        name=name,
        num_classes=classes,
        class_names=names or tuple(map(str, range(min(least, _MOST_CLASSES)))),
        private_images=private,
        private_labels=labels,
        public_images=public,
        public_labels=truth,
        num_queries=asked,
        pool_digest=pool_digest(public),
        details=str(arrays.get("details", "")),
        owners=_each(arrays.get("owners"), f"{what}: owners", len(private)),
        patients=_patients(arrays.get("patients"), f"{what}: patients", len(private)),
        public_patients=_patients(arrays.get("public_patients"), f"{what}: public_patients", len(public)),
        shape=told or shape,
    )
    check_dataset(dataset, what=what)
    if labelled and "num_queries" not in arrays and num_queries is None:
        check_mixed(what, truth, asked, dataset.class_names)
    return dataset


def check_dataset(dataset: Dataset, *, what: str) -> None:
    """Hold a data set's arrays against each other, whoever made it.

    Raises:
        InputError: inputs of two shapes, labels that are no classes, or counts that do not fit.
    """
    private, public, classes = dataset.private_images, dataset.public_images, dataset.num_classes
    for holds, wrong in (
        (len(public) > 0, "public_images holds nothing"),
        (
            private.shape[1:] == public.shape[1:] and private.dtype == public.dtype,
            f"private inputs are {private.dtype} {private.shape[1:]}, public ones {public.dtype} "
            f"{public.shape[1:]}",
        ),
        (
            math.prod(dataset.input_shape) == math.prod(public.shape[1:])
            and not (dataset.shape and public.ndim == 4),
            f"shape {dataset.shape} for inputs of {public.shape[1:]}",
        ),
        (isinstance(classes, int) and 2 <= classes <= _MOST_CLASSES, f"num_classes {classes!r}: 2 or more"),
        (
            len(dataset.class_names) == classes,
            f"{len(dataset.class_names)} class_names for {classes} classes",
        ),
        (
            isinstance(dataset.num_queries, int) and 0 < dataset.num_queries <= len(public),
            f"num_queries {dataset.num_queries!r}: 1 to {len(public)}, the public inputs, is meant",
        ),
    ):
        if not holds:
            raise InputError(f"{what}: {wrong}")
    most = dataset.most_label or classes - 1
    for key, labels, least in (
        ("private_labels", dataset.private_labels, 0),
        ("public_labels", dataset.public_labels, UNLABELLED),
    ):
        if len(labels) and not (least <= labels.min() and labels.max() <= most):
            raise InputError(f"{what}: {key} from {labels.min()} to {labels.max()}: 0 to {most} is meant")


def check_parts(
    parts: Sequence[ArrayLike], *, num_records: int, num_parties: int, what: str
) -> list[NDArray[np.int64]]:
    """A partition's index arrays, ascending: disjoint, together every record, none empty.

    Raises:
        InputError: they are not that.
    """
    try:
        found = [np.asarray(part) for part in parts]
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: gives no list of index arrays") from error
    if len(found) != num_parties:
        raise InputError(f"{what}: gives {len(found)} parts for {num_parties} parties")
    for party, part in enumerate(found):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not len(part):
            raise InputError(
                f"{what}: part {party} is {part.dtype} {part.shape}: places of one record or more are meant"
            )
        if part.min() < 0 or part.max() >= num_records:
            raise InputError(
                f"{what}: part {party} has places {part.min()} to {part.max()}: 0 to {num_records - 1} is "
                "meant"
            )
    counts = np.bincount(np.concatenate(found).astype(np.int64), minlength=num_records)
    for wrong, why in ((counts > 1, "dealt out twice"), (counts == 0, "not dealt out")):
        if wrong.any():
            raise InputError(f"{what}: record {int(wrong.argmax())} is {why}; {int(wrong.sum())} in all")
    return [np.sort(part).astype(np.int64) for part in found]


def _inputs(given: Any, what: str) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Images, or arrays as rows; and the shape of one, () of an image."""
    found = np.asarray(given) if not isinstance(given, np.ndarray) else given
    if found.dtype == np.uint8 and (found.ndim == 3 or (found.ndim == 4 and found.shape[3] in (1, 3))):
        return (found if found.ndim == 4 else found[..., None]), ()
    if found.ndim < 2 or found.dtype.kind not in "fiub" or not math.prod(found.shape[1:]):
        raise InputError(
            f"{what} is {found.dtype} {found.shape}: images uint8 (n, height, width[, 1 or 3]) or arrays of "
            "numbers (n, ...) are meant"
        )
    rows = found.reshape(len(found), math.prod(found.shape[1:])).astype(np.float64, copy=False)
    bad = np.argwhere(np.abs(rows) > LARGEST)  # NaN is a missing value
    if len(bad):
        row, column = bad[0]
        raise InputError(f"{what} row {row}, column {column}: not finite, or above {LARGEST:.1e} in size")
    return rows, found.shape[1:]


def _shape(given: Any, what: str) -> tuple[int, ...]:
    lengths = given if isinstance(given, Sequence | np.ndarray) else [given]
    if not all(isinstance(each, int | np.integer) and each > 0 for each in lengths):
        raise InputError(f"{what} is {given!r}: the lengths of one input are meant, as (16, 8, 8)")
    return tuple(int(each) for each in lengths)


def _labels(given: Any, what: str, count: int) -> NDArray[np.int64]:
    found = np.asarray(given)
    if found.dtype.kind == "f" and not (np.isfinite(found).all() and (found == np.floor(found)).all()):
        raise InputError(f"{what}: holds numbers that are no classes (NaN or fractions)")
    if found.shape != (count,) or found.dtype.kind not in "iubf":
        raise InputError(
            f"{what} is {found.dtype} {found.shape}: {count} whole numbers are meant, one an input"
        )
    return found.astype(np.int64, copy=False)


def _each(given: Any, what: str, count: int) -> NDArray[np.int64] | None:
    return None if given is None else _labels(given, what, count)


def _patients(given: Any, what: str, count: int) -> NDArray[np.int64] | None:
    """Numbers or names, as equal numbers for one patient."""
    found = None if given is None else np.asarray(given)
    if found is None or found.dtype.kind in "iu":
        return _each(found, what, count)
    if found.shape != (count,) or found.dtype.kind not in "US":
        raise InputError(f"{what} is {found.dtype} {found.shape}: {count} numbers or names are meant")
    return patient_numbers(found.astype(str).tolist())


def from_torchvision(private: Any, public: Any) -> dict[str, Any]:
    """The arrays of two data sets of torchvision's kind, one private, one public, as `load()` may give them.

    Each has a length and gives (image, class) for a place. Images are pictures or uint8 arrays of one size,
    so give it no transform that makes floats of them.

    Raises:
        InputError: images that are none, or of several sizes.
    """
    arrays: dict[str, Any] = {}
    for part, data in (("private", private), ("public", public)):
        pairs = [data[place] for place in range(len(data))]
        arrays[f"{part}_images"] = _stacked([image for image, _ in pairs], f"{part} images")
        arrays[f"{part}_labels"] = np.array([int(label) for _, label in pairs], dtype=np.int64)
    return arrays | {"class_names": getattr(private, "classes", None)}


def from_partitions(
    partitions: Sequence[Any], public: Any, *, inputs: str = "image", label: str = "label"
) -> dict[str, Any]:
    """The arrays of data sets of Hugging Face's kind, one a party and a public one; `load()` may give them.

    Such are `[federated.load_partition(i) for i in range(250)]` and `federated.load_split("test")` of
    flwr-datasets. `inputs` and `label` name their columns: pictures, or rows of numbers, and classes.

    Raises:
        InputError: a column that is not there, or holds inputs that are none.
    """
    parts = [_columns(each, inputs, label, f"partition {party}") for party, each in enumerate(partitions)]
    shared, truth = _columns(public, inputs, label, "the public part")
    if not parts:
        raise InputError("no partition: one a party is meant")
    shapes = {images.shape[1:] for images, _ in parts}
    if len(shapes) > 1:
        raise InputError(f"partitions have inputs of several shapes: {', '.join(map(str, sorted(shapes)))}")
    known = getattr(getattr(public, "features", {}).get(label), "names", None)
    return {
        "private_images": np.concatenate([images for images, _ in parts]),
        "private_labels": np.concatenate([labels for _, labels in parts]),
        "public_images": shared,
        "public_labels": truth,
        "owners": np.repeat(np.arange(len(parts)), [len(labels) for _, labels in parts]),
        "class_names": known,
    }


def _columns(data: Any, inputs: str, label: str, what: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    try:
        given, labels = list(data[inputs]), data[label]
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{what}: has no columns {inputs} and {label}") from error
    return _stacked(given, f"{what}: {inputs}"), np.asarray(labels, dtype=np.int64)


def _stacked(given: Sequence[Any], what: str) -> NDArray[Any]:
    arrays = [np.asarray(each) for each in given]
    shapes = sorted({each.shape for each in arrays}, key=str)
    if len(shapes) != 1:
        raise InputError(f"{what}: {len(shapes)} different shapes; inputs of one shape are meant")
    return np.stack(arrays)
