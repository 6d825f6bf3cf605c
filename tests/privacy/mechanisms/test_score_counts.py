"""Counts of held-out records beside sums of the others: what both cost together, and what a ledger takes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import GNMax, Ledger, LedgerTerms, Protection, SeededNoise
from pate_fed.privacy.bounds.cost import NOTHING, epsilon_of, in_parallel
from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.rows import Provenance
from pate_fed.privacy.ledger.terms import guarantee_text, guaranteed_epsilon, mechanism_from_parameters
from pate_fed.privacy.ledger.verify_independent import FoundError
from pate_fed.privacy.mechanisms.class_sums import (
    ScoreCounts,
    SharedScoreCounts,
    SharedSumsInRounds,
    SumShape,
    SumsInRounds,
    least_share,
    least_sigma,
)
from pate_fed.privacy.mechanisms.events import NOISY_SUMS, Mechanism, PrivacyEvent

DELTA, LABELS, ROUNDS = 1e-5, 6, 3
ADDED = Protection(adjacency="add-or-remove-one")
PATIENT = Protection(unit="patient", votes_moved=2, hospitals=2)
ADDED_PATIENT = Protection(unit="patient", adjacency="add-or-remove-one", votes_moved=2, hospitals=2)
SMALL: dict[str, Any] = {"num_classes": 2, "dimension": 1, "squared_norm": 1}


def _delta(epsilon: float, shifts: list[int], sigma: float) -> float:
    """The exact δ at ε of independent discrete Gaussians of σ that are so far apart, over all outcomes."""
    reach = math.ceil(12 * sigma)
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2 * sigma**2))
    mass /= mass.sum()
    law, least = np.array([1.0]), 0
    for shift in filter(None, shifts):  # the loss is (2 z k + k²) / (2σ²)
        spread = np.zeros(2 * shift * (len(z) - 1) + 1)
        spread[:: 2 * shift] = mass
        law = np.convolve(law, spread)
        least += -2 * shift * reach + shift**2
    loss = (np.arange(len(law)) + least) / (2 * sigma**2)
    return float((law * np.maximum(0.0, -np.expm1(epsilon - loss))).sum())


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("protection", [Protection(), ADDED, PATIENT, ADDED_PATIENT])
def test_by_brute_force_no_neighbours_are_told_apart_more_than_is_stated(
    rounds: int, protection: Protection
) -> None:
    """A unit with a contribution in so many hospitals' sums, and its count in the others'; all cases."""
    most, sigma = protection.votes_moved, 6.0 * protection.votes_moved
    replaced = protection.adjacency == "replace-one"
    classes = 2 if replaced else 1  # squared: a class may count √2 times where a record is replaced
    steps = SumShape(**SMALL, class_norm=classes, questions=rounds).steps_of_count(protection)
    sums = SumsInRounds(**SMALL, class_norm=classes, sigma=sigma, labels=1)
    counts = ScoreCounts(num_classes=2, dimension=1, squared_norm=steps**2, sigma=sigma, labels=1)
    cost = in_parallel(sums.cost(rounds, 0, protection), counts.cost(1, 1, protection))
    stated, found = epsilon_of(cost, DELTA), {}
    others = range(most + 1) if replaced else [None]
    for before, after in itertools.product(range(most + 1), others):
        if after is None:  # it comes or goes: a unit's sums and counts appear
            shifts = [before] * rounds + [steps * (most - before)]
        else:  # contributions are each other's opposite, and counts are of other classes
            shifts = [before + after] * rounds + [steps * (most - before), steps * (most - after)]
        found[before, after] = _delta(stated, shifts, sigma)
    assert DELTA / 60 < max(found.values()) <= DELTA, found


def test_the_cost_is_the_larger_group_s_and_its_distance_both_of_theirs() -> None:
    sums = SumsInRounds(**SMALL, class_norm=2, sigma=20.0, labels=1).cost(3, 0, Protection())
    for squared in (1, 6, 40):
        counts = ScoreCounts(num_classes=2, dimension=8, squared_norm=squared, sigma=20.0, labels=1)
        other = counts.cost(1, 0, Protection())
        both = in_parallel(sums, other)
        assert both == in_parallel(other, sums)
        most = max(epsilon_of(sums, DELTA), epsilon_of(other, DELTA))
        assert epsilon_of(both, DELTA) == pytest.approx(most, rel=1e-9)
        assert (
            both.outcomes[0][0].distance == 3 * sums.outcomes[0][0].distance + other.outcomes[0][0].distance
        )
        assert both.as_totals.rho >= max(sums.as_totals.rho, other.as_totals.rho)
    assert in_parallel(NOTHING, sums) == sums == in_parallel(sums, NOTHING)
    votes = GNMax(num_teachers=20, num_classes=2, sigma=5.0).cost(3, 3, Protection())
    assert in_parallel(votes, sums) == votes + sums  # of anything else nothing is known to be apart


@pytest.mark.parametrize("protection", [Protection(), ADDED, PATIENT])
def test_counts_of_equal_noise_cost_what_all_sums_do(protection: Protection) -> None:
    squared = 640**2
    bare = SumShape(num_classes=3, dimension=20, squared_norm=squared, class_norm=2 * squared, questions=4)
    steps = bare.steps_of_count(protection)
    shape = SumShape(
        num_classes=3,
        dimension=20,
        squared_norm=squared,
        class_norm=2 * squared,
        questions=4,
        counts=(12, steps),
    )
    sigma = least_sigma(1.0, DELTA, shape, protection)
    assert sigma == pytest.approx(least_sigma(1.0, DELTA, bare, protection), rel=1e-5)
    one, other = (
        epsilon_of(each, DELTA)
        for each in (
            bare.cost(protection, sigma=sigma),
            ScoreCounts(num_classes=3, dimension=12, squared_norm=steps**2, sigma=sigma, labels=1).cost_asked(
                protection
            ),
        )
    )
    assert one == pytest.approx(other, rel=1e-3) and max(one, other) <= 1 <= 1.001 * min(one, other)
    share = least_share(1.0, DELTA, shape, protection, survivors=4, colluders=1)
    assert share * math.sqrt(3) == pytest.approx(sigma, rel=1e-4)


SIZE: dict[str, Any] = {"num_classes": 3, "dimension": 20, "squared_norm": 640**2}
SHARES: dict[str, Any] = {"sigma_party": 5000.0, "survivors": 4, "colluders": 1}
PAIRS: list[tuple[Mechanism, Mechanism]] = [
    (
        SumsInRounds(**SIZE, class_norm=640**2, sigma=9000.0, labels=LABELS),
        ScoreCounts(**SIZE | {"dimension": 12, "squared_norm": 1500**2}, sigma=9000.0, labels=LABELS),
    ),
    (
        SharedSumsInRounds(**SIZE, class_norm=640**2, **SHARES, labels=LABELS),
        SharedScoreCounts(**SIZE | {"dimension": 12, "squared_norm": 1500**2}, **SHARES, labels=LABELS),
    ),
]


def _terms(*mechanisms: Mechanism) -> LedgerTerms:
    return LedgerTerms(
        study_digest="cd" * 32,
        delta=DELTA,
        mechanisms=mechanisms,
        protection=Protection(),
        noise=SeededNoise(0).kind,
        private=False,
        coordinator=NOISY_SUMS,
        most_asked=(ROUNDS + 1) * LABELS,
        most_answered=LABELS,
    )


def _charge(ledger: Ledger, mechanism: Mechanism, *, asked: int = LABELS, answered: bool = False) -> float:
    number = len(ledger.entries())
    event = PrivacyEvent(
        mechanism=mechanism,
        asked=asked,
        answered=asked if answered else 0,
        protection=Protection(),
        noise=ledger.terms.noise,
        private=False,
        coordinator=NOISY_SUMS,
    )
    before = {"strategy": "s", "learnt_to": ledger.head, "predictions": "ef" * 32}
    entry = ledger.charge(
        event,
        batch_digest=f"{number:064x}",
        index=np.arange(asked),
        answered=np.full(asked, answered),
        label=np.full(asked, 0 if answered else -1),
        provenance=Provenance(round=number + 1, **before) if number else None,
    )
    return entry.epsilon


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_a_ledger_takes_counts_once_after_the_sums_at_the_larger_cost(
    pair: tuple[Mechanism, Mechanism], rounds: int, tmp_path: Path
) -> None:
    sums, counts = pair
    for each in pair:
        assert mechanism_from_parameters(each.name, each.parameters()) == each
    terms = _terms(*pair)
    assert "at most 3 times, and counts of other records once" in guarantee_text(terms)
    assert "or, if held out, one count" in terms.protects
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as ledger:
        spent = [_charge(ledger, sums) for _ in range(rounds)]
        if rounds == ROUNDS:  # the counts' part of the caps is theirs
            with pytest.raises(IntegrityError, match="24 queries of sums"):
                _charge(ledger, sums)
        with pytest.raises(IntegrityError, match="once a round"):
            _charge(ledger, counts, asked=1)
        if rounds < ROUNDS:  # or a sum could be written as cheaper counts
            with pytest.raises(IntegrityError, match="and then counts"):
                _charge(ledger, counts, answered=True)
            return
        spent.append(_charge(ledger, counts, answered=True))
        for again in pair:
            with pytest.raises(IntegrityError, match="nothing is released after that"):
                _charge(ledger, again)
    both = in_parallel(sums.cost(rounds * LABELS, 0, Protection()), counts.cost_asked(Protection()))
    assert spent[-1] == pytest.approx(epsilon_of(both, DELTA), rel=1e-9)
    if rounds == ROUNDS:
        assert spent[-1] == guaranteed_epsilon(terms) == pytest.approx(spent[-2], rel=1e-6)
    assert len(verify_independent.verify(tmp_path)) == 2
    Ledger.read(tmp_path)
    plain = {"protection": Protection().to_dict(), "delta": DELTA, "sanitise": None}
    charged = [
        (sums.name, sums.parameters(), rounds * LABELS, 0),
        (counts.name, counts.parameters(), LABELS, 0),
    ]
    assert verify_independent.own_epsilon(plain, charged) == pytest.approx((spent[-1],) * 2, rel=1e-3)
    twice = [charged[0], (*charged[1][:2], 2 * LABELS, 0)]
    with pytest.raises(FoundError, match="more than once"):
        verify_independent.own_epsilon(plain, twice)


def test_counts_by_two_mechanisms_are_refused() -> None:
    """Each would be in parallel with the sums, and so the dearer one with the cheaper."""
    sums, counts = PAIRS[0]
    with pytest.raises(InputError, match="by one mechanism"):
        _terms(sums, counts, replace(counts, squared_norm=counts.squared_norm + 1))


def test_counts_with_a_budget_s_filter_are_refused() -> None:
    with pytest.raises(InputError, match="go with caps"):
        LedgerTerms(
            **{**{n: getattr(_terms(*PAIRS[0]), n) for n in _terms(*PAIRS[0]).__slots__}, "epsilon": 9.0}
        )
    for bad in ({"labels": 0}, {"squared_norm": 0}, {"sigma": 1.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            ScoreCounts(**{**SIZE, "sigma": 50.0, "labels": 5, **bad})


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("cs", "counts held-out records, and is not the last"),
        ("sc", "counts held-out records before all sums"),
        ("scc", "and is not the last"),
        ("ssss", "more was"),
    ],
)
def test_the_second_verifier_finds_what_a_lax_ledger_took(order: str, words: str, tmp_path: Path) -> None:
    """Counts before sums or twice, and a sum in the place of the counts, were our own rules not kept."""
    sums, counts = PAIRS[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerTerms, "refuse_out_of_turn", lambda *_: None)
        with Ledger.create(tmp_path / "ledger.sqlite", _terms(sums, counts)) as ledger:
            for each in order:
                _charge(ledger, sums if each == "s" else counts)
    with pytest.raises(FoundError, match=words):
        verify_independent.verify(tmp_path)
    with pytest.raises(IntegrityError, match="row"):
        Ledger.read(tmp_path)
