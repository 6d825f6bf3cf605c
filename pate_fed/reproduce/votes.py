"""What 250 teachers say of the first 9,000 public images: totals made once and kept beside the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, partition
from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings

__all__ = ["TEACHERS", "TRAINED", "read_totals", "teachers_totals"]

TEACHERS, TRAINED = 250, 9000
AT_ONCE = 25  # light teachers in one batch


def teachers_totals(
    dataset: Dataset, *, path: Path, teacher: str, device: str, say: Callable[[str], None]
) -> NDArray[np.int64]:
    """Votes of all teachers on the first public images, int64 (9000, classes); kept at `path`.

    Raises:
        InputError: what lies at `path` are no totals.
    """
    if path.exists():
        return read_totals(path)
    parts = partition(dataset.private_labels, num_parties=TEACHERS, scheme="iid", seed=0)
    asked = dataset.public_images[:TRAINED]
    totals = np.zeros((len(asked), int(dataset.private_labels.max()) + 1), dtype=np.int64)
    votes = _light(dataset, parts, device) if teacher == "encoder-head" else None
    for number, part in enumerate(parts):
        said = next(votes) if votes else _one(dataset, part, number, teacher, device)
        totals[np.arange(len(asked)), said] += 1
        say(f"teacher {number + 1} of {TEACHERS}")
    np.savez_compressed(path, totals=totals.astype(np.uint8))
    return totals


def read_totals(path: Path) -> NDArray[np.int64]:
    """Totals from an .npz with one array `totals` or an .npy, as int64.

    Raises:
        InputError: there are none.
    """
    try:
        kept = np.load(path, allow_pickle=False)
        if isinstance(kept, np.ndarray):
            return np.asarray(kept, dtype=np.int64)
        with kept:
            return np.asarray(kept["totals"], dtype=np.int64)
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no totals") from error


def _one(dataset: Dataset, part: NDArray[np.int64], number: int, name: str, device: str) -> NDArray[np.int64]:
    from pate_fed.learning import train_teacher

    teacher = train_teacher(
        dataset.private_images[part],
        dataset.private_labels[part],
        num_classes=int(dataset.private_labels.max()) + 1,
        settings=TeacherSettings(name=name),
        seed=number,
        device=device,
    )
    return teacher.predict(dataset.public_images[:TRAINED])


def _light(dataset: Dataset, parts: list[NDArray[np.int64]], device: str) -> Iterator[NDArray[np.int64]]:
    """Votes of heads on the public encoder, one teacher after another, trained many at once."""
    import torch

    from pate_fed.learning import fit_encoder
    from pate_fed.learning.heads import vote_with_heads
    from pate_fed.learning.inputs import to_tensor
    from pate_fed.learning.light import moved_copies

    encoder = fit_encoder(dataset.public_images[:TRAINED])
    front = encoder.front().to(device)
    public = torch.from_numpy(encoder.transform(dataset.public_images[:TRAINED], device)).to(device)
    labels = torch.from_numpy(np.array(dataset.private_labels)).to(device)
    least = min(
        len(part) for part in parts
    )  # a batch wants parts of one size: at most one record is left out
    rows = torch.from_numpy(np.stack([part[:least] for part in parts])).to(device)
    for batch in torch.split(rows, AT_ONCE):
        pixels = to_tensor(dataset.private_images[batch.flatten().cpu().numpy()], device)
        copies = torch.stack([front(each) for each in moved_copies(pixels)])  # (copies, AT_ONCE·n, d)
        private = copies.view(len(copies), *batch.shape, -1).transpose(0, 1)  # (AT_ONCE, copies, n, d)
        found = vote_with_heads(private, labels[batch], public, num_classes=int(labels.max()) + 1)
        yield from np.asarray(found.cpu().numpy(), dtype=np.int64)
