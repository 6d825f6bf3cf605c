"""The coordinator's own checks: who is admitted, what is closed, and how a study goes on in a new process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError, QuorumError
from pate_fed.secure_sum import CoordinatorSum, HospitalSum, Identity, SumRange, SumRefusal
from pate_fed.secure_sum.messages import Enrolment

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def _enrolment(coordinator: CoordinatorSum, party: str, identity: Identity | None = None) -> Enrolment:
    request = coordinator.enrol_request()
    return HospitalSum.enrol(
        identity or Identity.generate(), request, party=party, study=request.study
    ).enrolment


def test_rounds_lead_through_a_batch(federation: Any) -> None:
    parties = federation(4)
    batch, asked = parties.open(5), []
    for requests in batch.rounds():
        asked.append(sorted(requests))
        for name, request in requests.items():
            if len(asked) < 2 or name != "hospital-3":
                batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    np.testing.assert_array_equal(batch.total(), VALUES[:3].sum(axis=0))
    assert [len(names) for names in asked] == [4, 4, 3, 3]


def test_a_request_to_mask_is_made_when_it_is_sent_and_the_same_again(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, signed, sign = federation(4).until("share", VALUES), list[bytes](), Identity.sign
    monkeypatch.setattr(Identity, "sign", lambda self, text: signed.append(text) or sign(self, text))
    requests = batch.mask_requests()
    assert not signed and len(requests) == 4
    first, again = (requests["hospital-1"].to_bytes() for _ in range(2))
    assert len(signed) == 2 and first == again
    with pytest.raises(KeyError):
        requests["hospital-4"]


def test_rounds_end_below_the_threshold(federation: Any) -> None:
    parties = federation(4)
    batch = parties.open(5)
    with pytest.raises(QuorumError, match=r"2 of 4 hospitals shared"):
        for requests in batch.rounds():
            for name in list(requests)[:2]:
                batch.take(parties.ask(name, requests[name]))
    with pytest.raises(IntegrityError, match="VOID"):
        batch.mask_requests()


def test_names_identities_and_keys_are_admitted_once() -> None:
    coordinator = CoordinatorSum(Identity.generate(), study="s")
    own = Identity.generate()
    first = _enrolment(coordinator, "a", own)
    coordinator.admit(first)
    again = (
        _enrolment(coordinator, "a"),
        _enrolment(coordinator, "b", own),
        replace(first, party="c").signed(own),
    )
    for bad in again:
        with pytest.raises(IntegrityError, match="name or a key of a"):
            coordinator.admit(bad)
    stolen = replace(first, party="d", identity=Identity.generate().public)
    with pytest.raises(IntegrityError, match="d did not sign"):
        coordinator.admit(stolen)
    with pytest.raises(IntegrityError, match="another study"):
        coordinator.admit(replace(first, study="t").signed(own))


def test_only_expected_identities_are_admitted() -> None:
    own = Identity.generate()
    coordinator = CoordinatorSum(Identity.generate(), study="s", expected={"a": own.public})
    for party, identity in (("a", Identity.generate()), ("b", own)):
        with pytest.raises(IntegrityError, match=f"{party} is not expected"):
            coordinator.admit(_enrolment(coordinator, party, identity))
    coordinator.admit(_enrolment(coordinator, "a", own))


def test_a_roster_is_closed_once_and_needs_enough(federation: Any) -> None:
    coordinator = CoordinatorSum(Identity.generate(), study="s")
    for party in "ab":
        coordinator.admit(_enrolment(coordinator, party))
    with pytest.raises(QuorumError, match=r"2 hospitals have enrolled.*at least 3"):
        coordinator.close_roster()
    coordinator.admit(_enrolment(coordinator, "c"))
    with pytest.raises(IntegrityError, match="not closed yet"):
        _ = coordinator.members
    with pytest.raises(QuorumError, match="3 hospitals have enrolled"):
        coordinator.close_roster(threshold=4)
    late = _enrolment(coordinator, "d")
    assert coordinator.close_roster().threshold == 2
    with pytest.raises(IntegrityError, match="after the roster was closed"):
        coordinator.admit(late)
    with pytest.raises(IntegrityError, match="closed already"):
        coordinator.close_roster()


def test_a_batch_needs_enough_pinned_rosters(federation: Any) -> None:
    parties = federation(4, pin=False)
    for name in parties.names[:2]:
        parties.coordinator.note_pinned(parties.ask(name, parties.pin(name)))
    with pytest.raises(QuorumError, match="2 of 4 hospitals have pinned"):
        parties.open(5)
    foreign = parties.ask("hospital-2", parties.pin("hospital-2"))
    for bad, why in (
        (replace(foreign, party="nobody"), "not in the roster"),
        (replace(foreign, roster="cd" * 32), "another roster"),
        (replace(foreign, party="hospital-3"), "did not sign"),
    ):
        with pytest.raises(IntegrityError, match=why):
            parties.coordinator.note_pinned(bad)
    parties.coordinator.note_pinned(foreign)
    assert len(parties.open(5).invited) == 3


def test_a_batch_is_opened_once(federation: Any) -> None:
    parties = federation(4)
    digest = parties.open(5).opening.batch_digest
    for batch, name in ((0, "cd" * 32), (1, digest)):
        with pytest.raises(IntegrityError, match="never summed twice"):
            parties.coordinator.open_batch(
                batch=batch, batch_digest=name, length=5, sum_range=SumRange.noisy()
            )


def test_values_that_no_message_carries_are_refused(federation: Any) -> None:
    with pytest.raises(InputError, match="study is"):
        CoordinatorSum(Identity.generate(), study="two\nlines")
    good: dict[str, Any] = {"batch": 0, "batch_digest": "cd" * 32, "length": 5}
    parties = federation(4)
    wrong: list[dict[str, Any]] = [{"batch": -1}, {"batch_digest": "short"}, {"length": 0}]
    wrong += [{"batch": True}, {"batch": 0.5}, {"length": "5"}, {"length": 5.0}, {"batch_digest": 7}]
    for bad in wrong:
        with pytest.raises(InputError, match=f"{next(iter(bad))} is "):
            parties.coordinator.open_batch(**{**good, **bad}, sum_range=SumRange.noisy())


def test_a_study_goes_on_with_a_new_process_of_the_coordinator(federation: Any) -> None:
    parties = federation(4, restart=True)
    np.testing.assert_array_equal(parties.total(VALUES), VALUES.sum(axis=0))
    saved = parties.coordinator.to_bytes()
    parties.coordinator = CoordinatorSum.resume(parties.coordinator_identity, saved)
    for name in parties.names:
        parties.coordinator.note_pinned(parties.ask(name, parties.pin(name)))
    again = parties.open(5, batch=0).opening
    parties.refused("hospital-0", again, SumRefusal.BATCH_REPEATED)
    np.testing.assert_array_equal(parties.total(VALUES), VALUES.sum(axis=0))
    with pytest.raises(IntegrityError, match="not the one of this coordinator"):
        CoordinatorSum.resume(Identity.generate(), saved)
