"""Figures of noisy counts: their intervals hold what is true, noise included; no noise makes them fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.report.own_records import Estimate, HeldOutCount, even_edges

BINS = 8


def _table(rng: np.random.Generator, records: int, *, rare: float = 0.3) -> np.ndarray:
    """Counts of two classes by a score that tells them apart a little: int64 (2 · BINS, 2)."""
    truth = (rng.random(records) < rare).astype(np.int64)
    chance = 1 / (1 + np.exp(-(rng.normal(0, 1, records) + 2.0 * truth - 1.5)))
    top, said = np.maximum(chance, 1 - chance), (chance > 0.5).astype(np.int64)
    row = said * BINS + (top[:, None] > EDGES[said]).sum(axis=1)
    table = np.zeros((2 * BINS, 2), dtype=np.int64)
    np.add.at(table, (row, truth), 1)
    return table


EDGES = np.tile(np.linspace(0.5, 1, BINS + 1)[1:-1], (2, 1))


def _truth(rare: float = 0.3) -> dict[str, float]:
    table = _table(np.random.default_rng(0), 2_000_000, rare=rare)
    whole = HeldOutCount(table=table.astype(float), sigma=1e-3, edges=EDGES).figures(at_threshold=False)
    assert whole.accuracy and whole.balanced and whole.auc and whole.recall[1]
    found = {
        "accuracy": whole.accuracy,
        "balanced": whole.balanced,
        "auc": whole.auc,
        "recall": whole.recall[1],
    }
    return {name: each.share for name, each in found.items()}


@pytest.mark.parametrize(("records", "sigma"), [(2000, 0.1), (2000, 5.0), (600, 5.0), (20_000, 20.0)])
def test_intervals_hold_the_truth_as_often_as_they_say(records: int, sigma: float) -> None:
    """Two-sided: with chance and noise 95 of 100 do, and neither all of them nor half."""
    truth, held = _truth(), dict[str, list[bool]]()
    rng = np.random.default_rng(5)
    for _ in range(200):
        table = _table(rng, records) + rng.normal(0, sigma, (2 * BINS, 2))
        own = HeldOutCount(table=table, sigma=sigma, edges=EDGES).figures(at_threshold=False)
        told = {"accuracy": own.accuracy, "balanced": own.balanced, "auc": own.auc, "recall": own.recall[1]}
        for name, each in told.items():
            if each is not None:
                held.setdefault(name, []).append(each.low <= truth[name] <= each.high)
    for name, each in held.items():
        assert len(each) > 100 and 0.90 <= sum(each) / len(each) <= 0.998, (name, sum(each), len(each))


def test_without_noise_they_are_the_counts_own() -> None:
    table = _table(np.random.default_rng(3), 4000).astype(float)
    own = HeldOutCount(table=table, sigma=1e-6, edges=EDGES).figures(at_threshold=False)
    right = table[:BINS, 0].sum() + table[BINS:, 1].sum()
    assert own.accuracy is not None and own.accuracy.share == pytest.approx(right / 4000)
    assert own.recall[1] is not None
    assert own.recall[1].share == pytest.approx(table[BINS:, 1].sum() / table[:, 1].sum())
    assert own.roc[0] == (0.0, 0.0) and own.roc[-1] == (1.0, 1.0)
    assert (np.diff(np.array(own.roc), axis=0) >= 0).all()
    assert own.records == 4000 and own.at is None
    assert [sure for sure, _ in own.calibration] == sorted(sure for sure, _ in own.calibration)


def test_the_threshold_raises_the_rare_class_s_recall_and_both_recalls_mean() -> None:
    rng = np.random.default_rng(4)
    counted = HeldOutCount(
        table=_table(rng, 3000, rare=0.1) + rng.normal(0, 4, (2 * BINS, 2)), sigma=4.0, edges=EDGES
    )
    plain, chosen = (counted.figures(at_threshold=each) for each in (False, True))
    assert chosen.at is not None and chosen.at < 0.5 and counted.shift is not None
    assert 1 / (1 + math.exp(counted.shift)) == pytest.approx(chosen.at)  # where both scores are equal then
    assert plain.recall[1] and chosen.recall[1] and plain.balanced and chosen.balanced
    assert chosen.recall[1].share > plain.recall[1].share + 0.05
    assert chosen.balanced.share > plain.balanced.share


@pytest.mark.parametrize("classes", [2, 4])
def test_noise_alone_tells_nothing_and_fails_nowhere(classes: int) -> None:
    rng, edges = np.random.default_rng(6), np.tile(np.linspace(0.3, 0.9, 3), (classes, 1))
    for _ in range(50):
        table = rng.normal(0, 30, (4 * classes, classes))
        own = HeldOutCount(table=table, sigma=30.0, edges=edges).figures(at_threshold=True)
        for each in (
            own.accuracy,
            own.balanced,
            own.auc,
            *own.recall,
            *(right for _, right in own.calibration),
        ):
            if each is not None:
                assert 0 <= each.low <= each.share <= each.high <= 1
        assert own.text
    nothing = HeldOutCount(table=np.zeros((4 * classes, classes)), sigma=1.0, edges=edges)
    found = nothing.figures(at_threshold=True)
    assert found.accuracy is None and nothing.shift is None and "nothing is told" in found.text


def test_bins_end_where_inputs_fill_them_alike() -> None:
    shares = np.random.default_rng(7).dirichlet([1, 1, 1], 3000)
    edges = even_edges(shares, 4)
    top, said = shares.max(axis=1), shares.argmax(axis=1)
    for each in range(3):
        counts = np.bincount((top[said == each][:, None] > edges[each]).sum(axis=1), minlength=4)
        assert counts.min() > 0.9 * counts.max()
    assert even_edges(shares[said == 0], 4).shape == (3, 3)  # also where a class is never said
    assert Estimate(share=0.5, low=0.25, high=0.75).text == "50.0 % (25.0 to 75.0 %)"
