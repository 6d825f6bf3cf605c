"""A hospital's saved state: damage and other hospitals' states are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import (
    HospitalSum,
    Identity,
)
from pate_fed.secure_sum.keys import KEY_BYTES, pair_label
from pate_fed.secure_sum.progress import open_state, seal_state
from pate_fed.secure_sum.study_state import load_study

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def test_a_state_of_an_earlier_release_is_read(federation: Any) -> None:
    """It kept pairs' secrets as they were agreed on; what is expanded for a batch is extracted from them."""
    parties = federation(4, pin=False)
    machine, own = parties.hospitals["hospital-1"], parties.identities["hospital-1"]
    members, exchange = parties.coordinator.members, machine._state.exchange_key
    agreed = [
        exchange.agree(key, salt=bytes.fromhex(members.digest), label=pair_label(members.study, *pair))
        for key, pair in zip(members.exchange_keys, ((0, 1), (1, 1), (1, 2), (1, 3)), strict=True)
    ]
    agreed[1] = bytes(KEY_BYTES)
    machine.pin(parties.roster)
    record = open_state("study", machine.study_state())
    del record["extracted"]
    seat = load_study(seal_state("study", {**record, "secrets": b"".join(agreed)}), own.public).seat
    assert seat is not None and seat.secrets == machine._state.seat.secrets
    assert not set(agreed[:1] + agreed[2:]) & set(seat.secrets)


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
