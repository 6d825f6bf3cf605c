"""What a hospital enforces for itself against a coordinator that breaks the protocol."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.secure_sum import Demands, HospitalSum, Identity, RefusedError, SumRefusal, fingerprint
from pate_fed.secure_sum.messages import (
    BatchOpening,
    EnrolRequest,
    MaskRequest,
    UnmaskRequest,
    consent_digest,
)

VALUES = np.arange(35, dtype=np.int64).reshape(7, 5)


def _refused(parties: Any, name: str, request: Any, reason: SumRefusal, vector: Any = None) -> None:
    before = parties.hospitals[name].study_state()
    with pytest.raises(RefusedError) as caught:
        parties.ask(name, request, vector)
    assert caught.value.reason is reason
    assert parties.hospitals[name].study_state() == before


def _signed(parties: Any, message: Any, /, **changes: Any) -> Any:
    """The message with changes, signed by the coordinator itself: it is the one who cheats."""
    return replace(message, **changes).signed(parties.coordinator_identity)


@pytest.fixture
def seven(federation: Any) -> Any:
    return federation(7)


# The roster


def test_a_roster_of_three_needs_a_flag(federation: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        federation(3, demands=Demands())
    assert caught.value.reason is SumRefusal.ROSTER_SMALL
    assert len(federation(3, demands=Demands(least_parties=3, three_agreed=True)).roster.parties) > 0
    for bad in ({"least_parties": 3}, {"least_parties": 2, "three_agreed": True}):
        with pytest.raises(InputError, match="least_parties"):
            Demands(**bad)
    with pytest.raises(InputError, match="least_share"):
        Demands(least_share=Fraction(1, 2))


def test_a_roster_smaller_than_demanded_is_refused(federation: Any) -> None:
    with pytest.raises(RefusedError, match="4 of at least 5"):
        federation(4, demands=Demands(least_parties=5))


def test_a_threshold_below_the_demand_or_half_is_refused(federation: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        federation(9, threshold=5)
    assert caught.value.reason is SumRefusal.THRESHOLD
    federation(9, threshold=5, demands=Demands(least_share=Fraction(51, 100)))
    with pytest.raises(RefusedError, match="above half"):
        federation(8, threshold=4, demands=Demands(least_share=Fraction(51, 100)))


def test_unconfirmed_members_are_refused(federation: Any) -> None:
    parties = federation(5, pin=False)
    trusted = {name: fingerprint(identity.public) for name, identity in parties.identities.items()}
    parties.demands = Demands(trusted=dict(list(trusted.items())[:4]))
    parties.rebuild("hospital-0")
    _refused(parties, "hospital-0", parties.roster, SumRefusal.ROSTER_MEMBER)
    parties.demands = Demands(trusted={**trusted, "hospital-2": trusted["hospital-1"]})
    parties.rebuild("hospital-0")
    _refused(parties, "hospital-0", parties.roster, SumRefusal.ROSTER_MEMBER)
    del trusted["hospital-0"]  # itself it knows anyway
    parties.demands = Demands(trusted=trusted)
    parties.rebuild("hospital-0")
    parties.ask("hospital-0", parties.roster)


def _swap(data: bytes, size: int) -> bytes:
    return data[size : 2 * size] + data[:size] + data[2 * size :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: {"parties": r.parties.replace("hospital-6", "hospital-7")}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"parties": r.parties.replace("hospital-6", "hospital-5")}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"identities": r.identities[:-32] + r.identities[32:64]}, SumRefusal.ROSTER_MEMBER),
        (lambda r: {"exchange_keys": r.exchange_keys[:-32] + bytes(32)}, SumRefusal.ROSTER_MEMBER),
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
    _refused(parties, "hospital-0", _signed(parties, parties.roster, **change(parties.roster)), reason)


def test_an_exchange_key_that_gives_everyone_the_same_secret_is_refused(federation: Any) -> None:
    """A point of low order, rightly signed by its member: the secret would be zero whoever computes it."""
    parties = federation(5, pin=False)
    victim = parties.hospitals["hospital-4"].enrolment
    weak = replace(victim, exchange_key=bytes(32)).signed(parties.identities["hospital-4"])
    roster = _signed(
        parties,
        parties.roster,
        exchange_keys=parties.roster.exchange_keys[:-32] + weak.exchange_key,
        enrolments=parties.roster.enrolments[:-64] + weak.signature,
    )
    _refused(parties, "hospital-0", roster, SumRefusal.ROSTER_MEMBER)


def test_a_second_roster_is_refused_and_the_first_may_come_again(seven: Any) -> None:
    seven.ask("hospital-0", seven.roster)
    _refused(seven, "hospital-0", _signed(seven, seven.roster, threshold=6), SumRefusal.ROSTER_CHANGED)


def test_two_rosters_for_two_hospitals_let_no_share_through(federation: Any) -> None:
    parties = federation(7, pin=False)
    other = _signed(parties, parties.roster, threshold=6)
    shares, opening = {}, None
    for name in parties.names:
        roster = parties.roster if name == "hospital-0" else other
        parties.ask(name, roster)
        opening = BatchOpening(
            roster=roster.digest.hex(), batch=0, batch_digest="cd" * 32, length=5, bits=32
        ).signed(parties.coordinator_identity)
        shares[name] = parties.ask(name, opening)
    request = MaskRequest(
        **{**opening.head, "roster": parties.roster.digest.hex()},
        party="hospital-0",
        sharers=np.arange(7, dtype=np.int64),
        sealed=b"".join(reply.sealed[:84] for reply in shares.values()),
    )
    _refused(parties, "hospital-0", _signed(parties, request), SumRefusal.SHARE, VALUES[0])


def test_a_batch_before_the_roster_is_refused(federation: Any, seven: Any) -> None:
    parties = federation(7, pin=False)
    _refused(parties, "hospital-0", seven.open(5).opening, SumRefusal.ROSTER_STALE)


# Who speaks


def test_only_the_known_coordinator_is_heard(seven: Any) -> None:
    stranger = Identity.generate()
    batch = seven.until("share", VALUES)
    requests = [seven.open(5).opening, batch.mask_requests()["hospital-0"]]
    for request in requests:
        _refused(seven, "hospital-0", request.signed(stranger), SumRefusal.COORDINATOR)
        _refused(seven, "hospital-0", request.signed(seven.identities["hospital-1"]), SumRefusal.COORDINATOR)
    own = EnrolRequest(study=seven.roster.study, coordinator=stranger.public).signed(stranger)
    _refused(seven, "hospital-0", own, SumRefusal.COORDINATOR)
    with pytest.raises(RefusedError) as caught:
        HospitalSum.enrol(
            Identity.generate(), own, party="h", study=seven.roster.study, coordinator=b"\1" * 32
        )
    assert caught.value.reason is SumRefusal.COORDINATOR


def test_another_study_is_refused(seven: Any) -> None:
    request = seven.coordinator.enrol_request()
    with pytest.raises(RefusedError) as caught:
        HospitalSum.enrol(Identity.generate(), request, party="h", study="another study")
    assert caught.value.reason is SumRefusal.STUDY
    with pytest.raises(InputError, match="party="):
        HospitalSum.enrol(Identity.generate(), request, party="two\nlines", study=seven.roster.study)


def test_enrolling_again_gives_the_same_keys(seven: Any) -> None:
    request = seven.coordinator.enrol_request()
    assert seven.ask("hospital-0", request).digest == seven.hospitals["hospital-0"].enrolment.digest


# A batch


def test_a_batch_is_opened_once_by_number_and_by_digest(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    for changes in ({}, {"batch": 99}, {"batch_digest": "cd" * 32}, {"length": 6}):
        request = _signed(seven, batch.opening, **changes)
        _refused(seven, "hospital-0", request, SumRefusal.BATCH_REPEATED)


def test_a_batch_is_never_unmasked_again(seven: Any) -> None:
    batch = seven.until("consent", VALUES)
    request = batch.unmask_request()
    for name in seven.names:
        batch.take(seven.ask(name, request))
    np.testing.assert_array_equal(batch.total(), VALUES.sum(axis=0))
    _refused(seven, "hospital-0", request, SumRefusal.REPEATED)
    fewer = _signed(seven, request, consenting=request.consenting[:-1], consents=request.consents[:-64])
    _refused(seven, "hospital-0", fewer, SumRefusal.UNMASKED)
    _refused(seven, "hospital-0", batch.opening, SumRefusal.BATCH_REPEATED)


def test_a_second_set_of_survivors_voids_the_batch(seven: Any) -> None:
    """The sums over a set and over the set without one hospital would give that hospital's vector."""
    batch = seven.until("mask", VALUES)
    notice = batch.survivor_notice()
    smaller = _signed(seven, notice, survivors=np.array([0, 1, 2, 3, 4], dtype=np.int64))
    batch.take(seven.ask("hospital-0", notice))
    _refused(seven, "hospital-0", notice, SumRefusal.REPEATED)
    _refused(seven, "hospital-0", smaller, SumRefusal.EQUIVOCATION)
    _refused(seven, "hospital-0", smaller, SumRefusal.BATCH_VOID)


def test_two_sets_for_two_groups_unmask_nothing(seven: Any) -> None:
    """Equivocation: half of the hospitals sign one set, half another; neither has enough signatures."""
    batch = seven.until("mask", VALUES)
    full = batch.survivor_notice()
    smaller = _signed(seven, full, survivors=np.arange(6, dtype=np.int64))
    halves = [(name, full) for name in seven.names[:3]] + [(name, smaller) for name in seven.names[3:6]]
    consents = b"".join(seven.ask(name, notice).signature for name, notice in halves)
    request = UnmaskRequest(**batch.opening.head, consenting=np.arange(6, dtype=np.int64), consents=consents)
    for name in seven.names[:6]:
        _refused(seven, name, _signed(seven, request), SumRefusal.CONSENT)
        _refused(seven, name, _signed(seven, request), SumRefusal.BATCH_VOID)


@pytest.mark.parametrize(
    "case", ["too few", "a stranger's", "one twice", "swapped", "no survivor's", "short"]
)
def test_unmasking_needs_the_survivors_own_signatures(case: str, federation: Any) -> None:
    parties = federation(7)
    batch = parties.until("consent", VALUES, drop={"mask": [6]})
    good = batch.unmask_request()
    signers, consents = good.consenting, good.consents
    stranger = Identity.generate().sign(b"x" * 32)
    bad = {
        "too few": (signers[:4], consents[: 4 * 64]),
        "a stranger's": (signers, consents[:-64] + stranger),
        "one twice": (signers, consents[:-64] + consents[:64]),
        "swapped": (signers, _swap(consents, 64)),
        "no survivor's": (np.append(signers, 6), consents + consents[:64]),
        "short": (signers, consents[:-64]),
    }[case]
    request = _signed(parties, good, consenting=bad[0], consents=bad[1])
    _refused(parties, "hospital-0", request, SumRefusal.CONSENT)
    _refused(parties, "hospital-0", good, SumRefusal.BATCH_VOID)


def _split(parties: Any, colluders: int) -> tuple[list[str], list[str]]:
    """Who gives shares when the coordinator shows two sets of survivors to two groups of honest hospitals.

    The last `colluders` sign whatever they are asked to; hospital-0 is in one set and not in the other.
    """
    names, batch = parties.names, parties.until("mask", VALUES)
    full = batch.survivor_notice()
    smaller = _signed(parties, full, survivors=np.arange(1, 7, dtype=np.int64))
    honest, helpful = [[], []], ([], [])  # type: ignore[var-annotated]
    for number, name in enumerate(names[: 7 - colluders]):
        honest[number % 2].append(name)
    sharers = np.arange(7, dtype=np.int64)
    for side, notice in enumerate((full, smaller)):
        text = consent_digest(batch.opening, sharers, notice.survivors)
        signed = {names.index(name): parties.ask(name, notice).signature for name in honest[side]}
        signed |= {n: parties.identities[names[n]].sign(text) for n in range(7 - colluders, 7)}
        request = UnmaskRequest(
            **batch.opening.head,
            consenting=np.array(sorted(signed), dtype=np.int64),
            consents=b"".join(signed[number] for number in sorted(signed)),
        )
        for name in honest[side]:
            try:
                parties.ask(name, _signed(parties, request))
                helpful[side].append(name)
            except RefusedError as error:
                assert error.reason is SumRefusal.CONSENT
    return helpful


def test_few_colluders_do_not_get_two_sums(federation: Any) -> None:
    """Seven hospitals, five must sign: fewer than 2 * 5 - 7 = 3 colluders get one sum at most."""
    for colluders in range(3):
        helpful = _split(federation(7), colluders)
        assert not (helpful[0] and helpful[1])


def test_the_bound_on_colluders_is_tight_and_every_signature_lifts_it(federation: Any) -> None:
    helpful = _split(federation(7), 3)
    assert helpful[0] and helpful[1]
    for colluders in range(6):
        helpful = _split(federation(7, demands=Demands(every_signature=True)), colluders)
        assert not (helpful[0] and helpful[1])


def test_one_share_a_hospital_and_never_both(federation: Any) -> None:
    parties = federation(7)
    batch = parties.until("consent", VALUES, drop={"mask": [2]})
    held = parties.hospitals["hospital-0"]._batches[0].held.copy()
    reply = parties.ask("hospital-0", batch.unmask_request())
    revealed = np.frombuffer(reply.shares, dtype="<u2").reshape(7, -1)
    for row in range(7):
        kind = 1 if row == 2 else 0
        np.testing.assert_array_equal(revealed[row], held[row, kind])
        assert held[row, 1 - kind].astype("<u2").tobytes() not in reply.shares


def test_every_signature_may_be_demanded(federation: Any) -> None:
    demands = Demands(every_signature=True)
    parties = federation(7, demands=demands)
    np.testing.assert_array_equal(parties.total(VALUES, drop={"mask": [2]}), VALUES.sum(0) - VALUES[2])
    with pytest.raises(RefusedError) as caught:
        parties.total(VALUES, drop={"consent": [2]})
    assert caught.value.reason is SumRefusal.CONSENT


@pytest.mark.parametrize(
    ("survivors", "drop"),
    [([0, 1, 2, 3], []), ([1, 2, 3, 4, 5, 6], []), ([0, 1, 2, 3, 4, 6], [6]), ([0, 1, 2, 3, 4, 9], [])],
)
def test_survivors_must_be_enough_and_have_shared(survivors: Any, drop: Any, seven: Any) -> None:
    batch = seven.until("mask", VALUES, drop={"share": drop})
    notice = batch.survivor_notice()
    request = _signed(seven, notice, survivors=np.array(survivors, dtype=np.int64))
    _refused(seven, "hospital-0", request, SumRefusal.SURVIVORS)
    _refused(seven, "hospital-0", notice, SumRefusal.BATCH_VOID)


@pytest.mark.parametrize("sharers", [[0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 9]])
def test_sharers_must_be_enough_and_members(sharers: Any, seven: Any) -> None:
    batch = seven.until("share", VALUES)
    good = batch.mask_requests()["hospital-0"]
    sealed = good.sealed[: len(good.sealed) // 7 * len(sharers)]
    request = _signed(seven, good, sharers=np.array(sharers, dtype=np.int64), sealed=sealed)
    _refused(seven, "hospital-0", request, SumRefusal.SHARERS, VALUES[0])
    _refused(seven, "hospital-0", good, SumRefusal.BATCH_VOID, VALUES[0])


def test_a_forged_share_names_its_sender(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    good = batch.mask_requests()["hospital-0"]
    size = len(good.sealed) // 7
    changed = bytearray(good.sealed)
    changed[3 * size] ^= 1
    with pytest.raises(RefusedError, match="from hospital-3") as caught:
        seven.ask("hospital-0", _signed(seven, good, sealed=bytes(changed)), VALUES[0])
    assert caught.value.reason is SumRefusal.SHARE


def test_shares_of_another_batch_or_for_another_hospital_are_refused(seven: Any) -> None:
    first, second = seven.until("share", VALUES), seven.until("share", VALUES)
    one, two = first.mask_requests(), second.mask_requests()
    stale = _signed(seven, one["hospital-0"], sealed=two["hospital-0"].sealed)
    swapped = _signed(seven, two["hospital-0"], sealed=two["hospital-1"].sealed)
    _refused(seven, "hospital-0", stale, SumRefusal.SHARE, VALUES[0])
    _refused(seven, "hospital-0", swapped, SumRefusal.SHARE, VALUES[0])
    _refused(seven, "hospital-0", one["hospital-1"], SumRefusal.SHARERS, VALUES[0])


def test_a_hospital_masks_once(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    request = batch.mask_requests()["hospital-0"]
    batch.take(seven.ask("hospital-0", request, VALUES[0]))
    _refused(seven, "hospital-0", request, SumRefusal.REPEATED, VALUES[1])
    size = len(request.sealed) // 7
    fewer = _signed(seven, request, sharers=request.sharers[:6], sealed=request.sealed[: 6 * size])
    _refused(seven, "hospital-0", fewer, SumRefusal.EQUIVOCATION, VALUES[1])
    _refused(seven, "hospital-0", fewer, SumRefusal.BATCH_VOID, VALUES[1])


def test_another_digest_voids_the_batch(seven: Any) -> None:
    batch = seven.until("mask", VALUES)
    notice = batch.survivor_notice()
    other = _signed(seven, notice, batch_digest="cd" * 32)
    _refused(seven, "hospital-0", other, SumRefusal.BATCH_CHANGED)
    _refused(seven, "hospital-0", notice, SumRefusal.BATCH_VOID)


def test_steps_come_in_order_and_an_early_one_does_no_harm(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    requests = batch.mask_requests()
    replies = {name: seven.ask(name, requests[name], VALUES[i]) for i, name in enumerate(seven.names[1:], 1)}
    for reply in replies.values():
        batch.take(reply)
    notice = batch.survivor_notice()
    _refused(seven, "hospital-0", notice, SumRefusal.OUT_OF_ORDER)
    for name in seven.names[1:]:
        batch.take(seven.ask(name, notice))
    early = batch.unmask_request()
    _refused(seven, "hospital-0", early, SumRefusal.OUT_OF_ORDER)
    for name in seven.names[1:]:
        batch.take(seven.ask(name, early))
    np.testing.assert_array_equal(batch.total(), VALUES[1:].sum(axis=0))


def test_an_unknown_batch_and_a_stale_roster_are_refused(seven: Any, federation: Any) -> None:
    notice = seven.until("mask", VALUES).survivor_notice()
    _refused(seven, "hospital-0", _signed(seven, notice, batch=77), SumRefusal.BATCH_UNKNOWN)
    _refused(seven, "hospital-0", _signed(seven, notice, roster="cd" * 32), SumRefusal.ROSTER_STALE)
    _refused(federation(7), "hospital-0", notice, SumRefusal.ROSTER_STALE)


def test_a_restart_forgets_no_step(federation: Any) -> None:
    parties = federation(7, restart=True)
    batch = parties.until("consent", VALUES)
    request = batch.unmask_request()
    for name in parties.names:
        batch.take(parties.ask(name, request))
    for message, reason in (
        (request, SumRefusal.REPEATED),
        (batch.opening, SumRefusal.BATCH_REPEATED),
        (_signed(parties, request, consents=bytes(64 * 7)), SumRefusal.UNMASKED),
    ):
        _refused(parties, "hospital-0", message, reason)


def test_a_vector_that_does_not_belong_changes_nothing(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    request = batch.mask_requests()["hospital-0"]
    for bad in (VALUES[0][:4], VALUES[0].astype(np.float64), VALUES[0] + 2**32, VALUES[0] - 2**32):
        with pytest.raises(InputError) as caught:
            seven.ask("hospital-0", request, bad)
        assert str(int(bad[0])) not in str(caught.value).replace("32 bits", "")
    batch.take(seven.ask("hospital-0", request, VALUES[0]))


def test_a_refusal_is_signed_and_from_the_fixed_list(seven: Any) -> None:
    refusal = seven.hospitals["hospital-0"].refuse(SumRefusal.CONSENT)
    assert seven.coordinator.read_refusal(refusal) is SumRefusal.CONSENT
    with pytest.raises(IntegrityError, match="hospital-1 is not signed"):
        seven.coordinator.read_refusal(replace(refusal, party="hospital-1"))
    unknown = replace(refusal, code="MY_PATIENT_IS_ANN").signed(seven.identities["hospital-0"])
    assert seven.coordinator.read_refusal(unknown) is SumRefusal.FAULT
