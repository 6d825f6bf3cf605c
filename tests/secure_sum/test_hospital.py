"""A hospital's machine: its steps in order, once each, also after a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.secure_sum import HospitalSum, Identity, RefusedError, SumRefusal
from pate_fed.secure_sum.messages import (
    EnrolRequest,
)

VALUES = np.arange(35, dtype=np.int64).reshape(7, 5)


def test_only_the_known_coordinator_is_heard(seven: Any) -> None:
    stranger = Identity.generate()
    batch = seven.until("share", VALUES)
    requests = [seven.open(5).opening, batch.mask_requests()["hospital-0"]]
    for request in requests:
        seven.refused("hospital-0", request.signed(stranger), SumRefusal.COORDINATOR)
        seven.refused("hospital-0", request.signed(seven.identities["hospital-1"]), SumRefusal.COORDINATOR)
    own = EnrolRequest(study=seven.roster.study, coordinator=stranger.public, places=7).signed(stranger)
    seven.refused("hospital-0", own, SumRefusal.COORDINATOR)
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


def test_a_hospital_masks_once(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    request = batch.mask_requests()["hospital-0"]
    first = seven.ask("hospital-0", request, VALUES[0])
    batch.take(first)
    seven.repeated("hospital-0", request, first, VALUES[1])  # whatever its votes were now
    size = len(request.sealed) // 7
    fewer = seven.signed(request, sharers=request.sharers[:6], sealed=request.sealed[: 6 * size])
    seven.refused("hospital-0", fewer, SumRefusal.EQUIVOCATION, VALUES[1])
    seven.refused("hospital-0", fewer, SumRefusal.BATCH_VOID, VALUES[1])


def test_steps_come_in_order_and_an_early_one_does_no_harm(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    requests = batch.mask_requests()
    replies = {name: seven.ask(name, requests[name], VALUES[i]) for i, name in enumerate(seven.names[1:], 1)}
    for reply in replies.values():
        batch.take(reply)
    notice = batch.survivor_notice()
    seven.refused("hospital-0", notice, SumRefusal.OUT_OF_ORDER)
    for name in seven.names[1:]:
        batch.take(seven.ask(name, notice))
    early = batch.unmask_request()
    seven.refused("hospital-0", early, SumRefusal.OUT_OF_ORDER)
    for name in seven.names[1:]:
        batch.take(seven.ask(name, early))
    np.testing.assert_array_equal(batch.total(), VALUES[1:].sum(axis=0))


@pytest.mark.parametrize("restart", [False, True])
def test_the_last_request_of_a_batch_gets_the_same_reply_again_and_no_other_does(
    restart: bool, federation: Any
) -> None:
    parties = federation(5, restart=restart)
    values, batch = VALUES[:5], parties.open(5)
    earlier: list[Any] = []
    for requests in batch.rounds():
        for name, request in requests.items():
            reply = parties.ask(name, request, values[parties.names.index(name)])
            parties.repeated(name, request, reply, np.zeros(5, dtype=np.int64))
            batch.take(reply)
        for request in earlier:
            with pytest.raises(RefusedError) as caught:
                parties.ask("hospital-0", request, values[0])
            assert "REPEATED" in caught.value.reason.name
        earlier.append(requests["hospital-0"])
    np.testing.assert_array_equal(batch.total(), values.sum(axis=0))


@pytest.mark.parametrize("how", ["the next batch", "the study's end"])
def test_a_kept_reply_goes_when_nobody_needs_it_any_more(how: str, seven: Any) -> None:
    batch = seven.until("consent", VALUES)
    request = batch.unmask_request()
    shares = seven.ask("hospital-0", request).shares
    assert shares in seven.hospitals["hospital-0"].progress_state()
    if how == "the next batch":
        seven.until("share", VALUES)
    else:
        seven.hospitals["hospital-0"].forget_replies()
    assert shares not in seven.hospitals["hospital-0"].progress_state()
    seven.refused("hospital-0", request, SumRefusal.REPEATED)


def test_a_restart_forgets_no_step(federation: Any) -> None:
    parties = federation(7, restart=True)
    batch = parties.until("consent", VALUES)
    request = batch.unmask_request()
    for name in parties.names:
        batch.take(parties.ask(name, request))
    for message, reason in (
        (batch.opening, SumRefusal.BATCH_REPEATED),
        (parties.signed(request, consents=bytes(64 * 7)), SumRefusal.UNMASKED),
    ):
        parties.refused("hospital-0", message, reason)


def test_a_vector_that_does_not_belong_changes_nothing(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    request = batch.mask_requests()["hospital-0"]
    for bad in (VALUES[0][:4], VALUES[0].astype(np.float64), VALUES[0] + 2**32, VALUES[0] - 2**32):
        with pytest.raises(InputError) as caught:
            seven.ask("hospital-0", request, bad)
        assert str(int(bad[0])) not in str(caught.value).replace("32 bits", "")
    batch.take(seven.ask("hospital-0", request, VALUES[0]))
