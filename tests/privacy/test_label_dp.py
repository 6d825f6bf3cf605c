"""Mechanisms of private labels on the ledger: what a row costs, and how rows compose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, PrivacyEvent, verify
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.label_dp import (
    LABEL_MECHANISMS,
    ClusterCounts,
    LabelRelease,
    PriorResponse,
    RandomisedResponse,
    SharedClusterCounts,
    equation5_sigma,
)
from pate_fed.privacy.ledger.chain import coordinator_epsilon
from pate_fed.privacy.ledger.terms import mechanism_from_parameters
from pate_fed.privacy.mechanisms.events import IN_ONE_PLACE, NOISY_COUNTS
from pate_fed.privacy.protection import LABEL, Protection

RESPONSE, PRIOR = (kind(num_classes=3, epsilon=1.5) for kind in (RandomisedResponse, PriorResponse))
COUNTS = ClusterCounts(num_clusters=4, num_classes=3, sigma=6.0, epsilon=1.0, delta=1e-5)
SHARED = SharedClusterCounts(num_clusters=4, num_classes=3, sigma_party=4.0, survivors=6, colluders=1)
N = 30


def _terms(*mechanisms: LabelRelease, delta: float = 0.0, **changes: Any) -> LedgerTerms:
    return LedgerTerms(
        **{
            "study_digest": "ab" * 32,
            "delta": delta,
            "mechanisms": mechanisms,
            "protection": LABEL,
            "noise": "test",
            "private": True,
            "coordinator": IN_ONE_PLACE,
            "most_asked": N,
            "most_answered": N,
            **changes,
        }
    )


def _charge(ledger: Ledger, index: np.ndarray, mechanism: LabelRelease) -> float:
    event = PrivacyEvent(
        mechanism=mechanism,
        asked=len(index),
        answered=len(index),
        protection=LABEL,
        noise="test",
        private=True,
        coordinator=ledger.terms.coordinator,
    )
    digest = f"{len(ledger.entries()):064x}"
    label = np.zeros(len(index), dtype=np.int64)
    answered = np.ones(len(index), dtype=bool)
    return ledger.charge(event, batch_digest=digest, index=index, answered=answered, label=label).epsilon


def test_responses_of_other_records_compose_in_parallel(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", _terms(RESPONSE, PRIOR)) as ledger:
        assert ledger.guaranteed() == ledger.epsilon() == 0.0
        assert _charge(ledger, np.arange(10), RESPONSE) == 1.5
        assert _charge(ledger, np.arange(10, N), PRIOR) == 1.5 == ledger.guaranteed()
        with pytest.raises(IntegrityError, match="terms allow 30"):
            _charge(ledger, np.arange(1), RESPONSE)
    found = verify(tmp_path / "ledger.sqlite")
    assert found.epsilon == 1.5 and found.coordinator_epsilon is None and found.answered == N


def test_no_record_is_answered_about_twice(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", _terms(RESPONSE, PRIOR)) as ledger:
        _charge(ledger, np.arange(10), RESPONSE)
        for again in (np.array([3]), np.array([20, 20])):
            with pytest.raises(IntegrityError, match="a second time"):
                _charge(ledger, again, PRIOR)


def test_counts_are_released_once_and_about_everyone(tmp_path: Path) -> None:
    terms = _terms(COUNTS, delta=1e-5)
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as ledger:
        with pytest.raises(IntegrityError, match="about all public inputs"):
            _charge(ledger, np.arange(10), COUNTS)
        assert _charge(ledger, np.arange(N), COUNTS) == 1.0 == ledger.guaranteed()
    assert verify(tmp_path / "ledger.sqlite").epsilon == 1.0


def test_what_the_coordinator_sees_of_a_sum_is_what_is_released(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.sqlite", _terms(SHARED, delta=1e-5, coordinator=NOISY_COUNTS)) as ledger:
        spent = _charge(ledger, np.arange(N), SHARED)
        assert coordinator_epsilon(ledger.terms, ledger.events()) == ledger.guaranteed_coordinator() == spent
    assert spent == epsilon_of(SHARED.cost_asked(LABEL), 1e-5)
    rho = 1 / (16 * 5)  # ρ = Δ²/(2 σ²) with Δ² = 2, of five hospitals that tell nobody
    assert float(SHARED.cost_asked(LABEL).as_totals.rho) == pytest.approx(rho, rel=1e-6)


def _sum_delta(sigma: float, shares: int, epsilon: float) -> float:
    """δ at ε of the shares' sum itself on two counts, by convolution."""
    at = np.arange(-300, 301)
    one = np.exp(-((at / sigma) ** 2) / 2)
    noise = one / one.sum()
    for _ in range(shares - 1):
        noise = np.convolve(noise, one / one.sum())
    largest = 0.0
    x = np.arange(len(noise))
    for up in (1, -1):
        here = np.outer(noise, noise)
        there = np.outer(noise[np.clip(x + up, 0, len(x) - 1)], noise[np.clip(x - up, 0, len(x) - 1)])
        largest = max(largest, float(np.maximum(0.0, here - math.exp(epsilon) * there).sum()))
    return largest


@pytest.mark.parametrize(("share", "hospitals"), [(4.0, 5), (1.5, 3), (2.0, 1)])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_one_release_of_counts_is_charged_by_its_exact_law(
    share: float, hospitals: int, delta: float
) -> None:
    shared = SharedClusterCounts(
        num_clusters=4, num_classes=3, sigma_party=share, survivors=hospitals + 1, colluders=1
    )
    stated = epsilon_of(shared.cost_asked(LABEL), delta)
    assert 0.99 * delta < _sum_delta(share, hospitals, stated) <= delta
    # RDP, which a second release goes by, states more than twice the δ.
    once = epsilon_of(shared.cost_asked(LABEL).as_totals, delta)
    assert _sum_delta(share, hospitals, once) < 0.5 * delta
    twice = shared.cost_asked(LABEL) * 2
    assert epsilon_of(twice, delta) == epsilon_of(twice.as_totals, delta)


def test_wide_noise_is_charged_by_its_renyi_divergence() -> None:
    wide = replace(SHARED, sigma_party=1e6).cost_asked(LABEL)
    assert epsilon_of(wide, 1e-5) == epsilon_of(wide.as_totals, 1e-5)


def test_pairs_add_up_and_take_their_delta_first() -> None:
    two = COUNTS.cost_asked(LABEL) + COUNTS.cost_asked(LABEL)
    assert epsilon_of(two, 2e-5) == 2.0 and epsilon_of(two, 1.9e-5) == math.inf
    assert epsilon_of(RESPONSE.cost_asked(LABEL), 0.0) == 1.5 and epsilon_of(Cost(), 0.0) == 0.0
    mixed = COUNTS.cost_asked(LABEL) + SHARED.cost_asked(LABEL)
    alone = epsilon_of(SHARED.cost_asked(LABEL), 1e-5)
    assert epsilon_of(mixed, 2e-5) == pytest.approx(1.0 + alone, rel=1e-6)
    with pytest.raises(InputError, match="no Rényi divergence"):
        two.rdp(two.rho + 2)


def test_every_mechanism_comes_back_from_its_row() -> None:
    made = [kind(num_classes=3, epsilon=1.5) for kind in list(LABEL_MECHANISMS.values())[:3]]
    for mechanism in (*made, COUNTS, SHARED):
        assert mechanism_from_parameters(mechanism.name, mechanism.parameters()) == mechanism
    assert {mechanism.name for mechanism in (*made, COUNTS, SHARED)} == set(LABEL_MECHANISMS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(COUNTS, sigma=equation5_sigma(1.0, 1e-5) * 0.9), "too small for"),
        (lambda: replace(COUNTS, num_classes=1), "num_classes"),
        (lambda: replace(SHARED, sigma_party=1.0), "sigma_party"),
        (lambda: replace(SHARED, colluders=6), "colluders"),
        (lambda: replace(RESPONSE, epsilon=0.0), "epsilon"),
        (lambda: _terms(RESPONSE, replace(PRIOR, epsilon=1.0)), "one ε"),
        (lambda: _terms(COUNTS), "delta"),
        (lambda: Protection(unit="label", adjacency="add-or-remove-one"), "one label is replaced"),
        (lambda: Protection(unit="label", votes_moved=2), "one label is replaced"),
    ],
)  # fmt: skip
def test_what_a_row_cannot_state(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
