"""What a hospital remembers of a batch, and what it forgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secrets_of import secrets_of

from pate_fed.secure_sum import RefusedError
from pate_fed.secure_sum.progress import load_batches


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
    parties.ask("hospital-0", parties.roster)
    assert key not in machine.study_state()
    assert parties.identities["hospital-0"].to_bytes() not in machine.study_state()
