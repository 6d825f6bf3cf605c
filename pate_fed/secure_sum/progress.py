"""What a hospital remembers of a batch between two messages, and how it lies on its disk.

Guarantee: once a batch is unmasked or void, none of its secrets is in the state any more that was not sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

import numpy as np

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.codec import Record, Value, pack, unpack
from pate_fed.secure_sum.messages import BatchOpening, Positions

T = TypeVar("T")

_HASH = 32
_NOBODY: Positions = np.empty(0, dtype=np.int64)
_NOTHING = np.empty((0, 2, shamir.LIMBS), dtype=np.int64)


class Stage(IntEnum):
    """What a hospital did last in a batch."""

    SHARED = 1
    MASKED = 2
    CONSENTED = 3
    UNMASKED = 4
    VOID = 5


@dataclass(slots=True, eq=False, repr=False)
class BatchProgress:
    """One batch: its stage, the digests of the requests that were answered, and the secrets still needed.

    `reply` is the packed reply to the last of these requests, empty where it is not kept. Shapes: `held`
    int64 (rows, 2, 17). While SHARED: the hospital's two secrets, then its own share of them. Later: the
    shares of every sharer, in the order of `sharers`.
    """

    opening: BatchOpening
    held: shamir.Limbs
    stage: Stage = Stage.SHARED
    handled: list[bytes] = field(default_factory=list)
    sharers: Positions = field(default_factory=lambda: _NOBODY)
    survivors: Positions = field(default_factory=lambda: _NOBODY)
    reply: bytes = b""

    def finish(self, stage: Stage) -> None:
        """Forget every secret of the batch."""
        self.stage, self.held, self.reply = stage, _NOTHING, b""

    def __repr__(self) -> str:
        return f"BatchProgress(batch={self.opening.batch}, stage={self.stage.name}, secrets=<hidden>)"


def save_batches(batches: Mapping[int, BatchProgress]) -> bytes:
    """All batches as bytes, with a checksum."""
    return seal_state("batches", {f"{number:010d}": _pack(batches[number]) for number in batches})


def load_batches(data: bytes) -> dict[int, BatchProgress]:
    """The batches in bytes.

    Raises:
        IntegrityError: bytes that `save_batches` did not make.
    """
    record = open_state("batches", data)
    return {progress.opening.batch: progress for progress in map(_unpack, record.values())}


def seal_state(what: str, record: Mapping[str, Value]) -> bytes:
    """A state's bytes: a checksum against damage, then the record. It is not encrypted."""
    body = pack({"what": what, "state": pack(record)})
    return hashlib.sha256(body).digest() + body


def open_state(what: str, data: bytes) -> Record:
    """The record in a state's bytes.

    Raises:
        IntegrityError: damaged, or another state.
    """
    body = data[_HASH:]
    if hashlib.sha256(body).digest() != data[:_HASH]:
        raise IntegrityError(f"the saved state of secure summation ({what}) is damaged")
    outer = unpack(body)
    inner = outer.get("state")
    if outer.get("what") != what or not isinstance(inner, bytes):
        raise IntegrityError(f"a saved state of secure summation is not the one of {what}")
    return unpack(inner)


def _pack(progress: BatchProgress) -> bytes:
    return pack(
        {
            "opening": progress.opening.to_bytes(),
            "stage": int(progress.stage),
            "handled": b"".join(progress.handled),
            "sharers": progress.sharers,
            "survivors": progress.survivors,
            "held": shamir.to_bytes(progress.held),
            "reply": progress.reply,
        }
    )


def _unpack(value: Value) -> BatchProgress:
    try:
        record = unpack(expect(value, bytes))
        handled = expect(record["handled"], bytes)
        return BatchProgress(
            opening=BatchOpening.from_bytes(expect(record["opening"], bytes)),
            held=shamir.from_bytes(expect(record["held"], bytes)).reshape(-1, 2, shamir.LIMBS),
            stage=Stage(expect(record["stage"], int)),
            handled=[handled[at : at + _HASH] for at in range(0, len(handled), _HASH)],
            sharers=expect(record["sharers"], np.ndarray),
            survivors=expect(record["survivors"], np.ndarray),
            reply=expect(record.get("reply", b""), bytes),  # earlier releases kept none
        )
    except (KeyError, ValueError) as error:
        raise IntegrityError("a saved batch of secure summation is damaged") from error


def expect(value: object, kind: type[T]) -> T:
    """The value of a saved state's field.

    Raises:
        IntegrityError: another kind of value, or none.
    """
    if not isinstance(value, kind):
        raise IntegrityError("a saved state of secure summation is damaged")
    return value
