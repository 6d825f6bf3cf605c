"""What an ensemble of teachers says of a data set's queries: totals made once and kept beside the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, partition, pool_digest
from pate_fed.disk import load_arrays, write_arrays
from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings
from pate_fed.reproduce.driver import Log, Reproduction
from pate_fed.runtime.workers import as_ready

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]
TEACHERS = 250
PLAIN_RIDGE = 0.03  # of a plain head; flat from 0.01 to 0.1 on Fashion-MNIST
AT_ONCE, RECORDS_AT_ONCE = 25, 6000  # heads in one batch, and their records


def teachers_totals(plan: Reproduction, dataset: Dataset, path: Path, *, teacher: str, log: Log) -> Ints:
    """Votes of 250 teachers on the queries, int64 (queries, classes); kept at `path`."""
    votes = partial(_votes, plan, dataset, teacher)
    return kept_totals(dataset, path, votes, count=TEACHERS, log=log)


def ensemble_totals(plan: Reproduction, dataset: Dataset, count: int, log: Log) -> Ints:
    """As `teachers_totals`, of `count` plain heads on the public encoder, or those that `plan` names.

    A plain head is "encoder-head" without moved copies of the records: a little worse, and quick.
    """
    path = plan.totals or plan.out_dir / f"totals-{dataset.name}-{count}.npz"
    votes = partial(_head_votes, dataset, device=plan.device, moved=False)
    return kept_totals(dataset, path, votes, count=count, log=log)


def kept_totals(
    dataset: Dataset, path: Path, votes: Callable[[list[Ints]], Iterable[Ints]], *, count: int, log: Log
) -> Ints:
    """Totals of `count` teachers, from `path` or from what `votes` gives for parts of the records."""
    queries, classes = dataset.num_queries, dataset.num_classes
    if path.exists():
        return read_totals(path, rows=queries, classes=classes, data=_data_digest(dataset))
    parts = partition(dataset.private_labels, num_parties=count, scheme="iid", seed=0)
    totals = np.zeros((queries, classes), dtype=np.int64)
    for number, said in enumerate(votes(parts), start=1):
        totals[np.arange(queries), said] += 1
        # A line for each teacher would push everything else away.
        if 20 * number // len(parts) > 20 * (number - 1) // len(parts):
            log(f"teacher {number} of {len(parts)}")
    write_arrays(path, totals=totals.astype(np.uint16), data=np.array(_data_digest(dataset)))
    return totals


def ensemble_size(totals: Ints) -> dict[str, int]:
    """The teachers and classes of these totals, as mechanisms take them."""
    return {"num_teachers": int(totals[0].sum()), "num_classes": totals.shape[1]}


def authors_totals(plan: Reproduction, dataset: Dataset) -> Ints:
    """Votes of the 250 teachers on MNIST that the authors of PATE published, int64 (queries, classes)."""
    path = plan.published("mnist_250_teachers.npy")
    return read_totals(path, rows=dataset.num_queries, classes=dataset.num_classes)


def read_totals(
    path: Path, *, rows: int | None = None, classes: int | None = None, data: str | None = None
) -> Ints:
    """Totals from an .npz with an array `totals` or an .npy, the first `rows` of them: int64 (n, classes).

    `data` is the digest of the data set that they must be of, where the .npz names one.

    Raises:
        InputError: there are none, too few of them, they are not one vote of each teacher on each input, or
            they are of other data.
    """
    made_from = None
    try:
        held = load_arrays(path)
        made_from = str(held["data"]) if "data" in held else None
        stored = held["" if "" in held else "totals"]
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no totals") from error
    if None not in (data, made_from) and data != made_from:
        raise InputError(f"{path}: totals of teachers of other data; remove it, or give another --run-dir")
    found = np.asarray(stored)
    wrong = _fault(found, rows, classes)
    if wrong:
        raise InputError(f"{path}: {wrong}; totals are the teachers' votes for each class, a row an input")
    return found[:rows].astype(np.int64)


def _fault(totals: NDArray[np.generic], rows: int | None, classes: int | None) -> str:
    """What keeps an array from being totals, in words; nothing where it is."""
    if totals.ndim != 2 or 0 in totals.shape:
        return f"an array with shape {totals.shape}, where (inputs, classes) is meant"
    if totals.dtype.kind not in "iuf" or not np.isfinite(totals).all() or (totals % 1).any():
        return f"entries ({totals.dtype}) that are not whole numbers"
    if totals.min() < 0:
        return f"an entry of {totals.min()}, where no number of votes is negative"
    sums = totals.sum(axis=1)
    if sums.min() != sums.max():
        return f"rows of {sums.min():g} to {sums.max():g} votes, where all have the same number"
    if rows is not None and len(totals) < rows:
        return f"{len(totals):,} rows, where at least {rows:,} are meant"
    if classes is not None and totals.shape[1] != classes:
        return f"{totals.shape[1]} columns, where the data set has {classes} classes"
    return ""


def inputs_of(
    plan: Reproduction, datasets: Iterable[Dataset], arrays: Mapping[str, NDArray[np.generic]]
) -> dict[str, str]:
    """What rows are made from, for `bind_rows`: the scale, and digests of data sets and of named arrays."""
    found = {"scale": "paper" if plan.paper else "quick"}
    for dataset in datasets:
        images, labels = _data_digests(dataset)
        found |= {f"{dataset.name} images": images, f"{dataset.name} labels": labels}
    return found | {name: _digest(each) for name, each in arrays.items()}


def _data_digests(dataset: Dataset) -> tuple[str, str]:
    """Of all images, and of all labels."""
    pixels = "".join(pool_digest(each) for each in (dataset.private_images, dataset.public_images))
    answers = "".join(_digest(each) for each in (dataset.private_labels, dataset.public_labels))
    return sha256(pixels.encode()).hexdigest(), sha256(answers.encode()).hexdigest()


def _data_digest(dataset: Dataset) -> str:
    return sha256("".join(_data_digests(dataset)).encode()).hexdigest()


def _digest(numbers: NDArray[np.generic]) -> str:
    whole = np.ascontiguousarray(numbers, dtype="<i8")
    return sha256(f"{whole.shape}\n".encode() + whole.tobytes()).hexdigest()


def _votes(plan: Reproduction, dataset: Dataset, teacher: str, parts: list[Ints]) -> Iterable[Ints]:
    """Each teacher's classes for the queries, as they are ready."""
    from pate_fed.learning.tensors import resolve_device

    if teacher == "encoder-head":
        return _head_votes(dataset, parts, device=plan.device, moved=True)
    if teacher == "small-cnn" and resolve_device(plan.device) != "cpu":
        return _batched_votes(dataset, parts, plan.device)
    one = partial(_network_votes, dataset, teacher, plan.device)
    return as_ready(one, list(enumerate(parts)), workers=plan.workers)


def _network_votes(dataset: Dataset, teacher: str, device: str, numbered: tuple[int, Ints]) -> Ints:
    from pate_fed.learning import train_teacher

    number, part = numbered
    trained = train_teacher(
        dataset.private_images[part],
        dataset.private_labels[part],
        num_classes=dataset.num_classes,
        settings=TeacherSettings(name=teacher),
        seed=number,
        device=device,
    )
    return trained.predict(dataset.public_images[: dataset.num_queries])


def _batched_votes(dataset: Dataset, parts: list[Ints], device: str) -> Iterator[Ints]:
    """Votes of small networks, all trained in one program."""
    from pate_fed.learning import train_many

    least = min(len(part) for part in parts)
    teachers = train_many(
        [dataset.private_images[part[:least]] for part in parts],
        [dataset.private_labels[part[:least]] for part in parts],
        num_classes=dataset.num_classes,
        settings=TeacherSettings(name="small-cnn"),
        seeds=range(len(parts)),
        device=device,
    )
    for teacher in teachers:
        yield teacher.predict(dataset.public_images[: dataset.num_queries])


def _head_votes(dataset: Dataset, parts: list[Ints], *, device: str, moved: bool) -> Iterator[Ints]:
    """Votes of heads on the public encoder, many fitted at once; `moved` with moved copies of the records."""
    import torch

    from pate_fed.learning import fit_encoder
    from pate_fed.learning.networks.heads import TEACHER_RIDGE, head_scores
    from pate_fed.learning.teachers.network import shifted_copies
    from pate_fed.learning.tensors import to_tensor

    asked = dataset.public_images[: dataset.num_queries]
    encoder = fit_encoder(asked)
    preprocess = encoder.preprocessing().to(device)
    public = torch.from_numpy(encoder.transform(asked, device)).to(device)
    labels = torch.from_numpy(np.array(dataset.private_labels)).to(device)
    # A batch wants parts of one size: at most one record of each is left out.
    least = min(len(part) for part in parts)
    rows = torch.from_numpy(np.stack([part[:least] for part in parts])).to(device)
    for batch in torch.split(rows, min(AT_ONCE, max(1, RECORDS_AT_ONCE // least))):
        pixels = to_tensor(dataset.private_images[batch.flatten().cpu().numpy()], device)
        copies: list[Tensor] = shifted_copies(pixels) if moved else [pixels]
        features = torch.stack([preprocess(each) for each in copies])  # (copies, heads·n, d)
        private = features.view(len(copies), *batch.shape, -1).transpose(0, 1)  # (heads, copies, n, d)
        strength = TEACHER_RIDGE if moved else PLAIN_RIDGE
        classes = dataset.num_classes
        scores = head_scores(private, labels[batch], public, num_classes=classes, strength=strength)
        yield from np.asarray(scores.argmax(dim=2).cpu().numpy(), dtype=np.int64)
