"""Sums in rounds at real hospitals: what they agree to, what each round costs, and what nobody gets twice."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import vary
from kinds import ASKED, HOSPITALS, ROUNDS, RoundSums, WholeSums

from clients.account import PUBLIC, StudyCost, total_epsilon
from clients.policy import Policy
from pate_fed.errors import InputError
from pate_fed.kinds.rounds import LENGTH, UNIT, RoundTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms, largest_messages, worst_epsilon
from pate_fed.learning.features.residuals import pack_weights
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import Question, Refusal
from pate_fed.secure_sum.messages import BatchOpening

DELTA = 1e-5


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoundSums:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return RoundSums(tmp_path)


def _asks(kind: RoundSums) -> RoundTerms:
    return RoundTerms.of(kind.terms)


def _weights(kind: RoundSums, scale: float = 1.0, seed: int = 0) -> bytes:
    shape = (_asks(kind).dimension, kind.terms.num_classes)
    return pack_weights(scale * np.random.default_rng(seed).normal(size=shape))


def _round(kind: RoundSums, number: int, given: bytes | None = None, **changes: Any) -> Question:
    places = kind.places() + number * _asks(kind).dimension
    given = (_weights(kind) if number else b"") if given is None else given
    values = {"batch": number, "index": places, "given": given, "heads": kind.heads, **changes}
    return Question(terms_digest=kind.terms.digest, **values)


def _code(reply: Any) -> str:
    return str(getattr(reply, "code", ""))


# What is agreed to.


def test_all_rounds_together_cost_what_is_stated(kind: RoundSums) -> None:
    public, coordinator = worst_epsilon(kind.terms)
    assert public == coordinator and public is not None and 0.999 < public <= 1
    fixed = kind.terms.ledger_terms(noise="n", private=True)
    assert (fixed.most_asked, fixed.most_answered) == ((1 + ROUNDS) * ASKED, ASKED)
    fewer = replace(kind.terms, asks=replace(_asks(kind), rounds=1))
    less, _ = worst_epsilon(fewer)
    assert less is not None and less < 0.9
    assert Terms.from_json(kind.terms.to_json()) == kind.terms
    one = replace(kind.terms, asks=replace(_asks(kind), length=2 * LENGTH))
    with pytest.raises(InputError, match=r"--epsilon 1 .*leave --sigma2 out"):
        worst_epsilon(one)


def test_who_comes_or_goes_is_charged_at_the_longer_first_question(kind: RoundSums) -> None:
    """Stated for replaced patients, classes count √2 times; a hospital's account asks for others too."""
    asks = _asks(kind)
    assert asks.length**2 < asks.first**2 <= 2 * asks.length**2
    made = StudyCost.of(kind.terms)
    for adjacency, longest in (("replace-one", 4 * asks.length**2), ("add-or-remove-one", asks.first**2)):
        [mechanism] = made.terms[f"patient, {adjacency}"].mechanisms
        protection = made.terms[f"patient, {adjacency}"].protection
        assert mechanism.squared_sensitivity(protection) == asks.squared_norm * longest
    assert total_epsilon([made], "hospital, replace-one", PUBLIC, delta=DELTA) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 101}, "rounds"),
        ({"first": 0}, "first"),
        ({"unit": "hospital"}, "asks.most_units"),
        ({"squared_norm": 10**12, "dimension": 100}, "asks.dimension"),
        ({"num_classes": 5000, "classes": ()}, "num_classes"),
        ({"secure_sum": False}, "noise_at"),
    ],
)
def test_what_does_not_go_together_is_refused(kind: RoundSums, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        if "unit" in changes:
            replace(kind.terms, privacy=replace(kind.terms.privacy, **changes))
        elif set(changes) & {"rounds", "first"}:
            replace(kind.terms, asks=replace(_asks(kind), **changes))
        else:
            vary(kind.terms, **changes)


def test_the_page_says_how_often_and_what_each_tells(kind: RoundSums) -> None:
    words = kind.terms.words
    page = " ".join(text for _, text in (*words.leaves, *words.sees, *words.limits))
    for told in ("At most 3 times one table", "at most 3 times, once a round", "each of at most 3 rounds"):
        assert told in page
    assert "how far its class is from what a public model" in page and "whatever they are" in page
    assert words.asked.endswith("at most 3 times")
    assert words.share(asked=2 * kind.terms.labels, answered=0) == "after 2 of at most 3 rounds"
    assert words.given(2 * _asks(kind).dimension, left=True) == "its sums 2 times"


def test_a_policy_caps_how_often_sums_leave(kind: RoundSums) -> None:
    for most, refused in ((ROUNDS, True), (1 + ROUNDS, False)):
        policy = Policy(most_sums=most, least_colluders=0, least_confirmed=0)
        found = policy.objection(kind.terms)
        assert (found is not None) == refused
        if found is not None:
            assert found[0] is Refusal.POLICY_ROUNDS and "3 times" in found[1]
    kind.set_policy(0, "most_sums = 2\n")
    assert _code(kind.agree(0)) == "POLICY_ROUNDS"
    kind.set_policy(0, 'class_sums = "no"\n')
    assert _code(kind.agree(0)) == "POLICY_SUMS"


def test_a_message_has_room_for_the_weights(kind: RoundSums) -> None:
    once = replace(kind.terms, asks=replace(_asks(kind), dimension=100_000))
    sizes = largest_messages(once)
    assert sizes.to_hospital > 100_000 * (8 + 4 * kind.terms.num_classes)


# What a hospital answers.


def test_what_comes_with_a_question_is_held_to_its_shape(kind: RoundSums) -> None:
    kind.close()
    whole = _weights(kind)
    for batch, wrong in enumerate(
        (
            _round(kind, 0, whole),
            _round(kind, 1, b""),
            _round(kind, 1, whole[:-1]),
            _round(kind, 1, whole * 2),
            _round(kind, 1 + ROUNDS),
            _round(kind, 1, index=kind.places()[::-1] + len(kind.places())),
            _round(kind, 1, index=kind.places()[:-1] + len(kind.places())),
            _round(kind, 1, index=kind.places() + 1),
            _round(kind, 1, index=kind.places() - len(kind.places())),
            _round(kind, 1, measured=1),
        )
    ):
        wrong = replace(wrong, batch=batch)
        opening = kind.open(wrong).opening
        assert _code(kind.send(0, wrong, opening, given=wrong.given)) == "MALFORMED"
    assert kind.answers() == 0


def test_no_round_is_answered_again_with_other_weights(kind: RoundSums) -> None:
    """A coordinator that asks round 1 twice, under another number or with other weights, gets one answer."""
    kind.close()
    asked = _round(kind, 1)
    batch = kind.open(asked)
    for requests in batch.rounds():
        for party, step in requests.items():
            batch.take(kind.send(int(party[-1]), asked, step, given=asked.given))
    assert kind.answers() == 1
    kind.show()
    for again in (_round(kind, 1, batch=5), _round(kind, 1, _weights(kind, seed=1), batch=6)):
        hospital = kind.hospital(0)
        assert hospital.journal.overlaps(again.index)
        batch = kind.open(again)
        refused = 0
        for requests in batch.rounds():
            for party, step in requests.items():
                reply = kind.send(int(party[-1]), again, step, given=again.given)
                refused += type(reply).__name__ == "SumRefused"
                if type(reply).__name__ != "SumRefused":
                    batch.take(reply)
            if refused == HOSPITALS:
                break
        assert refused == HOSPITALS
    assert kind.answers() == 1


def test_the_question_that_is_masked_names_its_weights(kind: RoundSums) -> None:
    """Another coordinator's weights under the same opening are another question."""
    kind.close()
    asked = _round(kind, 1)
    opening = kind.open(asked).opening
    assert isinstance(opening, BatchOpening)
    reply = kind.send(0, asked, opening, given=_weights(kind, seed=9))
    assert type(reply).__name__ == "SumRefused"
    assert kind.answers() == 0


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e9])
def test_a_patient_moves_each_round_by_no_more_than_its_length(kind: RoundSums, scale: float) -> None:
    """Sums of one hospital with and without a patient of two rows, whatever the weights are."""
    kind.close()
    asks, rows = _asks(kind), kind.data(0).read_text(encoding="utf-8").splitlines()
    for number in range(1 + ROUNDS):
        given = _weights(kind, scale) if number else b""
        question = _round(kind, number, given)
        pull = asks.pull(kind.terms, question)
        side = kind.hospital(0)._side(kind.terms)
        whole = side.answer(question)
        dataset, own, owners = side.site.dataset, side.site.own_records(), side.site.own_patients()
        assert owners is not None and len(owners) == len(rows) - 1
        for patient in np.unique(owners):
            kept = owners != patient
            rest = side._kept().contributions(
                dataset.private_images[own][kept],
                dataset.private_labels[own][kept],
                num_classes=kind.terms.num_classes,
                groups=owners[kept],
                pull=pull,
            )
            squares = int(((whole - rest) ** 2).sum())
            assert squares <= asks.squared_norm * pull.length**2
    assert (asks.length, asks.unit) == (LENGTH, UNIT)


# Of a whole hospital.


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WholeSums:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "whole").mkdir()
    return WholeSums(tmp_path / "whole")


def test_a_whole_hospital_is_charged_at_twice_its_length_in_every_round(whole: WholeSums) -> None:
    asks = _asks(whole)
    fixed = whole.terms.ledger_terms(noise="n", private=True)
    [mechanism] = fixed.mechanisms
    most = asks.squared_norm * asks.length**2 * (asks.most_units or 0) ** 2
    assert mechanism.squared_sensitivity(fixed.protection) == 4 * most  # whatever signs the first sum has
    stated = guaranteed_epsilon(fixed)
    assert stated is not None and 0.99 < stated <= 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"first": 5}, "asks.first"),  # the first sum would be longer than is charged
        ({"most_units": None}, "asks.most_units"),
        ({"unit": 2**12 + 1}, "unit"),
        ({"settings": {"name": "bins"}}, "asks.settings.name"),
    ],
)
def test_what_a_whole_hospital_is_not_asked(whole: WholeSums, changes: dict[str, Any], named: str) -> None:
    asks = _asks(whole)
    if "settings" in changes:
        changes = {"settings": replace(asks.settings, **changes["settings"])}
    with pytest.raises(InputError, match=named):
        replace(whole.terms, asks=replace(asks, **changes))


@pytest.mark.parametrize("rounds", [0, ROUNDS])
def test_features_with_signs_are_of_whole_hospitals_alone(
    whole: WholeSums, kind: RoundSums, rounds: int
) -> None:
    """Else nothing would bound what a record adds, and two would be further apart than is charged."""
    signed = _asks(whole).settings
    asks: Any = _asks(kind)
    if not rounds:
        same = {each.name: getattr(asks, each.name) for each in fields(SumTerms) if each.name != "kind"}
        asks = SumTerms(**same)
        assert replace(kind.terms, asks=asks).asks == asks
    with pytest.raises(InputError, match=r"asks\.settings\.name"):
        replace(kind.terms, asks=replace(asks, settings=signed))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e9])
def test_a_whole_hospital_adds_no_more_than_its_length(whole: WholeSums, scale: float) -> None:
    whole.close()
    asks = _asks(whole)
    most = asks.squared_norm * asks.length**2 * (asks.most_units or 0) ** 2
    for number in range(1 + ROUNDS):
        found = (
            whole.hospital(0)
            ._side(whole.terms)
            .answer(_round(whole, number, _weights(whole, scale) if number else b""))
        )
        assert 0 < sum(int(each) ** 2 for each in found.ravel()) <= most


def test_records_of_one_patient_are_cut_with_the_whole_alone(
    whole: WholeSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.close()
    question, side = _round(whole, 0, b""), whole.hospital(0)._side(whole.terms)
    patients = side.site.own_patients()
    assert patients is not None and len(np.unique(patients)) < len(patients)
    found = side.answer(question)
    monkeypatch.setattr(type(side.site), "own_patients", lambda site: None)
    np.testing.assert_array_equal(side.answer(question), found)


def test_the_page_says_that_the_whole_is_cut(whole: WholeSums) -> None:
    page = " ".join(text for _, text in whole.terms.words.leaves)
    lengths = f"that of {_asks(whole).most_units} record"
    assert "What your whole hospital adds is cut to a fixed length" in page and lengths in page
    assert "The first time there is no model yet: each counts by how far" in page


def test_what_a_cut_lets_through_has_room_in_32_bits(whole: WholeSums) -> None:
    """Nothing but the cut bounds an entry along directions, however few records a hospital has."""
    whole.close()
    whole.hospital(0)._side(whole.terms).prepare()
    long = replace(whole.terms, asks=replace(_asks(whole), most_units=2**20))
    with pytest.raises(InputError, match="32 bits"):
        whole.hospital(0)._side(long).prepare()
