"""Figures of noisy counts: their intervals hold what is true, noise included; no noise makes them fail."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pate_fed.report import figures
from pate_fed.report.own_records import Estimate, HeldOutCount, OwnRecords, even_edges
from pate_fed.report.result import RunResult

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


@pytest.mark.parametrize(
    ("records", "sigma"),
    [
        *((600, 5.0), (20_000, 20.0)),
        *(pytest.param(2000, sigma, marks=pytest.mark.slow) for sigma in (0.1, 5.0)),
    ],
)
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
    for name, those in held.items():
        assert len(those) > 100 and 0.90 <= sum(those) / len(those) <= 0.998, (name, sum(those), len(those))


@pytest.mark.parametrize(
    ("records", "apart", "bins", "noise", "most"),
    [(200, 4, 4, 0.2, 1), (200, 5, 4, 0.1, 1), (400, 6, 16, 0.05, 1), (1000, 2, 8, 0.02, 0.985)],
)
def test_intervals_hold_the_truth_of_a_student_that_is_nearly_always_right(
    records: int, apart: float, bins: int, noise: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ends fall on 1 it is held at least so often, else neither too often; shares lean little."""
    monkeypatch.setattr(HeldOutCount, "_line", property(lambda _: (0.0, 1.0)))  # no share needs it
    rng, sigma = np.random.default_rng(8), noise * records / math.sqrt(4 * bins)
    sure = 1 / (1 + np.exp(-apart * rng.normal(apart / 2, 1, 100_000)))
    edges = np.tile(np.quantile(np.maximum(sure, 1 - sure), np.arange(1, bins) / bins), (2, 1))
    truth = (1 + math.erf(apart / math.sqrt(8))) / 2  # of each class, and so of all
    held, miss, half = dict[str, list[bool]](), list[float](), list[float]()
    for _ in range(250):
        label = rng.integers(0, 2, records)
        chance = 1 / (1 + np.exp(-apart * rng.normal((label - 0.5) * apart, 1)))
        top, said = np.maximum(chance, 1 - chance), (chance > 0.5).astype(np.int64)
        table = rng.normal(0, sigma, (2 * bins, 2))
        np.add.at(table, (said * bins + (top[:, None] > edges[said]).sum(axis=1), label), 1)
        own = HeldOutCount(table=table, sigma=sigma, edges=edges).figures(at_threshold=False)
        for name, each in (("right", own.accuracy), ("found", own.recall[1]), ("balanced", own.balanced)):
            if each is not None:
                assert each.low < each.high
                held.setdefault(name, []).append(each.low <= truth <= each.high)
        if own.balanced is not None:
            miss.append(own.balanced.share - truth)
            half.append((own.balanced.high - own.balanced.low) / 2)
    for name, those in held.items():
        assert len(those) >= 200 and 0.92 <= sum(those) / len(those) <= most, (name, sum(those), len(those))
    assert abs(float(np.mean(miss))) < 0.4 * float(np.mean(half)), (np.mean(miss), np.mean(half))


def test_an_interval_has_a_width_where_noise_took_the_wrong_ones_below_none() -> None:
    table = np.array([[50.0, -5.0], [-6.0, 40.0]])
    own = HeldOutCount(table=table, sigma=2.0, edges=np.zeros((2, 0))).figures(at_threshold=False)
    for each in (own.accuracy, own.balanced, *own.recall):
        assert each is not None and each.share == each.high == 1 and each.low < 0.95


def _balanced_truth(chance: np.ndarray, label: np.ndarray, at: float | None) -> float:
    called = chance > (0.5 if at is None else at)
    return float((called[label == 1].mean() + (~called)[label == 0].mean()) / 2)


@pytest.mark.parametrize(
    ("apart", "rare", "records", "bins", "noise"), [(4, 0.5, 200, 4, 0.2), (2, 0.1, 900, 8, 0.03)]
)
def test_an_operating_point_must_win_by_more_than_its_noise(
    apart: float, rare: float, records: int, bins: int, noise: float
) -> None:
    """It does no harm to a student that is good, and finds the rare class for one that seldom calls it."""
    rng, sigma = np.random.default_rng(9), noise * records / math.sqrt(4 * bins)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        label = (rng.random(count) < rare).astype(np.int64)
        odds = apart * rng.normal((label - 0.5) * apart, 1) + math.log(rare / (1 - rare))
        return label, 1 / (1 + np.exp(-odds))

    label, chance = draw(50_000)
    edges, gains = even_edges(np.stack([1 - chance, chance], axis=1), bins), list[float]()
    for _ in range(60):
        own, sure = draw(records)
        top, said = np.maximum(sure, 1 - sure), (sure > 0.5).astype(np.int64)
        table = rng.normal(0, sigma, (2 * bins, 2))
        np.add.at(table, (said * bins + (top[:, None] > edges[said]).sum(axis=1), own), 1)
        shift = HeldOutCount(table=table, sigma=sigma, edges=edges).shift
        at = None if shift is None else 1 / (1 + math.exp(shift))
        gains.append(_balanced_truth(chance, label, at) - _balanced_truth(chance, label, None))
    assert np.mean(gains) > (0.06 if rare < 0.5 else -0.003) and min(gains) > -0.06


def test_rows_that_count_as_called_are_those_that_the_published_chance_calls() -> None:
    """Also where a student is so sure that rows end beyond what a published chance may be."""
    sure = 1 - np.array([1e-3, 1e-7, 1e-8, 1e-9])
    edges, bins = np.tile(sure, (2, 1)), 5
    table = np.zeros((2 * bins, 2))
    table[:bins] = [[5, 20], [5, 20], [5, 100], [5, 100], [400, 100]]  # the second class, never called
    table[bins:] = [[0, 5]] * bins
    counted = HeldOutCount(table=table, sigma=0.1, edges=edges)
    own = counted.figures(at_threshold=True)
    assert own.at is not None and own.recall[1] is not None
    ends = 1 - edges[0]  # of the first class's rows but the last, chances of the second where each ends
    called = table[:bins, 1][np.append(ends, 0)[:bins] >= own.at * (1 - 1e-9)].sum() + table[bins:, 1].sum()
    assert own.recall[1].share == pytest.approx(called / table[:, 1].sum())


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


def test_a_chosen_point_is_drawn_also_where_its_recalls_are_not_told(run_result: RunResult) -> None:
    """What the threshold is called by stands in the caption, with a ROC curve or without."""
    result = run_result
    own = OwnRecords(records=90.0, noise=20.0, recall=(None, None), at=0.4)
    accuracy = replace(result.outcome.accuracy, own_records=own)
    drawn = figures.own_records(replace(result, outcome=replace(result.outcome, accuracy=accuracy)))
    assert drawn is not None and "is called from a chance of 0.4 on" in drawn.caption
