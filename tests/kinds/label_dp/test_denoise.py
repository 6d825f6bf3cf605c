"""DenoiseSSL's first half: what clusters confirm, and how good it is."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.kinds.label_dp.learners import denoise, equation8, estimated_accuracy
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy import SeededNoise


def test_denoise_keeps_better_labels_and_foretells_how_good(truth: np.ndarray, public: PublicInputs) -> None:
    many = np.tile(truth, 20)
    clusters = np.random.default_rng(0).integers(0, 25, len(many)) * 4 + many
    clusters[::5] = np.random.default_rng(1).integers(0, 100, len(clusters[::5]))
    response = RandRes(num_classes=4, epsilon=1.0)
    label = response.release(many, SeededNoise(0)).label
    found = denoise(label, clusters, num_clusters=100, num_classes=4)
    kept = float((label == many)[found.agreed].mean())
    measured = float((found.pseudo == many).mean())
    assert kept > 0.85 > response.probability and found.alpha == 0
    assert kept == pytest.approx(equation8(measured, 1.0), abs=0.02)
    guess = estimated_accuracy(found.agreement, keep_probability=response.probability, other=response.other)
    assert guess == pytest.approx(measured, abs=0.04)


def test_counts_spread_to_clusters_nearby() -> None:
    """Forty clusters of few records on a line: alone each majority is chance, together they are right."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 15)
    truth = (clusters >= 20).astype(np.int64)
    label = RandRes(num_classes=2, epsilon=0.5).release(truth, SeededNoise(0)).label
    centres = np.stack([np.arange(40) + 30 * (np.arange(40) >= 20), rng.random(40)], axis=1)
    settings = {"num_clusters": 40, "num_classes": 2}
    alone = denoise(label, clusters, **settings)
    spread = denoise(label, clusters, centres=centres.astype(np.float32), **settings)
    assert spread.alpha > 0
    assert np.mean(spread.pseudo == truth) > np.mean(alone.pseudo == truth) + 0.05


def test_equation_8_at_its_ends() -> None:
    assert equation8(1 / 10, 1.0) == pytest.approx(RandRes(num_classes=10, epsilon=1.0).probability)
    assert equation8(1.0, 1.0) == 1 and equation8(0.0, 1.0) == 0
    assert estimated_accuracy(0.05, keep_probability=0.5, other=0.1) == 0.0
