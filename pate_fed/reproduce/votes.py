"""What 250 teachers say of the first 9,000 public images: totals made once and kept beside the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, partition, pool_digest
from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.device import resolve_device
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.workers import as_ready

__all__ = ["TEACHERS", "TRAINED", "ensemble_totals", "inputs_of", "read_totals", "teachers_totals"]

TEACHERS, TRAINED = 250, 9000
AT_ONCE = 25  # light teachers of 240 records in one batch
RECORDS = 6000  # of all plain heads in one batch
PLAIN_RIDGE = 0.03  # without moved copies; flat from 0.01 to 0.1 on Fashion-MNIST


def teachers_totals(
    dataset: Dataset, *, path: Path, teacher: str, device: str, say: Callable[[str], None], workers: int = 1
) -> NDArray[np.int64]:
    """Votes of all teachers on the first public images, int64 (9000, classes); kept at `path`.

    Raises:
        InputError: what lies at `path` are no totals, or totals of other data.
    """
    asked, classes = dataset.public_images[:TRAINED], int(dataset.private_labels.max()) + 1
    if path.exists():
        return read_totals(path, rows=len(asked), classes=classes, data=_data_digest(dataset))
    parts = partition(dataset.private_labels, num_parties=TEACHERS, scheme="iid", seed=0)
    totals = np.zeros((len(asked), classes), dtype=np.int64)
    votes = _light(dataset, parts, device) if teacher == "encoder-head" else None
    if teacher == "small-cnn" and resolve_device(device) != "cpu":
        votes = _many(dataset, parts, device)
    if votes is None:
        one = partial(_one, dataset, teacher, device)
        votes = as_ready(one, list(enumerate(parts)), workers=workers)
    for number, said in enumerate(votes):
        totals[np.arange(len(asked)), said] += 1
        _count(say, number + 1, len(parts))
    np.savez_compressed(path, totals=totals.astype(np.uint16), data=np.array(_data_digest(dataset)))
    return totals


def ensemble_totals(
    dataset: Dataset, *, path: Path, count: int, device: str, say: Callable[[str], None]
) -> NDArray[np.int64]:
    """As `teachers_totals`, of `count` heads on the public encoder, of their records alone; kept at `path`.

    Without moved copies of the records a head is a little worse and learns many times as fast.

    Raises:
        InputError: what lies at `path` are no totals, or totals of other data.
    """
    asked, classes = dataset.public_images[:TRAINED], int(dataset.private_labels.max()) + 1
    if path.exists():
        return read_totals(path, rows=len(asked), classes=classes, data=_data_digest(dataset))
    parts = partition(dataset.private_labels, num_parties=count, scheme="iid", seed=0)
    totals = np.zeros((len(asked), classes), dtype=np.int64)
    for number, said in enumerate(_plain(dataset, parts, device)):
        totals[np.arange(len(totals)), said] += 1
        _count(say, number + 1, count)
    np.savez_compressed(path, totals=totals.astype(np.uint16), data=np.array(_data_digest(dataset)))
    return totals


def _count(say: Callable[[str], None], number: int, count: int) -> None:
    """Say every twentieth part of the way: a line for each teacher would push everything else away."""
    if 20 * number // count > 20 * (number - 1) // count:
        say(f"teacher {number} of {count}")


def read_totals(
    path: Path, *, rows: int | None = None, classes: int | None = None, data: str | None = None
) -> NDArray[np.int64]:
    """Totals from an .npz with an array `totals` or an .npy, the first `rows` of them: int64 (n, classes).

    `data` is the digest of the data set that they must be of, where the .npz names one.

    Raises:
        InputError: there are none, too few of them, they are not one vote of each teacher on each input, or
            they are of other data.
    """
    made_from = None
    try:
        kept = np.load(path, allow_pickle=False)
        if not isinstance(kept, np.ndarray):
            with kept:
                made_from = str(kept["data"]) if "data" in kept else None
                kept = kept["totals"]
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no totals") from error
    if None not in (data, made_from) and data != made_from:
        raise InputError(f"{path}: totals of teachers of other data; remove it, or give another --out")
    found = np.asarray(kept)
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
    plan: Reproduction, dataset: Dataset, totals: Mapping[str, NDArray[np.int64]], *, name: str = ""
) -> dict[str, str]:
    """What rows are made from, for `bind_rows`: the scale, and digests of the data set and of all totals.

    `name` tells data sets apart where a command takes several.
    """
    before = f"{name} " if name else ""
    images, labels = _data_digests(dataset)
    return {
        "scale": "paper" if plan.paper else "quick",
        f"{before}images": images,
        f"{before}labels": labels,
        **{key: _digest(each) for key, each in totals.items()},
    }


def _data_digests(dataset: Dataset) -> tuple[str, str]:
    """Of all images, and of all labels."""
    pixels = "".join(pool_digest(each) for each in (dataset.private_images, dataset.public_images))
    answers = "".join(_digest(each) for each in (dataset.private_labels, dataset.public_labels))
    return sha256(pixels.encode()).hexdigest(), sha256(answers.encode()).hexdigest()


def _data_digest(dataset: Dataset) -> str:
    return sha256("".join(_data_digests(dataset)).encode()).hexdigest()


def _digest(numbers: NDArray[np.int64]) -> str:
    whole = np.ascontiguousarray(numbers, dtype="<i8")
    return sha256(f"{whole.shape}\n".encode() + whole.tobytes()).hexdigest()


def _one(
    dataset: Dataset, name: str, device: str, numbered: tuple[int, NDArray[np.int64]]
) -> NDArray[np.int64]:
    from pate_fed.learning.teachers.network import train_teacher

    number, part = numbered
    teacher = train_teacher(
        dataset.private_images[part],
        dataset.private_labels[part],
        num_classes=int(dataset.private_labels.max()) + 1,
        settings=TeacherSettings(name=name),
        seed=number,
        device=device,
    )
    return teacher.predict(dataset.public_images[:TRAINED])


def _many(dataset: Dataset, parts: list[NDArray[np.int64]], device: str) -> Iterator[NDArray[np.int64]]:
    """Votes of small networks, all trained in one program."""
    from pate_fed.learning.teachers.batched import train_many

    least = min(len(part) for part in parts)
    teachers = train_many(
        [dataset.private_images[part[:least]] for part in parts],
        [dataset.private_labels[part[:least]] for part in parts],
        num_classes=int(dataset.private_labels.max()) + 1,
        settings=TeacherSettings(name="small-cnn"),
        seeds=range(len(parts)),
        device=device,
    )
    for teacher in teachers:
        yield teacher.predict(dataset.public_images[:TRAINED])


def _light(dataset: Dataset, parts: list[NDArray[np.int64]], device: str) -> Iterator[NDArray[np.int64]]:
    """Votes of heads on the public encoder, one teacher after another, trained many at once."""
    import torch

    from pate_fed.learning.inputs import to_tensor
    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.networks.heads import head_scores
    from pate_fed.learning.teachers.closed_form import shifted_copies

    encoder = fit_encoder(dataset.public_images[:TRAINED])
    front = encoder.preprocessing().to(device)
    public = torch.from_numpy(encoder.transform(dataset.public_images[:TRAINED], device)).to(device)
    labels = torch.from_numpy(np.array(dataset.private_labels)).to(device)
    least = min(
        len(part) for part in parts
    )  # a batch wants parts of one size: at most one record is left out
    rows = torch.from_numpy(np.stack([part[:least] for part in parts])).to(device)
    for batch in torch.split(rows, AT_ONCE):
        pixels = to_tensor(dataset.private_images[batch.flatten().cpu().numpy()], device)
        copies = torch.stack([front(each) for each in shifted_copies(pixels)])  # (copies, AT_ONCE·n, d)
        private = copies.view(len(copies), *batch.shape, -1).transpose(0, 1)  # (AT_ONCE, copies, n, d)
        scores = head_scores(private, labels[batch], public, num_classes=int(labels.max()) + 1)
        yield from np.asarray(scores.argmax(dim=-1).cpu().numpy(), dtype=np.int64)


def _plain(dataset: Dataset, parts: list[NDArray[np.int64]], device: str) -> Iterator[NDArray[np.int64]]:
    """As `_light`, from the records alone."""
    import torch

    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.networks.heads import head_scores

    encoder = fit_encoder(dataset.public_images[:TRAINED])
    public = torch.from_numpy(encoder.transform(dataset.public_images[:TRAINED], device)).to(device)
    labels = torch.from_numpy(np.array(dataset.private_labels)).to(device)
    least = min(len(part) for part in parts)
    classes = int(labels.max()) + 1
    rows = np.stack([part[:least] for part in parts])
    for some in np.split(rows, range(0, len(rows), min(AT_ONCE, max(1, RECORDS // least)))[1:]):
        own = encoder.transform(dataset.private_images[some.ravel()], device)
        private = torch.from_numpy(own).to(device).view(len(some), 1, least, -1)
        answers = labels[torch.from_numpy(some).to(device)]
        scores = head_scores(private, answers, public, num_classes=classes, strength=PLAIN_RIDGE)
        yield from np.asarray(scores.argmax(dim=-1).cpu().numpy(), dtype=np.int64)
