"""What a method gives is held to shapes, numbers and its own ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.bench.protocol import (
    AUC,
    BALANCED,
    LEAK,
    R2,
    Ledger,
    Spent,
    Task,
    check_ledger,
    check_predictions,
    digest_of,
    epsilon_of_rows,
    least_noise,
    measured,
)
from pate_fed.errors import InputError, IntegrityError

TASK = Task(
    name="t",
    title="t",
    inputs=np.zeros((6, 2)),
    labels=np.array([0, 1, 2, 0, 1, 2]),
    owners=np.array([0, 0, 1, 1, 2, 2]),
    pool=np.zeros((3, 2)),
    test=np.zeros((4, 2)),
    num_classes=3,
)
NUMBER = replace(TASK, labels=np.linspace(0, 9, 6), num_classes=0, target_range=(0.0, 9.0), measure=R2)


def test_a_gaussian_row_costs_what_its_distance_says() -> None:
    """Replacing moves twice what `noise` counts: (ε, δ) of a Gaussian at distance 2/noise, by its law."""
    from scipy.stats import norm

    for noise in (1.0, 4.0):
        mu, delta = 2 / noise, 1e-5
        found = epsilon_of_rows([Spent(noise=noise)], delta)
        exact = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
        assert 0.98 * delta < exact <= delta * 1.0001
    both = epsilon_of_rows([Spent(noise=4.0), Spent(pure=0.5, count=2)], 1e-5)
    assert both == pytest.approx(1 + epsilon_of_rows([Spent(noise=4.0)], 1e-5))


def test_least_noise_keeps_epsilon_and_one_percent_less_would_not() -> None:
    for given in ({"count": 3}, {"sampling": 0.1, "count": 50}):
        row = least_noise(1.0, 1e-5, **given)  # type: ignore[arg-type]
        assert epsilon_of_rows([row], 1e-5) <= 1.0
        assert epsilon_of_rows([replace(row, noise=row.noise / 1.011)], 1e-5) > 1.0


@pytest.mark.parametrize(
    ("task", "given", "says"),
    [
        (TASK, np.zeros((3, 3)), r"predictions \(3, 3\); \(4,\) or \(4, 3\) is meant"),
        (TASK, np.zeros((4, 2)), r"\(4, 2\)"),
        (TASK, [0, 1, 2, 3], "classes from 0 to 3; whole numbers from 0 to 2"),
        (TASK, [0.5, 1, 2, 0], "whole numbers"),
        (TASK, [0, 1, math.nan, 2], "1 predictions are no finite numbers"),
        (TASK, np.full((4, 3), math.inf), "12 predictions are no finite"),
        (TASK, ["a", "b", "c", "d"], "no array of numbers"),
        (TASK, None, "no array of numbers|finite|meant"),
        (NUMBER, np.zeros((4, 1)), r"predictions \(4, 1\); \(4,\) is meant"),
    ],
)
def test_bad_predictions_are_a_sentence_with_expected_and_got(task: Task, given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        check_predictions(task, given, what="method m on t")
    assert str(refused.value).startswith("method m on t: ")


def test_good_predictions_become_scores() -> None:
    assert check_predictions(TASK, [2, 0, 1, 1], what="m").tolist()[0] == [0, 0, 1]
    assert check_predictions(TASK, np.ones((4, 3)), what="m").shape == (4, 3)
    assert check_predictions(NUMBER, [1.5, 2, 3, 99], what="m").tolist() == [1.5, 2, 3, 99]


@pytest.mark.parametrize(
    ("ledger", "error", "says"),
    [
        ("1.0", InputError, "gives a str for its ledger"),
        (Ledger(epsilon=1.0, delta=1e-5), IntegrityError, "no row that it follows from"),
        (
            Ledger(epsilon=0.5, delta=1e-5, rows=(Spent(pure=1.0),)),
            IntegrityError,
            "claims ε = 0.5, but .* cost 1",
        ),
        (Ledger(epsilon=2.0, delta=0, rows=(Spent(pure=2.0),)), InputError, "at most 1 is to be spent"),
        (Ledger(epsilon=math.nan, delta=0, rows=(Spent(pure=2.0),)), InputError, "at most 1 is to be spent"),
        (Ledger(epsilon=1.0, delta=1e-3, rows=(Spent(pure=1.0),)), InputError, "at most 1e-05 is meant"),
        (
            Ledger(epsilon=1.0, delta=0, unit="pixel", rows=(Spent(pure=1.0),)),
            InputError,
            "protects a 'pixel'",
        ),
    ],
)
def test_a_ledger_that_does_not_hold_is_refused(ledger: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_ledger(TASK, ledger, 1.0, what="m")


def test_rows_that_are_none_are_refused_and_good_ones_counted() -> None:
    for wrong in ({"noise": 0.0}, {"noise": math.nan}, {"sampling": 0.0}, {"pure": -1.0}, {"count": 0}):
        with pytest.raises(InputError, match="are meant"):
            Spent(**wrong)  # type: ignore[arg-type]
    assert check_ledger(TASK, Ledger(epsilon=None, delta=0), 1.0, what="m") is None
    assert check_ledger(TASK, Ledger(epsilon=1.0, delta=0, rows=(Spent(pure=0.9),)), 1.0, what="m") == 0.9


def test_measures() -> None:
    truth = np.array([0, 0, 0, 1])
    scores = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    two = replace(TASK, num_classes=2)
    assert measured(two, scores, truth) == 0.75
    assert measured(replace(two, measure=BALANCED), scores, truth) == pytest.approx((2 / 3 + 1) / 2)
    assert measured(replace(two, measure=AUC), scores, truth) == pytest.approx(2 / 3)
    numbers = np.array([0.0, 4.0, 9.0])
    assert measured(NUMBER, np.array([-5.0, 4.0, 99.0]), numbers) == 1.0
    assert measured(NUMBER, np.full(3, numbers.mean()), numbers) == pytest.approx(0.0)
    coins = np.arange(200) % 2
    leak, known = replace(two, measure=LEAK), np.eye(2)[coins]
    assert measured(leak, known, coins) > 3 and measured(leak, np.ones((200, 2)), coins) == 0.0


def test_a_digest_follows_every_array_and_rule() -> None:
    truth, found = np.zeros(4), {digest_of(TASK, np.zeros(4))}
    for changed in ({"pool": np.ones((3, 2))}, {"delta": 1e-4}, {"owners": TASK.owners[::-1].copy()}):
        found.add(digest_of(replace(TASK, **changed), truth))  # type: ignore[arg-type]
    found.add(digest_of(TASK, np.ones(4)))
    assert len(found) == 5 and TASK.parties == 3
