"""One transcript with fixed randomness: a change of the protocol, of any label or any byte, is seen here.

Product code cannot be seeded. The test replaces the source of randomness inside the module from outside.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from pate_fed.secure_sum import SumRange
from pate_fed.secure_sum.codec import pack

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)

GOLDEN: dict[int, dict[str, str]] = {
    16: {
        "sum.enrol": "583bfc839584b1b1",
        "sum.roster": "47137358cd88e634",
        "sum.enrolment": "e5b220e6640e4fbd",
        "sum.pinned": "79a5e26569631c11",
        "sum.open": "f8207bb379c58dc3",
        "sum.shares": "ed1d8e9257d64ac5",
        "sum.mask": "8ca40c00036346b2",
        "sum.masked": "f32fddf26e7e778c",
        "sum.survivors": "01415459514dfab7",
        "sum.consent": "0527a987a1774aea",
        "sum.unmask": "9a23ea580792ead3",
        "sum.unmasked": "495de455fe9a45c3",
    },
    32: {
        "sum.enrol": "583bfc839584b1b1",
        "sum.roster": "47137358cd88e634",
        "sum.enrolment": "e5b220e6640e4fbd",
        "sum.pinned": "79a5e26569631c11",
        "sum.open": "7ff9a5f5df5da8f6",
        "sum.shares": "ed1d8e9257d64ac5",
        "sum.mask": "8ca40c00036346b2",
        "sum.masked": "1a2876086304b0cc",
        "sum.survivors": "01415459514dfab7",
        "sum.consent": "7ed1faa22d66bc20",
        "sum.unmask": "94636173d5cb5ce8",
        "sum.unmasked": "495de455fe9a45c3",
    },
}


class _Stream:
    """SHA-256 of a counter: the same bytes on every machine."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, count: int) -> bytes:
        blocks = []
        while 32 * len(blocks) < count:
            blocks.append(hashlib.sha256(b"golden" + self._count.to_bytes(8, "big")).digest())
            self._count += 1
        return b"".join(blocks)[:count]


def _transcript(federation: Any, sum_range: SumRange) -> dict[str, str]:
    """Digest over all messages of a kind, of a batch of four in which the third is lost at masking."""
    parties = federation(4)
    states: dict[str, Any] = {}

    def note(message: Any) -> Any:
        states.setdefault(message.kind, hashlib.sha256()).update(pack(message.to_record()))
        return message

    note(parties.coordinator.enrol_request())
    note(parties.roster)
    for name in parties.names:
        note(parties.hospitals[name].enrolment)
        note(parties.ask(name, parties.roster))
    batch, present = parties.open(5, sum_range), list(parties.names)
    for step in ("share", "mask", "consent", "unmask"):
        if step == "mask":
            requests = parties.requests(batch, step, present)
            present.remove("hospital-2")
        else:
            requests = parties.requests(batch, step, present)
        for name in present:
            reply = parties.ask(name, note(requests[name]), VALUES[parties.names.index(name)])
            batch.take(note(reply))
    np.testing.assert_array_equal(batch.total(), VALUES[[0, 1, 3]].sum(axis=0))
    return {kind: state.hexdigest()[:16] for kind, state in states.items()}


@pytest.mark.parametrize("bits", [16, 32])
def test_the_transcript_is_the_golden_one(
    bits: int, federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate_fed.secure_sum.keys._system", _Stream())
    summed = SumRange.votes(100) if bits == 16 else SumRange.noisy()
    assert _transcript(federation, summed) == GOLDEN[bits]


def test_without_the_fixed_source_no_two_transcripts_are_alike(federation: Any) -> None:
    first, second = (_transcript(federation, SumRange.noisy()) for _ in range(2))
    assert not set(first.values()) & set(second.values())
