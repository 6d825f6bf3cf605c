"""A hospital's saved state: what it forgets; damage and other hospitals' states are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secrets_of import secrets_of

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import (
    HospitalSum,
    Identity,
    RefusedError,
)
from pate_fed.secure_sum.state import load_batches, load_study, open_state, seal_state

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def test_a_state_of_an_earlier_release_is_refused(federation: Any) -> None:
    """It kept pairs' secrets as they were agreed on."""
    parties = federation(4)
    machine, own = parties.hospitals["hospital-1"], parties.identities["hospital-1"]
    record = open_state("study", machine.study_state())
    record["secrets"] = record.pop("extracted")
    with pytest.raises(IntegrityError, match="saved state"):
        load_study(seal_state("study", record), own.public)


def test_a_damaged_or_foreign_state_is_refused(federation: Any) -> None:
    parties = federation(4)
    parties.until("mask", VALUES)
    machine, own = parties.hospitals["hospital-0"], parties.identities["hospital-0"]
    study, progress = machine.study_state(), machine.progress_state()
    good = {"study_state": study, "progress_state": progress}
    HospitalSum.restore(own, **good)
    for bad in (
        {**good, "study_state": study[:-1]},
        {**good, "progress_state": progress[:40] + bytes([progress[40] ^ 1]) + progress[41:]},
        {**good, "progress_state": b""},
        {"study_state": progress, "progress_state": study},
    ):
        with pytest.raises(IntegrityError, match="saved state"):
            HospitalSum.restore(own, **bad)
    with pytest.raises(IntegrityError, match="another identity"):
        HospitalSum.restore(Identity.generate(), **good)


def test_a_finished_or_void_batch_keeps_no_secret(federation: Any) -> None:
    parties = federation(4)
    values = np.full((4, 3), 5, dtype=np.int64)
    batch = parties.until("consent", values)
    held = secrets_of(parties, "hospital-0")[4:]
    assert any(secret in parties.hospitals["hospital-0"].progress_state() for secret in held)
    parties.ask("hospital-0", batch.unmask_request())
    other = parties.until("mask", values)
    held += secrets_of(parties, "hospital-0")[4:]
    notice = other.survivor_notice()
    bad = replace(notice, survivors=np.array([0], dtype=np.int64)).signed(parties.coordinator_identity)
    with pytest.raises(RefusedError):
        parties.ask("hospital-0", bad)
    state = parties.hospitals["hospital-0"].progress_state()
    assert len(held) >= 16 and not any(secret in state for secret in held)
    assert len(load_batches(state)) == 2


def test_the_exchange_key_is_forgotten_once_the_roster_is_pinned(federation: Any) -> None:
    parties = federation(4, pin=False)
    machine = parties.hospitals["hospital-0"]
    key = machine._state.exchange_key.to_bytes()
    assert key in machine.study_state()
    parties.ask("hospital-0", parties.pin("hospital-0"))
    assert key not in machine.study_state()
    assert parties.identities["hospital-0"].to_bytes() not in machine.study_state()
