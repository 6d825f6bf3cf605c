"""The data-dependent ε of a run, mechanism by mechanism: below the ledger's, and refused where unknown."""

from __future__ import annotations

import math

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
)
from pate_fed.privacy.bounds.conversion import to_epsilon
from pate_fed.privacy.bounds.gnmax import exact_bit_rdp, gnmax_rdp
from pate_fed.privacy.checks import DEFAULT_ORDERS
from pate_fed.privacy.mechanisms.data_dependent import data_dependent_rdp

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
    got = data_dependent_epsilon_do_not_publish(
        mechanism, TOTALS, release.answered, delta=1e-5, protection=protection
    )
    ledger = epsilon_of(release.event.cost(), 1e-5)
    assert 0 < got.epsilon < (0.9 if moved == 1 else 1.0) * ledger


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_disagreement_never_makes_it_larger(mechanism: LNMax | GNMax | ConfidentGNMax) -> None:
    ties = np.tile([[63, 63, 62, 62]], (500, 1))
    release = mechanism.release(ties, SeededNoise(2))
    got = data_dependent_epsilon_do_not_publish(mechanism, ties, release.answered, delta=1e-5)
    assert got.epsilon <= epsilon_of(release.event.cost(), 1e-5)


def test_it_is_what_the_run_s_curve_converts_to() -> None:
    mechanism, answered = MECHANISMS[2], np.arange(300) % 2 == 0
    got = data_dependent_epsilon_do_not_publish(mechanism, TOTALS, answered, delta=1e-5)
    curve = data_dependent_rdp(mechanism, TOTALS, answered)
    assert got.epsilon == to_epsilon(DEFAULT_ORDERS, curve, 1e-5).epsilon


def test_interactive_gnmax_needs_what_its_check_looked_at() -> None:
    mechanism = InteractiveGNMax(**SIZE, threshold=100, sigma1=120.0, sigma2=40.0, confidence=0.9)
    answered = np.zeros(300, dtype=bool)
    with pytest.raises(InputError, match="checked"):
        data_dependent_epsilon_do_not_publish(mechanism, TOTALS, answered, delta=1e-5)
    got = data_dependent_epsilon_do_not_publish(
        mechanism, TOTALS, answered, delta=1e-5, checked=TOTALS.max(axis=1) - 200
    )
    assert got.epsilon > 0


def test_a_large_spend_finds_its_order_below_2() -> None:
    mechanism = GNMax(**SIZE, sigma=2.0)
    ties = np.tile([[63, 63, 62, 62]], (400, 1))
    got = data_dependent_epsilon_do_not_publish(mechanism, ties, np.ones(400, dtype=bool), delta=1e-5)
    assert got.order < 2 and got.epsilon > 50


def test_what_has_no_exact_totals_or_no_mask_is_refused() -> None:
    noisy = DistributedGNMax(**SIZE, threshold=None, sigma_party=4.0, least_honest=10)
    with pytest.raises(InputError, match="no exact totals"):
        data_dependent_epsilon_do_not_publish(noisy, TOTALS, np.ones(300, dtype=bool), delta=1e-5)
    for mechanism in MECHANISMS:
        with pytest.raises(InputError, match="truth value"):
            data_dependent_epsilon_do_not_publish(mechanism, TOTALS, np.ones(300), delta=1e-5)


ORDERS = [1.5, 2.0, 5.0, 14.0, 40.0, 200.0]
VOTES = np.array([[250, 0, 0], [0, 200, 50], [84, 83, 83], [10, 10, 230], [125, 125, 0]])
ANSWERED = np.array([True, True, False, True, False])
CONFIDENT = ConfidentGNMax(num_teachers=250, num_classes=3, threshold=150, sigma1=60.0, sigma2=40.0)


def test_a_run_pays_the_bit_for_every_query_and_the_argmax_for_answers() -> None:
    curve = data_dependent_rdp(CONFIDENT, VOTES, ANSWERED, orders=ORDERS)
    bits = exact_bit_rdp(VOTES.max(axis=1), 150, 60.0, ORDERS, discrete=True).sum(axis=0)
    argmax = gnmax_rdp(VOTES[ANSWERED], 40.0, ORDERS, discrete=True).sum(axis=0)
    np.testing.assert_allclose(curve, bits + argmax)
    plain = GNMax(num_teachers=250, num_classes=3, sigma=40.0)
    np.testing.assert_allclose(data_dependent_rdp(plain, VOTES, ANSWERED, orders=ORDERS), argmax)


def test_what_the_check_looked_at_may_differ_from_the_largest_total() -> None:
    usual = data_dependent_rdp(CONFIDENT, VOTES, ANSWERED, orders=ORDERS, checked=VOTES.max(axis=1))
    np.testing.assert_array_equal(usual, data_dependent_rdp(CONFIDENT, VOTES, ANSWERED, orders=ORDERS))
    far = data_dependent_rdp(CONFIDENT, VOTES, ANSWERED, orders=ORDERS, checked=np.full(5, -2000))
    assert (far < usual).all()


def test_a_run_s_epsilon_is_below_the_data_independent_one() -> None:
    assert data_dependent_epsilon_do_not_publish(CONFIDENT, VOTES, ANSWERED, delta=1e-5).epsilon > 0
    votes, everything = np.tile([[200, 30, 20]], (500, 1)), np.ones(500, dtype=bool)
    dependent = data_dependent_epsilon_do_not_publish(CONFIDENT, votes, everything, delta=1e-5).epsilon
    # ρ = 500/(2·60²) + 500/40² = 0.382
    assert dependent < 0.382 + 2 * math.sqrt(0.382 * math.log(1e5))
    curve = data_dependent_rdp(CONFIDENT, votes, everything)
    assert to_epsilon(DEFAULT_ORDERS, curve, 1e-5).epsilon < 0.382 + 2 * math.sqrt(0.382 * math.log(1e5))


@pytest.mark.parametrize(
    "change",
    [
        {"answered": ANSWERED[:3]},
        {"answered": ANSWERED.astype(float)},
        {"orders": [1.0]},
        {"checked": [1, 2]},
        {"totals": VOTES - 100},
    ],
)
def test_a_run_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    arguments = {"mechanism": CONFIDENT, "totals": VOTES, "answered": ANSWERED, **change}
    with pytest.raises(InputError):
        data_dependent_rdp(**arguments)  # type: ignore[arg-type]
