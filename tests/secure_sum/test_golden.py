"""One transcript with fixed randomness: a change of the protocol, of any label or any byte, is seen here.

Product code cannot be seeded. The test replaces the source of randomness inside the module from outside.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from pate_fed.secure_sum import SumRange
from pate_fed.secure_sum.keys import pack

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)

GOLDEN: dict[int, dict[str, str]] = {
    16: {
        "sum.enrol": "eb53a58580b0bac4",
        "sum.enrolment": "353f4fe1159dd9ea",
        "sum.pin": "f4e2205ed3a52666",
        "sum.pinned": "2d20973c75256ee9",
        "sum.open": "b3257b4937af10e1",
        "sum.shares": "c263eb523e490237",
        "sum.mask": "81e1a03d0498226d",
        "sum.masked": "c058926152ddd7bc",
        "sum.survivors": "f00aa13432b1825f",
        "sum.consent": "d25ed3d03df72be7",
        "sum.unmask": "9a27f78f7a39cda5",
        "sum.unmasked": "1085ba9d9e3e84e0",
    },
    32: {
        "sum.enrol": "eb53a58580b0bac4",
        "sum.enrolment": "353f4fe1159dd9ea",
        "sum.pin": "f4e2205ed3a52666",
        "sum.pinned": "2d20973c75256ee9",
        "sum.open": "3b86c8c731ff4874",
        "sum.shares": "a027946372a0a006",
        "sum.mask": "82cc78d49c5f43f1",
        "sum.masked": "e352159150aada9a",
        "sum.survivors": "f00aa13432b1825f",
        "sum.consent": "9611e5da4b5e7f6e",
        "sum.unmask": "24a372f1478d4b3d",
        "sum.unmasked": "324321c85db04b01",
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
    for name in parties.names:
        note(parties.hospitals[name].enrolment)
        note(parties.ask(name, note(parties.pin(name))))
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
