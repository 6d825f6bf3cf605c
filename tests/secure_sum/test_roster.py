"""The roster, held to a hospital's demands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.secure_sum import (
    CoordinatorSum,
    Demands,
    HospitalSum,
    RefusedError,
    SumRefusal,
    confirmed_for,
    fingerprint,
    threshold_for,
)


def test_a_roster_of_three_needs_a_flag(federation: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        federation(3, demands=Demands())
    assert caught.value.reason is SumRefusal.ROSTER_SMALL
    assert len(federation(3, demands=Demands(least_parties=3, three_agreed=True)).roster.parties) > 0
    for bad in ({"least_parties": 3}, {"least_parties": 2, "three_agreed": True}):
        with pytest.raises(InputError, match="least_parties"):
            Demands(**bad)


def test_a_roster_smaller_than_demanded_is_refused(federation: Any) -> None:
    with pytest.raises(RefusedError, match="4 of at least 5"):
        federation(4, demands=Demands(least_parties=5))


def test_a_threshold_below_the_demand_or_half_is_refused(federation: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        federation(9, threshold=5)
    assert caught.value.reason is SumRefusal.THRESHOLD
    with pytest.raises(RefusedError, match="above half"):
        federation(8, threshold=4)


def _confirming(parties: Any, *names: str, **demands: Any) -> Demands:
    identities = parties.identities
    return Demands(
        **{
            "least_confirmed": None,
            "trusted": {n: fingerprint(identities[n].public) for n in names},
            **demands,
        }
    )


@pytest.mark.parametrize(
    ("n", "threshold", "most"),
    [(4, 4, 2), (4, 3, 2), (5, 4, 2), (10, 8, 4), (20, 16, 8), (100, 80, 40), (3, 2, 2)],
)
def test_all_the_rest_may_be_invented(n: int, threshold: int, most: int) -> None:
    """Who is not confirmed stays below what reads a vector: 2t - n."""
    assert confirmed_for(n, threshold) == most
    assert n - 1 - most < 2 * threshold - n


def test_invented_members_are_refused_before_a_vector_is_asked_for(federation: Any) -> None:
    """One real hospital among three keys of the coordinator's own, which all signed rightly."""
    parties, zero = federation(4, pin=False), "hospital-0"
    for names in ((), ("hospital-1",)):
        parties.demands = _confirming(parties, *names)
        parties.rebuild(zero)
        parties.refused(zero, parties.pin(zero), SumRefusal.CONFIRMED)
    parties.demands = _confirming(parties, zero, "hospital-1")  # itself does not count
    parties.rebuild(zero)
    parties.refused(zero, parties.pin(zero), SumRefusal.CONFIRMED)
    parties.demands = _confirming(parties, "hospital-1", "hospital-2")
    parties.rebuild(zero)
    parties.ask(zero, parties.pin(zero))


def test_a_confirmed_hospital_that_is_left_out_takes_the_sum_with_it(federation: Any) -> None:
    """Of this hospital's vector, a second one's and an invented one's the second hospital would read it."""
    parties, zero = federation(4, threshold=3, pin=False), "hospital-0"
    parties.demands = _confirming(parties, "hospital-1", "hospital-2")
    for name in parties.names:
        if name != zero:
            parties.coordinator.note_pinned(parties.ask(name, parties.pin(name)))
    parties.rebuild(zero)
    parties.coordinator.note_pinned(parties.ask(zero, parties.pin(zero)))
    vectors = np.ones((4, 3), dtype=np.int64)
    with pytest.raises(RefusedError) as caught:
        parties.until("mask", vectors, drop={"share": [1]})
    assert caught.value.reason is SumRefusal.SHARERS
    with pytest.raises(RefusedError) as caught:
        parties.until("unmask", vectors, drop={"mask": [2]})
    assert caught.value.reason is SumRefusal.SURVIVORS
    assert parties.until("unmask", vectors, drop={"mask": [3]}).total().tolist() == [3, 3, 3]


def test_noise_of_unconfirmed_members_is_not_counted_on(federation: Any) -> None:
    parties, names = federation(5, pin=False), ("hospital-1", "hospital-2")
    for strangers, refused in ((1, True), (2, False)):
        parties.demands = _confirming(parties, *names, most_strangers=strangers)
        parties.rebuild("hospital-0")
        if refused:
            parties.refused("hospital-0", parties.pin("hospital-0"), SumRefusal.CONFIRMED)
        else:
            parties.ask("hospital-0", parties.pin("hospital-0"))


def test_a_confirmed_name_with_another_key_is_refused(federation: Any) -> None:
    parties = federation(5, pin=False)
    trusted = {name: fingerprint(identity.public) for name, identity in parties.identities.items()}
    parties.demands = Demands(trusted={**trusted, "hospital-2": trusted["hospital-1"]})
    parties.rebuild("hospital-0")
    parties.refused("hospital-0", parties.pin("hospital-0"), SumRefusal.CONFIRMED)
    del trusted["hospital-0"]  # itself it knows anyway
    parties.demands = Demands(trusted=trusted)
    parties.rebuild("hospital-0")
    parties.ask("hospital-0", parties.pin("hospital-0"))


def _swap(data: bytes, size: int) -> bytes:
    return data[size : 2 * size] + data[:size] + data[2 * size :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: {"parties": r.parties.replace("hospital-6", "hospital-7")}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"parties": r.parties.replace("hospital-6", "hospital-5")}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"identities": r.identities[:-32] + r.identities[32:64]}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"exchange_keys": r.exchange_keys[:-32] + bytes(32)}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"sealings": r.sealings[:-32] + bytes(32)}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"sealings": _swap(r.sealings, 32)}, SumRefusal.ROSTER_SELF),
        (lambda r: {"enrolments": r.enrolments[:-64] + bytes(64)}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"identities": _swap(r.identities, 32)}, SumRefusal.ROSTER_SELF),
        (lambda r: {"exchange_keys": _swap(r.exchange_keys, 32)}, SumRefusal.ROSTER_SELF),
        (lambda r: {"parties": r.parties.replace("hospital-0", "hospital-x")}, SumRefusal.ROSTER_SELF),
        (lambda r: {"identities": r.identities[:-32]}, SumRefusal.MALFORMED),
        (lambda r: {"threshold": 8}, SumRefusal.THRESHOLD),
        (lambda r: {"study": "another study"}, SumRefusal.STUDY),
    ],
)
def test_a_changed_roster_is_refused_though_the_coordinator_signed_it(
    change: Any, reason: SumRefusal, federation: Any
) -> None:
    parties = federation(7, pin=False)
    parties.refused("hospital-0", parties.pin("hospital-0", **change(parties.roster)), reason)


def test_an_exchange_key_that_gives_everyone_the_same_secret_is_refused(federation: Any) -> None:
    """A point of low order, rightly signed by its member: the secret would be zero whoever computes it."""
    parties = federation(5, pin=False)
    victim = parties.hospitals["hospital-4"].enrolment
    weak = replace(victim, exchange_key=bytes(32)).signed(parties.identities["hospital-4"])
    roster = parties.pin(
        "hospital-0",
        exchange_keys=parties.roster.exchange_keys[:-32] + weak.exchange_key,
        enrolments=parties.roster.enrolments[:-64] + weak.signature,
    )
    parties.refused("hospital-0", roster, SumRefusal.ROSTER_MEMBER)
    fresh = CoordinatorSum(parties.coordinator_identity, study=parties.roster.study, places=5)
    with pytest.raises(IntegrityError, match="hospital-4 enrols with an exchange key that is not usable"):
        fresh.admit(weak)


@pytest.mark.parametrize(("n", "least"), [(3, 2), (4, 3), (5, 4), (6, 4), (9, 6), (250, 167), (1000, 667)])
def test_two_thirds_must_survive(n: int, least: int) -> None:
    assert threshold_for(n) == least > n / 2


def test_a_hospital_that_was_asked_for_too_few_sealing_keys_refuses_the_roster(federation: Any) -> None:
    """The tree over five keys has eight leaves: with its padding others would seal under a key of zeros."""
    parties, values = federation(7, pin=False), lambda: np.zeros(1, dtype=np.int64)
    request = parties.coordinator.enrol_request()
    short = replace(request, places=5).signed(parties.coordinator_identity)
    mine = HospitalSum.enrol(
        parties.identities["hospital-6"],
        short,
        party="hospital-6",
        study=request.study,
        demands=parties.demands,
    )
    coordinator = CoordinatorSum(parties.coordinator_identity, study=request.study, places=7)
    for enrolment in (*(parties.hospitals[name].enrolment for name in parties.names[:6]), mine.enrolment):
        coordinator._places = len(enrolment.sealing_keys) // 32  # it does not mind
        coordinator.admit(enrolment)
    coordinator._places = 7
    coordinator.close_roster()
    coordinator._sealing[6] += bytes(64)  # the padding, shown to the others as if it had been signed
    with pytest.raises(RefusedError, match="fewer sealing keys than it needs") as caught:
        mine.answer(coordinator.pin_request("hospital-6"), values)
    assert caught.value.reason is SumRefusal.ROSTER_SELF
    other = parties.hospitals["hospital-5"]  # its key for the seventh place is one of zeros
    other.answer(coordinator.pin_request("hospital-5"), values)
    seat = other._state.seat
    assert seat is not None and [at for at in range(7) if seat.seal(at) == bytes(32)] == [5]
