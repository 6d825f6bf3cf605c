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
        "sum.enrol": "a26629837de71881",
        "sum.enrolment": "2297fb9135e5a70a",
        "sum.pin": "5030144e1bb582fb",
        "sum.pinned": "b6ff75b74235cfe5",
        "sum.open": "47db42fb50cccb35",
        "sum.shares": "7d362c49bfe45600",
        "sum.mask": "f861671628b449ec",
        "sum.masked": "7fd1777110e3056a",
        "sum.survivors": "53b4c746e71f2321",
        "sum.consent": "c5263809c4c3db68",
        "sum.unmask": "7edfcee2e4f0f9d8",
        "sum.unmasked": "44d8e07b55f19e0d",
    },
    32: {
        "sum.enrol": "a26629837de71881",
        "sum.enrolment": "2297fb9135e5a70a",
        "sum.pin": "5030144e1bb582fb",
        "sum.pinned": "b6ff75b74235cfe5",
        "sum.open": "58860bc5e246a05b",
        "sum.shares": "3731629b1de48f32",
        "sum.mask": "b71547153e88e1fa",
        "sum.masked": "4a5a6ac8f0cf5867",
        "sum.survivors": "53b4c746e71f2321",
        "sum.consent": "28f5cc5089a7dd1b",
        "sum.unmask": "26e7d477fdac9ac8",
        "sum.unmasked": "a2c1d5524062ed2e",
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
