"""The mechanism of noisy class sums: sensitivity, calibration, registry and ledger."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, Protection, SeededNoise, verify
from pate_fed.privacy.accounting import pld_epsilon
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.ledger.terms import (
    guaranteed_coordinator_epsilon,
    guaranteed_epsilon,
    mechanism_from_parameters,
)
from pate_fed.privacy.mechanisms.class_sums import (
    ClassSums,
    SharedClassSums,
    SumShape,
    least_share,
    least_sigma,
    squared_sensitivity,
    sums_cost,
)
from pate_fed.privacy.mechanisms.events import (
    EXACT_SUMS,
    NOISY_SUMS,
    CoordinatorView,
    PrivacyEvent,
    sum_distance,
)

SHAPE = SumShape(num_classes=3, dimension=20, squared_norm=64**2)
SIZE = {"num_classes": 3, "dimension": 20, "squared_norm": 64**2}
ADDED = Protection(adjacency="add-or-remove-one")
HOSPITAL = Protection(unit="hospital", votes_moved=5)


def test_a_noisy_sum_is_the_exact_one_with_noise_on_every_entry() -> None:
    sums, exact = ClassSums(**SIZE, sigma=500.0), np.arange(60, dtype=np.int32).reshape(20, 3)
    noise = sums.noisy(exact, SeededNoise(1)) - exact
    assert noise.dtype == np.int64 and (noise != 0).mean() > 0.9  # 0 has a chance of 1 in 1,250
    assert 350 < noise.std() < 650
    for wrong in (exact.T, exact[:-1], exact.ravel(), exact.astype(float), exact > 5):
        with pytest.raises(InputError, match=r"whole numbers \(20, 3\) are meant"):
            sums.noisy(wrong, SeededNoise(1))


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


Floats = NDArray[np.float64]


def _masses(sigma: float, most: int) -> Floats:
    x = np.arange(-most, most + 1)
    mass: Floats = np.exp(-(x**2) / (2 * sigma**2))
    return mass / mass.sum()


def _exact_delta(law: Floats, moved: tuple[int, ...], epsilon: float) -> float:
    """Σ max(0, P - e^ε Q) of independent entries with this law, each moved by so many steps."""
    joint, shifted = np.ones(1), np.ones(1)
    for steps in moved:
        there = np.zeros_like(law)
        there[steps:] = law[: len(law) - steps]
        joint, shifted = np.multiply.outer(joint, law), np.multiply.outer(shifted, there)
    return float(np.maximum(0, joint - math.exp(epsilon) * shifted).sum())


@pytest.mark.parametrize(
    ("sigma", "moved"), [(2.0, (1,)), (2.0, (3,)), (5.0, (4,)), (20.0, (20,)), (4.0, (3, 4)), (9.0, (1, 7))]
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_the_bound_holds_for_the_noise_that_runs_and_is_tight(
    sigma: float, moved: tuple[int, ...], delta: float
) -> None:
    squared = sum(step**2 for step in moved)
    stated = epsilon_of(Cost(outcomes=((sums_cost(squared=squared, sigma=sigma, entries=9), 1),)), delta)
    law = _masses(sigma, math.ceil(14 * sigma))
    assert _exact_delta(law, moved, stated) <= delta
    # With σ² - 2 in place of σ² no more is lost than this, and rounding is nothing beside it.
    continuous = gaussian_dp_epsilon(math.sqrt(squared) / sigma, delta)
    assert continuous <= stated <= continuous * (1 - 2 / sigma**2) ** -1 * 1.001


@pytest.mark.parametrize(("share", "parties"), [(1.5, 2), (1.5, 4), (3.0, 3)])
def test_the_bound_holds_for_sums_of_hospitals_shares(share: float, parties: int) -> None:
    law = one = _masses(share, math.ceil(14 * share))
    for _ in range(parties - 1):
        law = np.convolve(law, one)
    for moved, delta in (((2,), 1e-3), ((5,), 1e-6)):
        cost = sums_cost(
            squared=moved[0] ** 2,
            sigma=share * math.sqrt(parties) * (1 - 1e-15),
            entries=1,
            distance=sum_distance(share, parties),
        )
        stated = epsilon_of(Cost(outcomes=((cost, 1),)), delta)
        assert _exact_delta(law, moved, stated) <= delta
        assert stated <= 1.6 * gaussian_dp_epsilon(moved[0] / (share * math.sqrt(parties)), delta)


def test_the_rounded_continuous_noise_is_as_near_as_the_proof_says() -> None:
    """Theorem 2's chain: N(0, σ² - 2), rounded at random with variance 2, is the discrete Gaussian."""
    sigma = 2.5
    grid = np.linspace(-30, 30, 60_001)
    density = np.exp(-(grid**2) / (2 * (sigma**2 - 2)))
    density /= density.sum()
    whole = np.arange(-12, 13)
    kernel = np.exp(-((whole[:, None] - grid) ** 2) / 4)
    every = np.exp(-((np.arange(-60, 61)[:, None] - grid) ** 2) / 4).sum(axis=0)
    rounded = (kernel / every * density).sum(axis=1)
    assert (
        np.abs(
            np.log(rounded / _masses(sigma, 12)) - np.log(_masses(sigma, 60)[48:73] / _masses(sigma, 12))
        ).max()
        < 1e-10
    )


def test_several_are_one_gaussian_mechanism_and_beside_another_release_it_is_rdp() -> None:
    one = Cost(outcomes=((sums_cost(squared=200, sigma=50.0, entries=10), 1),))
    twice = epsilon_of(one + one, 1e-5)
    assert twice == pytest.approx(gaussian_dp_epsilon(math.sqrt(2 * 200 / (2500 - 2)), 1e-5), rel=1e-6)
    assert epsilon_of(one, 1e-5) < epsilon_of(Cost(rho=Fraction(100, 2500)), 1e-5)
    joined = epsilon_of(one + Cost(rho=Fraction(1, 10**6)), 1e-5)
    assert joined == pytest.approx(epsilon_of(Cost(rho=Fraction(100, 2500) + Fraction(1, 10**6)), 1e-5))
    assert joined > epsilon_of(one, 1e-5)


def test_more_entries_cost_next_to_nothing_and_more_noise_costs_less() -> None:
    def stated(sigma: float, entries: int) -> float:
        return epsilon_of(Cost(outcomes=((sums_cost(squared=2, sigma=sigma, entries=entries), 1),)), 1e-5)

    assert stated(5.0, 1) <= stated(5.0, 10**8) < stated(5.0, 1) * (1 + 1e-6)
    assert stated(6.0, 1) < stated(5.0, 1)


def test_noise_too_small_for_the_theorem_is_refused() -> None:
    with pytest.raises(InputError, match=r"sigma=1\.9"):
        sums_cost(squared=1, sigma=1.9, entries=1)
    with pytest.raises(InputError, match="squared=0"):
        sums_cost(squared=0, sigma=3, entries=1)
    with pytest.raises(InputError, match="entries=0"):
        sums_cost(squared=1, sigma=3, entries=0)


def test_a_privacy_loss_distribution_says_the_same() -> None:
    pytest.importorskip("dp_accounting")
    one = Cost(outcomes=((sums_cost(squared=50, sigma=30.0, entries=40), 1),))
    assert pld_epsilon(one, 1e-5) == pytest.approx(epsilon_of(one, 1e-5), rel=2e-3)
