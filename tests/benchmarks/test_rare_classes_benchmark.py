"""A class of a tenth of the private records: what 50 light teachers say of it with and without class weights.

    pytest -m benchmark -s tests/benchmarks/test_rare_classes_benchmark.py

Two classes of a data set, the second cut down to a ninth of the first; recall of each among the public
inputs, their mean (balanced accuracy), and the share of each class's inputs on which four in five teachers
agree.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks import heads
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.teachers.network import train_teacher

PARTIES, AGREED = 50, 0.8

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize(
    ("name", "usual", "rare"),
    [
        ("fashion-mnist", 0, 6),
        ("fashion-mnist", 2, 4),
        ("mnist", 4, 9),
        ("mnist", 3, 5),
        ("glyph", 0, 1),
        ("glyph", 2, 3),
    ],
)
def test_class_weights_give_a_rare_class_its_votes(
    name: str, usual: int, rare: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    data = load_dataset(name, data_dir=shared / "data")
    weighted = _balanced(data, usual, rare, "weighted")
    monkeypatch.setattr(heads, "class_weights", lambda labels: torch.ones(len(labels), dtype=torch.float64))
    assert weighted > _balanced(data, usual, rare, "unweighted")


def _balanced(data: Dataset, usual: int, rare: int, how: str) -> float:
    rng = np.random.default_rng(0)
    often, seldom = (rng.permutation(np.flatnonzero(data.private_labels == each)) for each in (usual, rare))
    rows = rng.permutation(np.concatenate([often, seldom[: len(often) // 9]]))
    asked = np.flatnonzero(np.isin(data.public_labels[: data.num_queries], (usual, rare)))
    truth = (data.public_labels[asked] == rare).astype(np.int64)
    totals = _votes(data, rows, rare, data.public_images[asked])
    recall = [100 * float(np.mean(totals[truth == each].argmax(axis=1) == each)) for each in (0, 1)]
    agreed = [100 * float(np.mean(totals[truth == each].max(axis=1) >= AGREED * PARTIES)) for each in (0, 1)]
    print(
        f"{data.name} {usual}/{rare}, {how}: recall {recall[0]:.1f} and {recall[1]:.1f} %, balanced "
        f"{np.mean(recall):.1f} %; agreed on {agreed[0]:.0f} and {agreed[1]:.0f} %"
    )
    return float(np.mean(recall))


def _votes(data: Dataset, rows: NDArray[np.int64], rare: int, asked: NDArray[np.uint8]) -> NDArray[np.int64]:
    encoder = fit_encoder(data.public_images[: data.num_queries])
    totals = np.zeros((len(asked), 2), dtype=np.int64)
    for seed, part in enumerate(np.array_split(rows, PARTIES)):
        teacher = train_teacher(
            data.private_images[part],
            (data.private_labels[part] == rare).astype(np.int64),
            num_classes=2,
            settings=TeacherSettings(name="encoder-head"),
            seed=seed,
            encoder=encoder,
        )
        totals[np.arange(len(asked)), teacher.predict(asked)] += 1
    return totals
