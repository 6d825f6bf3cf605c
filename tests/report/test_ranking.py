"""Two classes told apart: area, operating points, calibration and subgroups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from pate_fed.data import Schema
from pate_fed.report.ranking import CalibrationLine, Ranking, subgroups


def test_the_area_under_the_roc_curve_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 300)
    scores = np.round(np.clip(rng.normal(0.4 + 0.2 * truth, 0.25), 0, 1), 2)  # with ties
    found = Ranking.of(np.stack([1 - scores, scores], axis=1), truth)
    assert found is not None
    no, yes = scores[truth == 0], scores[truth == 1]
    pairs = (yes[:, None] > no).mean() + (yes[:, None] == no).mean() / 2
    assert found.auc == pytest.approx(pairs) == pytest.approx(roc_auc_score(truth, scores))
    cut = np.sort(no)[math.ceil(0.9 * len(no)) - 1]
    assert (no <= cut).mean() >= 0.9 and found.at()[0] == pytest.approx((yes > cut).mean())
    assert (found.positive, found.negative) == (len(yes), len(no)) and "AUC 0." in found.text
    unknown = np.concatenate([truth, [-1, -1]])
    assert (
        Ranking.of(np.stack([1 - np.append(scores, [0, 1]), np.append(scores, [0, 1])], 1), unknown) == found
    )
    assert Ranking.of(np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0])) is None
    assert Ranking.of(np.full((4, 2), 0.5), np.array([0, 1, 0, 0])) is None


def test_its_interval_covers_and_is_not_too_wide() -> None:
    true = 0.76025  # of N(0, 1) and N(1, 1): Φ(1/√2)
    covered, misses = 0, []
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        truth = np.arange(120) % 3 // 2
        scores = rng.normal(truth.astype(np.float64), 1)
        found = Ranking.of(np.stack([-scores, scores], axis=1), truth)
        assert found is not None
        low, high = found.interval
        covered += low <= true <= high
        misses.append(true < low)
    assert 0.93 < covered / 1000 < 0.97 and 0.01 < np.mean(misses) < 0.05


def test_an_operating_point_is_no_better_than_the_curve_and_foretells_what_is_counted() -> None:
    rng = np.random.default_rng(1)
    truth = (np.arange(4000) % 5 == 0).astype(np.int64)  # 20 % are sick
    scores = rng.normal(truth * 1.5, 1.0)
    found = Ranking.of(np.stack([-scores, scores], axis=1), truth)
    assert found is not None and list(found.roc) == sorted(found.roc) and found.roc[-1] == 1.0
    for specificity in (0.5, 0.8, 0.925, 0.99):
        share, (low, high) = found.at(specificity)
        cut = np.quantile(scores[truth == 0], specificity)
        assert low <= share <= high and abs(share - (scores[truth == 1] > cut).mean()) < 0.02
        (ppv, _), (npv, _) = found.predictive(0.2, specificity)
        called = scores > cut
        assert abs(ppv - truth[called].mean()) < 0.03 and abs(npv - 1 + truth[~called].mean()) < 0.01


def test_a_line_finds_slope_and_intercept_of_what_made_the_odds() -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000)
    truth = (rng.logistic(size=20_000) < odds).astype(np.int64)
    for factor, added in ((1.0, 0.0), (4.0, 0.0), (1.0, 0.7)):
        second = 1 / (1 + np.exp(-(factor * odds + added)))
        found = CalibrationLine.of(np.stack([1 - second, second], axis=1), truth)
        assert found is not None and abs(found.slope - 1 / factor) < 0.03
        assert found.slope_interval[0] < 1 / factor < found.slope_interval[1]
        assert found.intercept_interval[0] < -added / factor < found.intercept_interval[1]
    unknown = np.where(np.arange(20_000) < 100, -1, truth)
    assert CalibrationLine.of(np.stack([1 - second, second], 1), unknown) != found
    assert CalibrationLine.of(np.eye(2)[truth], truth) is None
    assert CalibrationLine.of(np.full((9, 3), 1 / 3), np.arange(9) % 3) is None


def test_subgroups_are_those_of_the_rows_and_small_ones_are_left_out() -> None:
    schema = Schema(
        label="ill",
        classes=("no", "yes"),
        columns=(("Age", ()), ("dose", ()), ("sex", ("f", "m")), ("ward", tuple("ABCDEFG"))),
    )
    rng, count = np.random.default_rng(0), 300
    age, female = rng.integers(10, 90, count), rng.random(count) < 0.5
    age[:200] = np.where(age[:200] < 18, 50, age[:200])
    rows = np.column_stack([age, rng.normal(size=count), female, ~female, np.zeros((count, 7))])
    truth = rng.integers(-1, 2, count)
    shares = np.eye(2)[np.where(female, np.maximum(truth, 0), 0)] * 0.8 + 0.1  # right about women alone
    found = {each.name: each for each in subgroups(shares, truth, rows, schema)}
    known = truth >= 0
    assert {*found} - {"Age below 18"} == {
        "Age 18 to 39",
        "Age 40 to 64",
        "Age 65 and over",
        "sex f",
        "sex m",
    }
    for name, inside in (("sex f", female), ("sex m", ~female), ("Age 40 to 64", (age >= 40) & (age < 65))):
        right = shares.argmax(axis=1) == truth
        assert (found[name].count, found[name].right) == ((known & inside).sum(), (right & inside).sum())
    assert found["sex f"].auc == 1.0 and found["sex m"].auc == 0.5
    assert not subgroups(shares[:19], truth[:19], rows[:19], schema)
