"""PATE 2017 on MNIST: its parts, and all in small."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import RECORD, LNMax, epsilon_of
from pate_fed.reproduce import Reproduction, mnist2017, reproduce


def test_gaps_are_shares_of_the_votes() -> None:
    totals = np.array([[8, 2, 0], [5, 5, 0], [0, 0, 10]])
    assert mnist2017.gaps(totals).tolist() == [0.6, 0.0, 1.0]


def test_more_noise_gives_fewer_right_labels() -> None:
    totals = np.tile([140, 60, 50], (400, 1))
    truth = np.zeros(400, dtype=np.int64)
    found = [mnist2017.noisy_accuracy(totals, truth, gamma) for gamma in (0.01, 0.05, 1.0)]
    assert found[0] < found[1] < found[2] == 1.0


def test_the_gan_is_on_the_improved_gans_network() -> None:
    found = {
        (name, paper): mnist2017._settings(name, paper=paper)
        for name in ("gan", "vat")
        for paper in (False, True)
    }
    assert [each.built_on for each in found.values()] == ["dense", "dense", "small-cnn", "deep-cnn"]
    assert [each.stage_epochs for each in found.values()] == [40, 300, 20, 300]
    assert found["gan", True].as_published


def test_mnist_2017_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GAMMAS": (0.05, 1.0), "LABELS": (100,)}.items():
        monkeypatch.setattr(mnist2017, name, value)
    lines = reproduce("pate-2017-mnist", small)
    with small.file("pate-2017-mnist-runs", "csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["source"] for row in rows] == ["authors", "ours"]
    assert float(rows[0]["labels_wrong"]) == 0
    flat = epsilon_of(LNMax(num_teachers=250, num_classes=10, scale=20.0).cost_asked(RECORD) * 100, 1e-5)
    assert all(float(row["epsilon_data_independent"]) == flat for row in rows)
    assert any("DO NOT PUBLISH" in line for line in lines) and any("98.0" in line for line in lines)
    assert (small.out_dir / "pate-2017-mnist-figures-2-3.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("pate-2017-mnist", small) == lines  # nothing is trained again
    with pytest.raises(InputError, match="mnist_250_teachers"):
        reproduce("pate-2017-mnist", Reproduction(data_dir=small.out_dir, out_dir=small.out_dir))
