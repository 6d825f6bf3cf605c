"""What terms of class sums cost, and against whom."""

from __future__ import annotations

import math

import pytest
from builders import make_sum_terms, vary

from pate_fed.config.sections import Privacy
from pate_fed.data.schema import Schema
from pate_fed.errors import InputError
from pate_fed.privacy import LedgerTerms
from pate_fed.privacy.mechanisms.class_sums import SumShape
from pate_fed.protocol.cost import coordinator_view, make_ledger_terms, worst_epsilon
from pate_fed.protocol.sum_cost import protection_by, sum_mechanism, sum_noise


def test_noise_at_the_hospitals_costs_the_same_against_everyone() -> None:
    terms = make_sum_terms()
    public, coordinator = worst_epsilon(terms)
    assert public == coordinator and public is not None and 0.8 < public < 0.9
    assert coordinator_view(terms, 8).kind == "noisy-sums"
    fixed = make_ledger_terms(terms, noise="n", private=True)
    assert (fixed.most_asked, fixed.most_answered, fixed.epsilon) == (1500, 1500, None)
    assert "one record replaced" in fixed.protects and "vote" not in fixed.protects
    # Eight survive at least, and one of these tells its noise.
    assert sum_mechanism(terms).sigma == pytest.approx(2400 * math.sqrt(7))


@pytest.mark.parametrize(
    ("patient", "told"),
    [
        ("id", "all records of one patient at one hospital together"),
        (None, "each record by itself: k records of one patient are protected as by noise k times smaller"),
    ],
)
def test_records_of_a_patient_are_one_only_where_the_table_names_patients(
    patient: str | None, told: str
) -> None:
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),), patient=patient)
    terms = vary(make_sum_terms(), image_shape=(1,), table=schema)
    fixed = make_ledger_terms(terms, noise="n", private=True)
    assert fixed.protects == f"one record replaced (its features in the sums by class, {told})"
    assert ("by_patient" in fixed.to_dict()) is (patient is not None)  # all other ledgers are as they were
    assert LedgerTerms.from_dict(fixed.to_dict()) == fixed
    whole = vary(make_sum_terms(unit="hospital", most_units=5), image_shape=(1,), table=schema)
    told_whole = make_ledger_terms(whole, noise="n", private=True).protects
    assert told_whole == "one hospital replaced (its features in the sums by class, cut to 5 records' length)"


def test_images_name_no_patient_in_the_terms() -> None:
    assert "each record by itself" in make_ledger_terms(make_sum_terms(), noise="n", private=True).protects


def test_noise_at_the_coordinator_leaves_no_bound_against_it() -> None:
    public, coordinator = worst_epsilon(make_sum_terms(at_hospitals=False))
    assert public is not None and 0.5 < public < 2
    assert coordinator is None


def test_a_budget_that_the_noise_passes_is_refused_before_anything() -> None:
    with pytest.raises(InputError, match=r"--epsilon 0\.5 .*leave --sigma2 out"):
        worst_epsilon(make_sum_terms(epsilon=0.5))
    public, _ = worst_epsilon(make_sum_terms(epsilon=1.5))
    assert public is not None and public < 1.5


def test_a_hospital_is_protected_only_where_its_sum_is_cut() -> None:
    with pytest.raises(InputError, match="most_records"):
        protection_by(Privacy(unit="hospital"), None)
    assert protection_by(Privacy(unit="hospital"), 7).votes_moved == 7
    assert protection_by(Privacy(), None).votes_moved == 1
    one, _ = worst_epsilon(make_sum_terms())
    five, _ = worst_epsilon(make_sum_terms(unit="hospital", most_units=5))
    assert one is not None and five is not None and five > 5 * one
    with pytest.raises(InputError, match="takes its noise along"):
        worst_epsilon(make_sum_terms(unit="hospital", most_units=5, adjacency="add-or-remove-one"))


def test_noise_follows_from_the_budget_or_is_what_was_given() -> None:
    shape = SumShape(num_classes=3, dimension=20, squared_norm=1024**2)
    protection = protection_by(Privacy(), None)
    given = sum_noise(shape, protection, privacy=Privacy(), sigma2=4.0, shares=None)
    assert given == 4096
    strict = sum_noise(shape, protection, privacy=Privacy(epsilon=0.5), sigma2=None, shares=None)
    loose = sum_noise(shape, protection, privacy=Privacy(epsilon=5.0), sigma2=None, shares=None)
    assert strict > 5 * loose > 0
    with pytest.raises(InputError, match="--epsilon"):
        sum_noise(shape, protection, privacy=Privacy(), sigma2=None, shares=None)
