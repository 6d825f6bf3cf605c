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

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


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
