"""Secrets and votes are in no repr, no error, no pickle, and in no state once a batch is over."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest
from secrets_of import secrets_of

import pate_fed.secure_sum as room
from pate_fed.errors import PateFedError
from pate_fed.secure_sum import SumRefusal
from pate_fed.secure_sum.masks import Masker

MARK = 1_234_567_891


def _forms(secret: bytes) -> list[str]:
    """How a secret might show itself in a text."""
    return [secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1]]


def _shows(text: str, secrets: list[bytes]) -> bool:
    return any(form in text for secret in secrets for form in _forms(secret)) or str(MARK) in text


@pytest.mark.parametrize("step", ["share", "mask", "consent"])
def test_no_repr_shows_a_secret_or_a_vote(step: str, federation: Any) -> None:
    parties = federation(4)
    values = np.full((4, 3), MARK, dtype=np.int64)
    batch = parties.until(step, values)
    machine = parties.hospitals["hospital-0"]
    state = machine._state
    things = [machine, batch, parties.identities["hospital-0"], state, state.seat, machine._batches]
    things += list(machine._batches.values())
    secrets = secrets_of(parties, "hospital-0")
    assert len(secrets) >= 8
    for thing in things:
        for text in (repr(thing), str(thing), f"{thing}", repr([thing])):
            assert not _shows(text, secrets)
    assert _shows(repr(secrets), secrets)


def test_messages_show_no_bytes_and_no_arrays(federation: Any) -> None:
    parties = federation(4)
    values = np.full((4, 3), MARK, dtype=np.int64)
    batch = parties.until("consent", values)
    reply = parties.ask("hospital-0", batch.unmask_request())
    assert reply.shares.hex() not in repr(reply) and "=b'" not in repr(reply)
    assert repr(reply).startswith("UnmaskShares(version=3, roster=") and "party='hospital-0'" in repr(reply)


def test_no_error_shows_a_secret_or_a_vote(federation: Any) -> None:
    parties = federation(5)
    values = np.full((5, 3), MARK, dtype=np.int64)
    batch = parties.until("share", values)
    request = batch.mask_requests()["hospital-0"]
    secrets, errors = secrets_of(parties, "hospital-0"), []
    for attempt in (
        lambda: parties.ask("hospital-0", request, values[0][:2]),
        lambda: parties.ask("hospital-0", request, values[0] + 2**33),
        lambda: parties.ask("hospital-1", request, values[0]),
        lambda: parties.ask("hospital-0", request.signed(parties.identities["hospital-1"]), values[0]),
        lambda: parties.ask("hospital-0", parties.signed(batch.opening, length=4), values[0]),
        lambda: batch.survivor_notice(),
    ):
        with pytest.raises(PateFedError) as caught:
            attempt()
        errors.append("".join(traceback.format_exception(caught.value)))
    assert len(errors) == 6
    assert not any(_shows(text, secrets) for text in errors)


def test_the_coordinator_never_gets_a_long_term_secret(federation: Any) -> None:
    """Everything that hospitals sent in a batch with dropouts, searched for the secrets that must stay."""
    parties = federation(5)
    values = np.full((5, 3), 5, dtype=np.int64)
    batch = parties.until("unmask", values, drop={"mask": [4]})
    batch.total()
    kept = [secret for name in parties.names for secret in secrets_of(parties, name)]
    seen = b"".join(reply.sealed + reply.seeds + reply.commitment for reply in batch._dealt.values())
    seen += b"".join(batch._shares.values()) + batch._sum.tobytes()
    assert len(kept) >= 25 and not any(secret in seen for secret in kept[:5])
    assert not any(secret in seen for secret in kept if len(secret) == 32)


def test_the_public_names_are_these() -> None:
    assert sorted(room.__all__) == sorted(set(room.__all__))
    assert all(hasattr(room, name) for name in room.__all__)
    assert SumRefusal.FAULT.value and Masker(3, 16).dtype == np.uint16
