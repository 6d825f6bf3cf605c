"""The mechanism of noisy class sums: sensitivity, calibration, registry and ledger."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, Protection, SeededNoise, verify
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.bounds.gaussian import gaussian_dp_epsilon
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import (
    ClassSums,
    SharedClassSums,
    SumShape,
    least_share,
    least_sigma,
    squared_sensitivity,
)
from pate_fed.privacy.mechanisms.events import EXACT_SUMS, NOISY_SUMS, CoordinatorView, PrivacyEvent
from pate_fed.privacy.mechanisms.registry import mechanism_from_parameters

SHAPE = SumShape(num_classes=3, dimension=20, squared_norm=64**2)
SIZE = {"num_classes": 3, "dimension": 20, "squared_norm": 64**2}
ADDED = Protection(adjacency="add-or-remove-one")
HOSPITAL = Protection(unit="hospital", votes_moved=5)


@pytest.mark.parametrize(
    ("protection", "squared"),
    [
        (Protection(), 2 * 64**2),
        (ADDED, 64**2),
        (HOSPITAL, 2 * 25 * 64**2),
        (Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=5), 25 * 64**2),
        (Protection(unit="label"), 2 * 64**2),
    ],
)
def test_sensitivity_by_unit_and_adjacency(protection: Protection, squared: int) -> None:
    assert squared_sensitivity(64**2, protection) == squared
    sums = ClassSums(**SIZE, sigma=500.0)
    exact = gaussian_dp_epsilon(math.sqrt(squared) / 500, 1e-5)
    assert epsilon_of(sums.cost(7, 7, protection), 1e-5) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("protection", [Protection(), ADDED, HOSPITAL])
def test_the_least_noise_keeps_epsilon_and_less_does_not(protection: Protection) -> None:
    sigma = least_sigma(1.0, 1e-5, SHAPE, protection)
    spent = [
        epsilon_of(ClassSums(**SIZE, sigma=part * sigma).cost_asked(protection), 1e-5) for part in (1, 0.999)
    ]
    assert spent[0] <= 1 < spent[1]
    share = least_share(1.0, 1e-5, SHAPE, protection, survivors=4, colluders=1)
    assert share == pytest.approx(sigma / math.sqrt(3), rel=1e-4)
    shared = SharedClassSums(**SIZE, sigma_party=share, survivors=4, colluders=1)
    assert epsilon_of(shared.cost_asked(protection), 1e-5) <= 1
    assert shared.sigma == pytest.approx(sigma, rel=1e-4)


def test_published_sigma_at_three_budgets() -> None:
    """μ = √2/σ: Balle and Wang's σ of 5.276 lengths of a record at ε 1 and δ 1e-5."""
    shape = SumShape(num_classes=10, dimension=1000, squared_norm=1024**2)
    found = [least_sigma(epsilon, 1e-5, shape) / 1024 for epsilon in (0.3, 1.0, 3.0)]
    assert found == pytest.approx([15.893, 5.2759, 1.9666], rel=1e-4)


def test_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="noise of more than"):
        least_sigma(1e-9, 1e-300, SumShape(num_classes=2, dimension=1, squared_norm=2**52))
    with pytest.raises(InputError, match="colluders=3"):
        least_share(1.0, 1e-5, SHAPE, survivors=3, colluders=3)
    with pytest.raises(InputError, match="takes its noise along"):
        SharedClassSums(**SIZE, sigma_party=9.0, survivors=3, colluders=0).cost_asked(
            Protection(unit="hospital", adjacency="add-or-remove-one")
        )
    for bad in (
        {"sigma": 1.0},
        {"dimension": 0},
        {"num_classes": 1},
        {"squared_norm": 0},
        {"dimension": 10**8},
    ):
        with pytest.raises(InputError, match=next(iter(bad))):
            ClassSums(**{**SIZE, "sigma": 50.0, **bad})


@pytest.mark.parametrize(
    "mechanism",
    [ClassSums(**SIZE, sigma=512.0), SharedClassSums(**SIZE, sigma_party=300.0, survivors=4, colluders=1)],
)
def test_a_row_holds_all_that_the_mechanism_is(mechanism: ClassSums | SharedClassSums) -> None:
    assert mechanism_from_parameters(mechanism.name, mechanism.parameters()) == mechanism
    assert set(mechanism.parameters()) >= {"dimension", "squared_norm", "num_classes"}


def _terms(view: CoordinatorView, mechanism: ClassSums | SharedClassSums) -> LedgerTerms:
    return LedgerTerms(
        study_digest="cd" * 32,
        delta=1e-5,
        mechanisms=(mechanism,),
        protection=Protection(),
        noise=SeededNoise(0).kind,
        private=False,
        coordinator=view,
        most_asked=6,
        most_answered=6,
    )


def _charge(ledger: Ledger, view: CoordinatorView, mechanism: ClassSums | SharedClassSums) -> None:
    event = PrivacyEvent(
        mechanism=mechanism,
        asked=6,
        answered=6,
        protection=Protection(),
        noise=SeededNoise(0).kind,
        private=False,
        coordinator=view,
    )
    labels = np.array([0, 1, 2, 0, 1, 2])
    ledger.charge(
        event,
        batch_digest=f"{len(ledger.entries()):064x}",
        index=np.arange(6),
        answered=np.ones(6, dtype=bool),
        label=labels,
    )


def test_the_ledger_states_epsilon_from_the_row_alone_and_sums_are_released_once(tmp_path: Path) -> None:
    shared = SharedClassSums(**SIZE, sigma_party=300.0, survivors=4, colluders=1)
    for view, mechanism in ((EXACT_SUMS, ClassSums(**SIZE, sigma=512.0)), (NOISY_SUMS, shared)):
        path = tmp_path / f"{mechanism.name}.sqlite"
        terms = _terms(view, mechanism)
        with Ledger.create(path, terms) as ledger:
            _charge(ledger, view, mechanism)
            with pytest.raises(IntegrityError, match="terms allow 6"):
                _charge(ledger, view, mechanism)
        found = verify(path)
        exact = gaussian_dp_epsilon(math.sqrt(2) * 64 / mechanism.sigma, 1e-5)
        assert found.epsilon == pytest.approx(exact, rel=1e-4)
        assert guaranteed_epsilon(terms) == found.epsilon
        against = guaranteed_coordinator_epsilon(terms)
        assert against == found.coordinator_epsilon == (None if view is EXACT_SUMS else found.epsilon)


def test_other_parameters_than_the_terms_are_refused(tmp_path: Path) -> None:
    fixed = ClassSums(**SIZE, sigma=512.0)
    with Ledger.create(tmp_path / "l.sqlite", _terms(EXACT_SUMS, fixed)) as ledger:
        with pytest.raises(IntegrityError, match="terms allow no"):
            _charge(ledger, EXACT_SUMS, ClassSums(**SIZE, sigma=511.0))
        with pytest.raises(IntegrityError, match="coordinator saw other"):
            _charge(ledger, NOISY_SUMS, fixed)
