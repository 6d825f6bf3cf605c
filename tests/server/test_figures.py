"""Figures of a run after the fact, from its ledger and from what totals are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pate_fed.privacy import GNMax, Ledger, LedgerTerms, Protection, SeededNoise
from server.figures import measure, publishable_epsilon, spending_curve
from server.release import Release, charge
from server.state import Totals

MECHANISM = GNMax(sigma=20.0, num_classes=3, num_teachers=10)
BATCHES = {"ab" * 32: np.array([4, 0, 2]), "cd" * 32: np.array([1, 3])}
LABEL = {"ab" * 32: np.array([1, 0, 2]), "cd" * 32: np.array([0, 0])}
TRUTH = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Two batches of three and two labels, one of them wrong."""
    noise = SeededNoise(1)
    terms = LedgerTerms(
        study_digest="00" * 32,
        delta=1e-5,
        mechanisms=(MECHANISM,),
        protection=Protection(),
        noise=noise.kind,
        private=noise.private,
    )
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as made:
        yield made


def _charge(ledger: Ledger) -> None:
    for digest, index in BATCHES.items():
        release = Release.of(ledger.terms, MECHANISM, index, LABEL[digest])
        charge(ledger, release, batch_digest=digest)


def _totals(digest: str) -> Totals:
    """Of ten teachers eight say the truth and one each another class."""
    index = BATCHES[digest]
    value = np.ones((len(index), 3), dtype=np.int64)
    value[np.arange(len(index)), TRUTH[index]] = 8
    return Totals(index, value, 10)


def test_where_nothing_was_asked_there_are_no_figures(ledger: Ledger) -> None:
    assert measure(ledger, {}, None, truth=TRUTH, num_teachers=10, exact=True) is None
    assert publishable_epsilon(MECHANISM, ledger, {}, SeededNoise(1)) is None
    curve = spending_curve(ledger)
    assert curve.asked == curve.answered == curve.epsilon == ()


def test_teachers_ensemble_and_labels_are_measured_where_their_votes_are_known(ledger: Ledger) -> None:
    _charge(ledger)
    known = {digest: _totals(digest) for digest in BATCHES}
    found = measure(ledger, known, None, truth=TRUTH, num_teachers=10, exact=True)
    assert found is not None
    accuracy, evaluation = found
    assert (accuracy.teacher_mean, accuracy.ensemble, accuracy.labels) == (0.8, 1.0, 0.8)
    assert (accuracy.votes_n, accuracy.votes_majority) == (5, 0.4)
    assert (accuracy.labels_n, accuracy.labels_majority) == (5, 0.4)
    assert evaluation.confusion == ((2, 0, 0), (1, 1, 0), (0, 0, 1))
    assert sum(evaluation.top_answered) == 5
    noisy = measure(ledger, known, None, truth=TRUTH, num_teachers=10, exact=False)
    assert noisy is not None
    assert (noisy[0].teacher_mean, noisy[0].ensemble, noisy[0].labels) == (None, None, 0.8)
    lost = measure(ledger, {}, None, truth=TRUTH, num_teachers=10, exact=True)
    assert lost is not None
    assert (lost[0].ensemble, lost[1].top_answered, lost[1].confusion) == (None, (), evaluation.confusion)
    assert measure(ledger, known, None, truth=np.full(6, -1), num_teachers=10, exact=True) is None


def test_only_inputs_with_a_true_label_are_counted(ledger: Ledger) -> None:
    """One row without a label, and a study's pool had no figure at all."""
    _charge(ledger)
    known = {digest: _totals(digest) for digest in BATCHES}
    part = np.where(np.arange(6) == 1, -1, TRUTH)  # of the four left all but one are right
    found = measure(ledger, known, None, truth=part, num_teachers=10, exact=True)
    assert found is not None
    accuracy, evaluation = found
    assert (accuracy.labels, accuracy.labels_n, accuracy.votes_n) == (1.0, 4, 4)
    assert sum(map(sum, evaluation.confusion)) == 4 and sum(evaluation.top_answered) == 5


def test_the_curve_ends_where_the_ledger_does(ledger: Ledger) -> None:
    _charge(ledger)
    curve = spending_curve(ledger)
    assert curve.asked == curve.answered == (1, 2, 3, 4, 5)
    assert list(curve.epsilon) == sorted(curve.epsilon)
    assert curve.epsilon[-1] == pytest.approx(ledger.epsilon())
