"""What studies cost a hospital together: RDP curves that add up, each bound only where it holds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import make_label_terms, make_sum_terms, make_terms

from clients.account import COORDINATOR, PUBLIC, StudyCost, fits, total_epsilon
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.ledger.terms import guaranteed_cost

RECORD, LABEL = "record, replace-one", "label, replace-one"
WIDE = ("patient", "hospital")
FEW = {"labels": 4, "max_queries": 4}  # few are computed fast, and by all that many are
SHARED = {
    "secure_sum": True,
    "noise_at": "hospitals",
    "colluders": 1,
    "sigma_party": 15.0,
    "aggregator": "gnmax",
    "sigma2": 39.0,
}


def _public(*terms: Terms, target: str = RECORD, delta: float = 1e-5) -> float | None:
    return total_epsilon([StudyCost.of(each) for each in terms], target, PUBLIC, delta=delta)


def test_one_study_costs_what_its_terms_guarantee() -> None:
    terms = make_terms()
    assert _public(terms) == worst_epsilon(terms)[0]
    checked = make_terms(threshold=12.0, sigma1=8.0, sigma2=12.0, labels=1000)
    alone = _public(checked)
    assert alone == worst_epsilon(checked)[0]  # each vector is checked: less than bit and winner add up to
    caps = guaranteed_cost(checked.ledger_terms(noise="as agreed", private=True))
    assert caps is not None and alone is not None and alone < 0.9 * capped_cost_epsilon(caps, 1e-5)
    twice = _public(checked, replace(checked, study="t"))
    assert twice is not None and twice > alone
    shared = make_terms(**SHARED)
    cost = [StudyCost.of(shared)]
    assert total_epsilon(cost, RECORD, COORDINATOR, delta=1e-5) == worst_epsilon(shared)[1]


def test_a_record_is_a_patients_and_a_patient_a_hospitals() -> None:
    """What no study states is bounded by what it is a part of; unnamed patients' sums by nothing."""
    moved = {"teachers_per_client": 4, "sigma1": 8.0, "sigma2": 8.0, **FEW}
    patient, record = make_terms(**moved, unit="patient"), make_terms(**moved)
    one, four = (_public(make_terms(**moved, unit=unit), target=f"{unit}, replace-one") for unit in WIDE)
    comes = {"unit": "patient", "adjacency": "add-or-remove-one"}
    alone = _public(make_terms(**moved, **comes), target="patient, add-or-remove-one")
    assert alone is not None and one is not None and four is not None and four > 2 * one > 4 * alone
    for target, stated, wanted in (
        ("patient, replace-one", patient, one),
        ("record, replace-one", patient, one),
        ("patient, add-or-remove-one", patient, alone),
        ("record, add-or-remove-one", patient, one),  # perhaps one of several of a patient
        ("record, replace-one", record, one),
        ("patient, replace-one", record, four),
        ("patient, add-or-remove-one", record, four),
        ("hospital, replace-one", patient, four),
        ("hospital, replace-one", record, four),
    ):
        assert _public(stated, target=target) == wanted, (target, stated.privacy.unit)
    both = _public(patient, replace(record, study="t"), target="patient, replace-one")
    assert both is not None and four < both < one + four
    assert _public(make_sum_terms(), target="patient, replace-one") is None
    assert _public(make_sum_terms(unit="patient"), target="record, add-or-remove-one") == _public(
        make_sum_terms(unit="patient"), target="patient, replace-one"
    )


def test_an_account_of_an_earlier_version_meant_patients_by_record_in_class_sums() -> None:
    made = StudyCost.of(make_sum_terms())
    older = {
        target: replace(terms, by_patient=True)
        for target, terms in made.terms.items()
        if target.startswith("record")
    }
    for adjacency in ("replace-one", "add-or-remove-one"):
        meant = total_epsilon([replace(made, terms=older)], f"patient, {adjacency}", PUBLIC, delta=1e-5)
        assert meant is not None and meant == _public(make_sum_terms(), target=f"record, {adjacency}")


def test_curves_are_added_and_not_their_epsilons() -> None:
    first, second = (make_terms(study=f"{each}", sigma2=each, sigma1=20.0, **FEW) for each in (8.0, 6.0))
    both, apart = _public(first, second), [_public(each) for each in (first, second)]
    costs = [guaranteed_cost(each.ledger_terms(noise="", private=True)) for each in (first, second)]
    assert costs[0] is not None and costs[1] is not None
    assert both == epsilon_of(costs[0] + costs[1], 1e-5)
    assert max(each or 0 for each in apart) < (both or 0) < sum(each or 0 for each in apart)


def test_a_budget_bounds_a_study_where_its_caps_do_not() -> None:
    loose = make_terms(epsilon=2.0, max_queries=1_000_000, labels=1_000_000)
    one, two = _public(loose), _public(loose, replace(loose, study="t"))
    assert one is not None and one <= 2.0 * (1 + 1e-9)
    assert two is not None and 2.0 < two < 4.0
    # A budget is one for the unit that it was set for, and for none that is larger.
    hospital = _public(loose, target="hospital, replace-one")
    assert hospital is not None and hospital > 100


def test_units_are_each_costed_by_their_own_sensitivity() -> None:
    record = make_terms(teachers_per_client=4)
    hospital = make_terms(teachers_per_client=4, unit="hospital", study="t")
    assert _public(record) == _public(hospital)
    of_record, of_hospital = (
        _public(record, hospital, target=target) for target in (RECORD, "hospital, replace-one")
    )
    assert of_record is not None and of_hospital is not None and of_record < of_hospital / 3
    assert _public(hospital, target="hospital, replace-one") == worst_epsilon(hospital)[0]


def test_labels_are_covered_by_what_covers_records_and_not_the_other_way_round() -> None:
    votes, labels = make_terms(), make_label_terms()
    assert _public(votes, labels) == _public(votes)
    both = _public(votes, labels, target=LABEL)
    assert both is not None and both > (_public(votes) or 0)
    # ε of randomised response composes by its RDP, too, and never above the plain sum.
    one, ten = _public(labels, target=LABEL), _public(*[labels] * 10, target=LABEL)
    assert one == pytest.approx(1.0, abs=1e-4)
    assert ten is not None and ten < 10


def test_what_has_no_bound_has_none_in_a_sum() -> None:
    seeded, good = make_terms(seed=3), make_terms(study="t")
    assert _public(seeded) is None and _public(good, seeded) is None
    assert total_epsilon([StudyCost.of(good)], RECORD, COORDINATOR, delta=1e-5) is None
    joins = make_terms(**SHARED, unit="hospital", adjacency="replace-one")
    cost = [StudyCost.of(joins)]
    assert total_epsilon(cost, "hospital, add-or-remove-one", COORDINATOR, delta=1e-5) is None
    assert not fits(cost, "hospital, add-or-remove-one", COORDINATOR, epsilon=1e6, delta=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_limit_is_held_at_one_order_and_never_above_what_the_sum_says(epsilon: float) -> None:
    study = StudyCost.of(make_terms(sigma1=60.0, sigma2=40.0, labels=8, max_queries=60))
    most = 0
    while fits([study] * (most + 1), RECORD, PUBLIC, epsilon=epsilon, delta=1e-5):
        most += 1
    within = total_epsilon([study] * most, RECORD, PUBLIC, delta=1e-5)
    beyond = total_epsilon([study] * (most + 1), RECORD, PUBLIC, delta=1e-5)
    assert within is not None and within <= epsilon
    assert beyond is not None and beyond > epsilon * 0.99
    assert not fits([study], RECORD, PUBLIC, epsilon=0.0, delta=1e-5)
    assert fits([], RECORD, PUBLIC, epsilon=0.0, delta=1e-5)
    assert math.isfinite(beyond)


def test_the_first_study_alone_is_bounded_by_its_caps_and_none_fits_after_it() -> None:
    caps = {"sigma1": 12.0, "sigma2": 8.0, **FEW}
    stated = worst_epsilon(make_terms(**caps))[0]
    assert stated is not None
    terms = make_terms(**caps, epsilon=stated)
    study = StudyCost.of(terms)
    (cost,) = study.bounds(RECORD, PUBLIC)
    assert epsilon_of(cost, 1e-5) > 1.02 * stated
    assert _public(terms) == stated
    assert fits([study], RECORD, PUBLIC, epsilon=stated, delta=1e-5)
    assert not fits([study], RECORD, PUBLIC, epsilon=0.999 * stated, delta=1e-5)
    assert not fits([study, study], RECORD, PUBLIC, epsilon=stated, delta=1e-5)
