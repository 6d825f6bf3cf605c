"""Sums in rounds: what each costs, what all of them cost, and what a ledger takes for them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, Protection, SeededNoise
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.rows import Provenance
from pate_fed.privacy.ledger.terms import guarantee_text, guaranteed_epsilon, mechanism_from_parameters
from pate_fed.privacy.mechanisms.class_sums import (
    SharedSumsInRounds,
    SumShape,
    SumsInRounds,
    class_length,
    least_share,
    least_sigma,
    signed_sensitivity,
    squared_sensitivity,
)
from pate_fed.privacy.mechanisms.events import NOISY_SUMS, PrivacyEvent

DELTA, LABELS, QUESTIONS = 1e-5, 6, 4
SIZE = {"num_classes": 3, "dimension": 20, "squared_norm": 640**2, "class_norm": 640**2}
SHAPE = SumShape(**SIZE, questions=QUESTIONS)
ADDED = Protection(adjacency="add-or-remove-one")
PATIENT = Protection(unit="patient", votes_moved=2, hospitals=2)
HOSPITAL = Protection(unit="hospital", votes_moved=40)  # cut to 40 records' lengths


@pytest.mark.parametrize(
    ("protection", "squared"),
    [(Protection(), 4), (ADDED, 1), (PATIENT, 16), (HOSPITAL, 6400), (Protection(unit="label"), 4)],
)
def test_rounds_are_one_gaussian(protection: Protection, squared: int) -> None:
    """μ² of r rounds is r times that of one: the exact figure, and no composition by RDP."""
    assert signed_sensitivity(640**2, protection) == squared * 640**2
    sigma = 4500.0 * math.sqrt(squared)
    sums = SumsInRounds(**SIZE, sigma=sigma, labels=LABELS)
    for rounds in (1, 2, QUESTIONS):
        exact = gaussian_dp_epsilon(math.sqrt(rounds * squared) * 640 / sigma, DELTA)
        cost = sums.cost(rounds * LABELS, 0, protection)
        assert exact <= epsilon_of(cost, DELTA) == pytest.approx(exact, rel=1e-4)
    assert sums.cost(LABELS + 1, 0, protection) == sums.cost(2 * LABELS, LABELS, protection)


def test_a_longer_first_question_is_charged_where_it_is_the_most() -> None:
    """A study for replaced records lets classes count √2 times: one that comes or goes moves them more."""
    longer = SumsInRounds(**{**SIZE, "class_norm": 2 * 640**2}, sigma=9000.0, labels=LABELS)
    assert longer.squared_sensitivity(Protection()) == 4 * 640**2
    assert longer.squared_sensitivity(ADDED) == 2 * 640**2


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
def test_the_first_of_them_costs_no_more_than_is_charged(adjacency: str) -> None:
    protection = Protection(adjacency=adjacency)
    for length in range(1, 33):
        first = class_length(length, adjacency)
        charged = signed_sensitivity(length**2, protection)
        assert squared_sensitivity(first**2, protection) <= charged
        assert squared_sensitivity((first + 1) ** 2, protection) > charged  # and is no shorter than need be


@pytest.mark.parametrize("protection", [Protection(), ADDED, PATIENT, HOSPITAL])
def test_the_least_noise_keeps_epsilon_over_all_rounds(protection: Protection) -> None:
    sigma = least_sigma(1.0, DELTA, SHAPE, protection)
    asked = QUESTIONS * LABELS
    kept, less = (
        epsilon_of(SumsInRounds(**SIZE, sigma=part * sigma, labels=LABELS).cost(asked, 0, protection), DELTA)
        for part in (1, 0.999)
    )
    assert kept <= 1 < less
    share = least_share(1.0, DELTA, SHAPE, protection, survivors=4, colluders=1)
    shared = SharedSumsInRounds(**SIZE, sigma_party=share, survivors=4, colluders=1, labels=LABELS)
    assert epsilon_of(shared.cost(asked, LABELS, protection), DELTA) <= 1
    assert shared.sigma == pytest.approx(sigma, rel=1e-4)


@pytest.mark.parametrize(("rounds", "sigma"), [(1, 4.0), (2, 4.0), (3, 7.0)])
def test_by_brute_force_no_neighbours_are_told_apart_more_than_is_stated(rounds: int, sigma: float) -> None:
    """The exact δ of sums that are as far apart as they may be, in every round, over all outcomes."""
    sums = SumsInRounds(num_classes=2, dimension=1, squared_norm=1, class_norm=2, sigma=sigma, labels=1)
    stated = epsilon_of(sums.cost(rounds, 0, Protection()), DELTA)
    reach = math.ceil(12 * sigma)
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2 * sigma**2))
    mass /= mass.sum()
    # Contributions (1, 0) and (-1, 0): two steps apart on one of the two entries, whose losses add up. The
    # other entry has the same law on either side. Losses are whole numbers of 2/σ²: (z + 1) of them.
    law = np.array([1.0])
    for _ in range(rounds):
        law = np.convolve(law, mass)
    loss = (np.arange(len(law)) - rounds * reach + rounds) * 2 / sigma**2
    exact = float((law * np.maximum(0.0, -np.expm1(stated - loss))).sum())
    assert DELTA / 30 < exact <= DELTA


def test_out_of_range_is_refused() -> None:
    for bad in ({"labels": 0}, {"labels": -3}, {"class_norm": 0}, {"sigma": 1.0}, {"squared_norm": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            SumsInRounds(**{**SIZE, "sigma": 50.0, "labels": 5, **bad})
    with pytest.raises(InputError, match="questions"):
        SumShape(**SIZE, questions=0)


MECHANISMS = (
    SumsInRounds(**SIZE, sigma=9000.0, labels=LABELS),
    SharedSumsInRounds(**SIZE, sigma_party=5000.0, survivors=4, colluders=1, labels=LABELS),
)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_ledger_takes_so_many_rounds_and_no_more(
    mechanism: SumsInRounds | SharedSumsInRounds, tmp_path: Path
) -> None:
    assert mechanism_from_parameters(mechanism.name, mechanism.parameters()) == mechanism
    terms = LedgerTerms(
        study_digest="cd" * 32,
        delta=DELTA,
        mechanisms=(mechanism,),
        protection=Protection(),
        noise=SeededNoise(0).kind,
        private=False,
        coordinator=NOISY_SUMS,
        most_asked=QUESTIONS * LABELS,
        most_answered=LABELS,
    )
    assert "released at most 4 times" in guarantee_text(terms)
    most = epsilon_of(mechanism.cost(QUESTIONS * LABELS, 0, Protection()), DELTA)
    assert guaranteed_epsilon(terms) == pytest.approx(most, rel=1e-9)
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as ledger:

        def charge(number: int, *, asked: int = LABELS, answered: bool = False) -> None:
            event = PrivacyEvent(
                mechanism=mechanism,
                asked=asked,
                answered=asked if answered else 0,
                protection=Protection(),
                noise=terms.noise,
                private=False,
                coordinator=NOISY_SUMS,
            )
            before = {"strategy": "s", "learnt_to": ledger.head, "predictions": "ef" * 32}
            ledger.charge(
                event,
                batch_digest=f"{number:064x}",
                index=np.arange(asked),
                answered=np.full(asked, answered),
                label=np.full(asked, 0 if answered else -1),
                provenance=Provenance(round=number + 1, **before) if number else None,
            )

        for wrong in (1, LABELS - 1, 2 * LABELS):  # a round that would cost less by what it asks
            with pytest.raises(IntegrityError, match="once a round"):
                charge(0, asked=wrong)
        charge(0)
        with pytest.raises(IntegrityError, match="charged before"):
            charge(0)
        for number in range(1, QUESTIONS):
            charge(number, answered=number == QUESTIONS - 1)
        with pytest.raises(IntegrityError, match="the ledger's terms allow"):
            charge(QUESTIONS)
        spent = [entry.epsilon for entry in ledger.entries()]
    exact = [
        epsilon_of(mechanism.cost(LABELS * (1 + number), 0, Protection()), DELTA)
        for number in range(QUESTIONS)
    ]
    assert spent == pytest.approx(exact, rel=1e-9) and spent[-1] == guaranteed_epsilon(terms)
    # The second verifier, which has none of this code, comes to the same.
    for number, stated in enumerate(spent, 1):
        charged = [(mechanism.name, mechanism.parameters(), number * LABELS, 0)]
        plain = {"protection": Protection().to_dict(), "delta": DELTA, "sanitise": None}
        assert verify_independent.own_epsilon(plain, charged) == pytest.approx((stated, stated), rel=1e-3)
    assert len(verify_independent.verify(tmp_path)) == 2
