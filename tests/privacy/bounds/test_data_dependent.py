"""The data-dependent ε of a run, mechanism by mechanism: below the ledger's, and refused where unknown."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    Protection,
    SeededNoise,
    data_dependent_epsilon_do_not_publish,
    epsilon_of,
    mechanism_epsilon_do_not_publish,
)

SIZE = {"num_teachers": 250, "num_classes": 4}
TOTALS = np.random.default_rng(0).multinomial(250, [0.88, 0.06, 0.04, 0.02], size=300)
MECHANISMS = [
    LNMax(**SIZE, scale=20.0),
    GNMax(**SIZE, sigma=40.0),
    ConfidentGNMax(**SIZE, threshold=180, sigma1=120.0, sigma2=40.0),
]


@pytest.mark.parametrize("moved", [1, 3])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_agreement_makes_it_smaller_than_the_ledger_s(
    mechanism: LNMax | GNMax | ConfidentGNMax, moved: int
) -> None:
    protection = Protection(votes_moved=moved)
    release = mechanism.release(TOTALS, SeededNoise(1), protection=protection)
    got = mechanism_epsilon_do_not_publish(
        mechanism, TOTALS, release.answered, delta=1e-5, protection=protection
    )
    ledger = epsilon_of(release.event.cost(), 1e-5)
    assert 0 < got.epsilon < (0.9 if moved == 1 else 1.0) * ledger


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_disagreement_never_makes_it_larger(mechanism: LNMax | GNMax | ConfidentGNMax) -> None:
    ties = np.tile([[63, 63, 62, 62]], (500, 1))
    release = mechanism.release(ties, SeededNoise(2))
    got = mechanism_epsilon_do_not_publish(mechanism, ties, release.answered, delta=1e-5)
    assert got.epsilon <= epsilon_of(release.event.cost(), 1e-5)


def test_it_is_the_run_s_own_function_for_confident_gnmax() -> None:
    mechanism, answered = MECHANISMS[2], np.arange(300) % 2 == 0
    plain = data_dependent_epsilon_do_not_publish(
        TOTALS, answered, threshold=180, sigma1=120.0, sigma2=40.0, delta=1e-5
    )
    assert mechanism_epsilon_do_not_publish(mechanism, TOTALS, answered, delta=1e-5) == plain


def test_interactive_gnmax_needs_what_its_check_looked_at() -> None:
    mechanism = InteractiveGNMax(**SIZE, threshold=100, sigma1=120.0, sigma2=40.0, confidence=0.9)
    answered = np.zeros(300, dtype=bool)
    with pytest.raises(InputError, match="checked"):
        mechanism_epsilon_do_not_publish(mechanism, TOTALS, answered, delta=1e-5)
    got = mechanism_epsilon_do_not_publish(
        mechanism, TOTALS, answered, delta=1e-5, checked=TOTALS.max(axis=1) - 200
    )
    assert got.epsilon > 0


def test_a_large_spend_finds_its_order_below_2() -> None:
    mechanism = GNMax(**SIZE, sigma=2.0)
    ties = np.tile([[63, 63, 62, 62]], (400, 1))
    got = mechanism_epsilon_do_not_publish(mechanism, ties, np.ones(400, dtype=bool), delta=1e-5)
    assert got.order < 2 and got.epsilon > 50


def test_what_has_no_exact_totals_or_no_mask_is_refused() -> None:
    noisy = DistributedGNMax(**SIZE, threshold=None, sigma_party=4.0, least_honest=10)
    with pytest.raises(InputError, match="no exact totals"):
        mechanism_epsilon_do_not_publish(noisy, TOTALS, np.ones(300, dtype=bool), delta=1e-5)
    for mechanism in MECHANISMS:
        with pytest.raises(InputError, match="truth value"):
            mechanism_epsilon_do_not_publish(mechanism, TOTALS, np.ones(300), delta=1e-5)
