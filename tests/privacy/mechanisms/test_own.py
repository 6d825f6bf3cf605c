"""Mechanisms of one's own: what is taken from them, what is refused, and that none lowers what is charged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import own_parts
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Accountant, GNMax, LNMax, Protection, SeededNoise, SystemNoise
from pate_fed.privacy.ledger.terms import mechanism_from_parameters
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim, own_mechanism
from pate_fed.structure.parts import part_identity

CLASSES = 3
TOTALS = np.array([[7, 2, 1], [1, 8, 1], [3, 3, 4]])


def claimed(kind: str, **more: Any) -> OwnMechanism:
    """The mechanism `own_parts:kind`, as a study has it."""
    name = f"own_parts:{kind}"
    given: dict[str, Any] = {"classes": CLASSES, "num_teachers": 10, **more}
    return own_mechanism(getattr(own_parts, kind), identity=part_identity(name, "aggregator"), **given)


MECHANISM = claimed("GeometricMax")


def test_a_query_costs_what_it_claims_and_ε_adds_up() -> None:
    accountant = Accountant()
    accountant.spend(MECHANISM, queries=100, labels=60)
    theirs = Accountant()
    theirs.spend(LNMax(classes=CLASSES, scale=3.0), queries=100)
    assert accountant.epsilon(1e-5) >= theirs.epsilon(1e-5)  # of its totals; of its outcome is less
    assert "claimed by mechanisms of one's own, not proven" in repr(accountant)
    assert "claimed" not in repr(theirs)
    assert repr(MECHANISM) == "OwnMechanism(own_parts:GeometricMax, scale=3.0, num_classes=3, curve claimed)"
    assert repr(MECHANISM.claim) == "Claim(own_parts:GeometricMax, scale=3.0, RDP at 134 orders)"
    assert len(repr(accountant.cost)) < 300
    assert accountant.remaining(MECHANISM, epsilon=100, delta=1e-5) > 0
    with pytest.raises(InputError, match="has no DpEvent"):
        accountant.to_dp_event()


def test_unanswered_queries_cost_as_much() -> None:
    asked, answered = Accountant(), Accountant()
    asked.spend(MECHANISM, queries=50, labels=0)
    answered.spend(MECHANISM, queries=50, labels=50)
    assert asked.epsilon() == answered.epsilon()


def test_labels_come_from_its_code_query_by_query() -> None:
    release = MECHANISM.release(TOTALS, SeededNoise(1))
    assert release.answered.all() and release.event.asked == 3
    assert release.event.mechanism == MECHANISM and not release.event.private
    picky = claimed("Picky").release(np.tile(TOTALS, (20, 1)), SeededNoise(1), max_answers=12)
    assert picky.event.answered == 12 == (picky.label >= 0).sum() and picky.answered[-1]
    assert not picky.answered.all() and (picky.label[~picky.answered] == -1).all()
    assert claimed("Picky").release(TOTALS, SystemNoise(), max_answers=0).asked == 0
    assert claimed("GeometricMax").release(TOTALS, SystemNoise()).event.private
    with pytest.raises(InputError, match="more votes than the 10 teachers"):
        MECHANISM.release([[99, 0, 0]], SeededNoise(0))


def test_an_event_of_dp_accounting_is_a_curve() -> None:
    mechanism = claimed("GaussianEvent")
    accountant, exact = Accountant(), 0.0
    accountant.spend(mechanism, queries=100, labels=100)
    plain = Accountant()
    plain.spend(GNMax(classes=CLASSES, sigma=20), queries=100)
    exact = plain.epsilon(1e-5)
    assert exact < accountant.epsilon(1e-5) < 3 * exact


def test_a_row_holds_all_of_it_and_no_code_is_loaded_to_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(MECHANISM.parameters())
    monkeypatch.delattr(own_parts, "GeometricMax")
    again = mechanism_from_parameters(MECHANISM.name, json.loads(text))
    assert again == MECHANISM and hash(again) == hash(MECHANISM)
    assert again.cost_asked(MECHANISM.protection) == MECHANISM.cost_asked(MECHANISM.protection)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held["claim"].update(rdp=[0.0] * 134), "claims an RDP of 0.0"),
        (lambda held: held["claim"].update(rdp=[-1.0] * 134), "claims an RDP of -1.0"),
        (lambda held: held["claim"].update(rdp=held["claim"]["rdp"][:5]), "at 5 orders"),
        (lambda held: held["claim"].update(rdp=held["claim"]["rdp"] * 2), "at 268 orders"),
        (lambda held: held["claim"].update(rdp=held["claim"]["rdp"][::-1]), "falls at order"),
        (lambda held: held["claim"]["part"].update(name="os:system"), "the claim is that of os:system"),
        (lambda held: held.pop("num_teachers"), "has the parameters"),
        (lambda held: held.update(claim="own_parts:GeometricMax"), "a table of settings is meant"),
    ],
)
def test_a_row_that_was_tampered_with_is_no_mechanism(change: Any, said: str) -> None:
    held = json.loads(json.dumps(MECHANISM.parameters()))
    change(held)
    with pytest.raises(InputError, match=said):
        mechanism_from_parameters("own_parts:GeometricMax", held)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Free", "claims an RDP of 0.0 at order 1.02; what answers by votes costs something"),
        ("Negative", "claims an RDP of -1.0 at order 1.02"),
        ("Unknown", "claims an RDP of nan at order 1.02"),
        ("Boundless", "claims an RDP at 0 orders"),
        ("Falling", "its RDP falls at order"),
        ("Fickle", "claims another curve each time it is asked"),
        ("Always", "release gives nan; a class from 0 to 2, or None, is meant"),
    ],
)
def test_a_wrong_claim_is_one_sentence_before_anything_is_asked(kind: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        claimed(kind)
    assert str(refused.value).startswith(f"aggregator 'own_parts:{kind}': ")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (3, "is a int; a class, a factory or an object"),
        (lambda: 3, "made a int; an object with release, and rdp, dp_event, pure_dp or noise_on_totals"),
        (lambda: 1 / 0, r"fails when it is made of \{\} \(ZeroDivisionError"),
        (type("Half", (), {"release": lambda self, totals, noise: 0}), "an object with release, and rdp"),
        (type("Odd", (own_parts.GeometricMax,), {"parameters": lambda self: {"a": [1]}}), "parameter a is"),
        (own_parts.Forgetful, r"is another when it is made again from its own parameters\(\)"),
    ],
)
def test_what_is_no_mechanism_is_one_sentence(part: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        own_mechanism(part, classes=CLASSES, num_teachers=10, name="theirs:make")
    assert str(refused.value).startswith("aggregator 'theirs:make': ")


def test_code_that_claims_something_else_later_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = claimed("Turncoat")
    assert mechanism.release(TOTALS, SeededNoise(0)).event.asked == 3
    for factor in (0.5, 2.0):
        monkeypatch.setattr(own_parts.Turncoat, "turned", factor)
        with pytest.raises(
            IntegrityError, match="claims another curve or other parameters than the terms say"
        ):
            mechanism.release(TOTALS, SeededNoise(0))
        assert mechanism.cost_asked(mechanism.protection) == claimed_cost(mechanism)


def claimed_cost(mechanism: OwnMechanism) -> Any:
    return mechanism_from_parameters(mechanism.name, mechanism.parameters()).cost_asked(mechanism.protection)


@pytest.mark.parametrize("kind", ["Broken", "Beyond"])
def test_what_fails_on_votes_tells_nothing_of_them(kind: str) -> None:
    mechanism = claimed(kind)
    with pytest.raises(IntegrityError) as refused:
        mechanism.release([[7, 2, 1]], SeededNoise(0))
    said = re.sub(r", at .*own_parts\.py, line \d+, in release", "", str(refused.value))
    assert "nothing of this batch was released" in said and refused.value.__cause__ is None
    assert not any(count in said for count in ("7", "2", "1", "votes"))


def test_the_totals_are_a_copy_of_which_nothing_stays() -> None:
    class Greedy(own_parts.GeometricMax):
        def release(self, totals: Any, noise: Any) -> int:
            totals[:] = 0
            return 0

    votes = TOTALS.copy()
    mechanism = own_mechanism(Greedy, classes=CLASSES, num_teachers=10)
    with pytest.raises(InputError, match=r"there is no module|has no"):
        mechanism.release(votes, SeededNoise(0))  # of this process alone, and not held
    assert (votes == TOTALS).all()


def test_its_curve_is_for_one_kind_of_neighbours() -> None:
    with pytest.raises(InputError, match=r"claimed for one record replaced .* not for one hospital replaced"):
        MECHANISM.cost_asked(Protection(unit="hospital", votes_moved=2))
    wide = claimed("GeometricMax", protection=Protection(unit="hospital", votes_moved=2))
    accountant, narrow = Accountant(protection=wide.protection), Accountant()
    accountant.spend(wide, queries=10, labels=10)
    narrow.spend(MECHANISM, queries=10, labels=10)
    assert accountant.epsilon() > narrow.epsilon()


def test_parameters_are_part_of_it_and_a_factory_is_as_good_as_a_class() -> None:
    finer, made = (
        claimed("GeometricMax", parameters={"scale": 6.0}),
        claimed("make", parameters={"scale": 6.0}),
    )
    assert finer.claim.parameters == made.claim.parameters == (("scale", 6.0),)
    assert finer.claim.rdp == made.claim.rdp != MECHANISM.claim.rdp
    with pytest.raises(InputError, match=r"fails when it is made of \{'sclae': 6.0\}"):
        claimed("GeometricMax", parameters={"sclae": 6.0})


def test_a_claim_is_held_against_the_code_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = claimed("Turncoat", parameters={"scale": 4.0})
    part = replace(mechanism.claim.part, digest="0" * 64)
    foreign = replace(mechanism, claim=replace(mechanism.claim, part=part))
    with pytest.raises(
        IntegrityError, match=f"differs from the study's: .*{mechanism.claim.part.digest}.*{'0' * 64}"
    ):
        check_claim(foreign)
    lower = replace(mechanism.claim, rdp=tuple(0.9 * value for value in mechanism.claim.rdp))
    with pytest.raises(IntegrityError, match="claims a larger curve than the one that was charged"):
        check_claim(replace(mechanism, claim=lower))
    longer = replace(mechanism.claim, rdp=mechanism.claim.rdp[:100])
    check_claim(replace(mechanism, claim=longer))
    higher = replace(mechanism.claim, rdp=tuple(2 * value for value in mechanism.claim.rdp))
    check_claim(replace(mechanism, claim=higher))  # more was charged than is claimed
    check_claim(mechanism)
    gone = replace(part, name="own_prats:Turncoat")
    with pytest.raises(InputError, match="there is no module own_prats"):
        check_claim(replace(mechanism, claim=replace(mechanism.claim, part=gone)))
