"""Methods that release labels: what they cost, what they learn, and that canaries catch one without noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench_task import LABELS, RNG, ROWS, TASK

from pate_fed.bench.labels import (
    randomised,
    run_alone,
    run_central,
    run_fedkt,
    run_neighbours,
    run_randomised,
)
from pate_fed.bench.protocol import (
    LABEL,
    Method,
    NotApplicableError,
    check_ledger,
    check_predictions,
    measured,
)
from pate_fed.bench.tasks import load_task


@pytest.mark.parametrize(
    ("run", "private", "least"),
    [
        (run_central, False, 0.97),
        (run_alone, False, 0.96),
        (run_randomised, True, 0.9),
        (run_neighbours, True, 0.9),
        (run_fedkt, True, 0.9),
    ],
)
def test_each_learns_and_its_rows_cost_what_it_claims(run: Method, private: bool, least: float) -> None:
    epsilon = 8.0
    predictions, ledger = run(TASK, epsilon, 0)
    found = check_ledger(TASK, ledger, epsilon, what="m")
    assert (found is None) is not private
    if found is not None:
        assert 0.97 * epsilon < found <= epsilon
        assert (ledger.unit == LABEL) is (run is run_randomised)
    scores = check_predictions(TASK, predictions, what="m")
    assert measured(TASK, scores, LABELS[700:]) > least
    assert np.array_equal(run(TASK, epsilon, 0)[0], predictions)


def test_votes_are_of_classes() -> None:
    number = replace(TASK, num_classes=0, labels=ROWS[:600, 0], target_range=(-3.0, 6.0))
    for run in (run_randomised, run_neighbours, run_fedkt):
        with pytest.raises(NotApplicableError, match="this task has a number"):
            run(number, 1.0, 0)
    told, _ = run_central(number, 0.0, 0)
    assert np.corrcoef(told, ROWS[700:, 0])[0, 1] > 0.9


def test_responses_are_right_as_often_as_published() -> None:
    """Tang et al. 2022, Table 2: 15.5, 23.2, 45.2, 85.9 % at ε 0.5, 1, 2, 4 with ten classes."""
    labels = RNG.integers(0, 10, 200_000)
    for epsilon, share in ((0.5, 0.155), (1.0, 0.232), (2.0, 0.452), (4.0, 0.859)):
        found = randomised(labels, epsilon, 10, np.random.default_rng(1))
        assert abs((found == labels).mean() - share) < 0.004 and found.min() == 0 and found.max() == 9


def test_canaries_catch_a_method_without_noise_and_no_private_one() -> None:
    task, coins = load_task("canaries")
    for run, caught in ((run_central, True), (run_randomised, False)):
        scores = check_predictions(task, run(task, 1.0, 0)[0], what="m")
        assert (measured(task, scores, coins) > 1.0) is caught
