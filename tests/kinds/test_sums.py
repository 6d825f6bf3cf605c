"""What terms of class sums cost, and against whom."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from builders import make_sum_terms, make_terms, vary

from pate_fed.config.sections import Privacy
from pate_fed.data.schema import Schema
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.sums import protection_by, sum_mechanism, sum_noise
from pate_fed.kinds.terms import Terms, largest_messages, worst_epsilon
from pate_fed.kinds.votes import VoteTerms
from pate_fed.privacy import LedgerTerms
from pate_fed.privacy.mechanisms.class_sums import SumShape

RECORD = Privacy(unit="record")


def test_noise_at_the_hospitals_costs_the_same_against_everyone() -> None:
    terms = make_sum_terms()
    public, coordinator = worst_epsilon(terms)
    assert public == coordinator and public is not None and 0.8 < public < 0.9
    assert terms.view(8).kind == "noisy-sums"
    fixed = terms.ledger_terms(noise="n", private=True)
    assert (fixed.most_asked, fixed.most_answered, fixed.epsilon) == (1500, 1500, None)
    assert "one record replaced" in fixed.protects and "vote" not in fixed.protects
    # Eight survive at least, and one of these tells its noise.
    assert sum_mechanism(terms).sigma == pytest.approx(2400 * math.sqrt(7))


@pytest.mark.parametrize(
    ("unit", "patient", "told"),
    [
        ("patient", "id", "all records of one patient at one hospital together"),
        (
            "record",
            "id",
            "each record by itself: k records of one patient are protected as by noise k times smaller",
        ),
        (
            "record",
            None,
            "each record by itself: k records of one patient are protected as by noise k times smaller",
        ),
    ],
)
def test_records_of_a_patient_are_one_only_where_the_unit_is_a_patient(
    unit: str, patient: str | None, told: str
) -> None:
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),), patient=patient)
    terms = vary(make_sum_terms(), image_shape=(1,), table=schema, unit=unit)
    fixed = terms.ledger_terms(noise="n", private=True)
    assert fixed.protects == f"one {unit} replaced (its features in the sums, {told})"
    assert "by_patient" not in fixed.to_dict()  # of earlier versions
    assert LedgerTerms.from_dict(fixed.to_dict()) == fixed
    whole = vary(make_sum_terms(unit="hospital", most_units=5), image_shape=(1,), table=schema)
    told_whole = whole.ledger_terms(noise="n", private=True).protects
    assert told_whole == "one hospital replaced (its features in the sums, cut to 5 records' length)"


def test_images_name_no_patient_in_the_terms() -> None:
    assert "each record by itself" in make_sum_terms().ledger_terms(noise="n", private=True).protects


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
    assert protection_by(RECORD, None).votes_moved == 1
    one, _ = worst_epsilon(make_sum_terms())
    five, _ = worst_epsilon(make_sum_terms(unit="hospital", most_units=5))
    assert one is not None and five is not None and five > 5 * one
    with pytest.raises(InputError, match="takes its noise along"):
        worst_epsilon(make_sum_terms(unit="hospital", most_units=5, adjacency="add-or-remove-one"))


def test_noise_follows_from_the_budget_or_is_what_was_given() -> None:
    shape = SumShape(num_classes=3, dimension=20, squared_norm=1024**2)
    protection = protection_by(RECORD, None)
    given = sum_noise(shape, protection, privacy=RECORD, sigma2=4.0, shares=None)
    assert given == 4096
    strict = sum_noise(shape, protection, privacy=replace(RECORD, epsilon=0.5), sigma2=None, shares=None)
    loose = sum_noise(shape, protection, privacy=replace(RECORD, epsilon=5.0), sigma2=None, shares=None)
    assert strict > 5 * loose > 0
    with pytest.raises(InputError, match="--epsilon"):
        sum_noise(shape, protection, privacy=RECORD, sigma2=None, shares=None)


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_terms_survive_their_text(at_hospitals: bool) -> None:
    terms = make_sum_terms(at_hospitals=at_hospitals)
    assert Terms.from_json(terms.to_json()) == terms
    assert terms.num_teachers == 0
    terms.asks.require_use(terms)  # no threshold is looked for


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"secure_sum": False}, "noise_at"),
        ({"sigma": 5.0}, "asks.sigma"),
        ({"sigma_party": None}, "sigma_party"),
        ({"most_units": 4}, "most_units"),
        ({"unit": "hospital"}, "most_units"),
        ({"dimension": 10**6, "num_classes": 1000}, "dimension"),
        ({"labels": 3000}, "labels"),
        ({"features": "not one"}, "features"),
        ({"squared_norm": 0}, "squared_norm"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        vary(make_sum_terms(), **changes)


def test_votes_are_not_sums() -> None:
    text = make_sum_terms().to_json()
    with pytest.raises(IntegrityError):
        Terms.from_json(text.replace('"kind":"class-sums"', '"kind":"votes"'))
    with pytest.raises(
        IntegrityError,
        match="votes, class-sums, sums-in-rounds, sums-and-scores, private-labels, own is meant",
    ):
        Terms.from_json(text.replace('"kind":"class-sums"', '"kind":"none"'))
    with pytest.raises(IntegrityError):
        Terms.from_json(text.replace('"secure_sum":true', '"secure_sum":false'))
    with pytest.raises(InputError, match="secure_sum"):
        replace(make_terms(), asks=make_sum_terms().asks)
    with pytest.raises(TypeError, match="class-sums"):
        VoteTerms.of(make_sum_terms())


def test_the_largest_messages_hold_all_sums() -> None:
    few, many = make_sum_terms(), make_sum_terms(dimension=100_000)
    grown = largest_messages(many).to_coordinator - largest_messages(few).to_coordinator
    assert grown == 8 * 3 * (100_000 - 20)
    assert largest_messages(few).to_hospital > 2**26  # a feature map comes
