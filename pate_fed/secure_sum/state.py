"""What a hospital remembers between two messages, of the study and of each batch, as it lies on its disk.

Guarantee: the exchange key's private part is forgotten once the roster is pinned; what is left are the
secrets of the pairs of this roster, from which only keys of single batches are derived. Once a batch is
unmasked or void, none of its secrets is in the state any more that was not sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.dealing import Seat
from pate_fed.secure_sum.keys import KEY_BYTES, ExchangeKey, Record, SealingKeys, Value, pack, unpack
from pate_fed.secure_sum.messages import BatchOpening, Enrolment, Positions, Roster
from pate_fed.secure_sum.roster import read_roster, unpack_roster

T = TypeVar("T")

_HASH = 32
_NOBODY: Positions = np.empty(0, dtype=np.int64)
_NOTHING = np.empty((0, 2, shamir.LIMBS), dtype=np.uint16)


class Stage(IntEnum):
    """What a hospital did last in a batch."""

    SHARED = 1
    MASKED = 2
    CONSENTED = 3
    UNMASKED = 4
    VOID = 5
    DOUBTED = 6
    COMPLAINED = 7


@dataclass(slots=True, eq=False, repr=False)
class BatchProgress:
    """The last attempt at one batch: its stage, the requests that were answered, the secrets still needed.

    `view` is a digest of all that was shown about it so far, `own` that of the own message of shares, `doubt`
    that of the message of whoever is `doubted`, by position. `out` are those who may not be in the sum.
    `reply` is the packed reply to the last of these requests, empty where it is not kept. Shapes: `held`
    uint16 (rows, 2, 17). While SHARED: the hospital's two secrets, then its own share of them. Later: the
    shares of every sharer near it, in the order of `sharers`.
    """

    opening: BatchOpening
    held: shamir.Shares
    own: bytes
    view: bytes
    out: Positions = field(default_factory=lambda: _NOBODY)
    doubted: int = 0
    doubt: bytes = b""
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


_AS_THEY_ARE: dict[str, type[Any]] = {
    **dict.fromkeys(("own", "view", "doubt", "reply"), bytes),
    **dict.fromkeys(("out", "sharers", "survivors"), np.ndarray),
    "doubted": int,
}
"""What of a batch a record holds as it is."""


def save_batches(batches: Mapping[int, BatchProgress]) -> bytes:
    """All batches as bytes, with a checksum."""
    return seal_state("batches", {f"{number:010d}": _pack(batches[number]) for number in batches})


def load_batches(data: bytes) -> dict[int, BatchProgress]:
    """The batches in bytes."""
    record = open_state("batches", data)
    return {progress.opening.batch: progress for progress in map(_unpack, record.values())}


def seal_state(what: str, record: Mapping[str, Value]) -> bytes:
    """A state's bytes: a checksum against damage, then the record. It is not encrypted."""
    # the checksum is against damage, not against whoever may write the file
    body = pack({"what": what, "state": pack(record)})
    return hashlib.sha256(body).digest() + body


def open_state(what: str, data: bytes) -> Record:
    """The record in a state's bytes; IntegrityError where damaged, or another state."""
    body = data[_HASH:]
    if hashlib.sha256(body).digest() != data[:_HASH]:
        raise IntegrityError(_damaged(what))
    outer = unpack(body)
    inner = outer.get("state")
    if outer.get("what") != what or not isinstance(inner, bytes):
        raise IntegrityError(f"a saved state of secure summation is not the one of {what}")
    return unpack(inner)


def _pack(progress: BatchProgress) -> bytes:
    return pack(
        {
            **{name: getattr(progress, name) for name in _AS_THEY_ARE},
            "opening": progress.opening.to_bytes(),
            "stage": int(progress.stage),
            "handled": b"".join(progress.handled),
            "held": shamir.to_bytes(progress.held),
        }
    )


def _unpack(value: Value) -> BatchProgress:
    try:
        record = unpack(_expect(value, bytes))
        handled = _expect(record["handled"], bytes)
        return BatchProgress(
            opening=BatchOpening.from_bytes(_expect(record["opening"], bytes)),
            held=shamir.from_bytes(_expect(record["held"], bytes)).reshape(-1, 2, shamir.LIMBS),
            stage=Stage(_expect(record["stage"], int)),
            handled=[handled[at : at + _HASH] for at in range(0, len(handled), _HASH)],
            **{name: _expect(record[name], kind) for name, kind in _AS_THEY_ARE.items()},
        )
    except (KeyError, ValueError) as error:
        raise IntegrityError("a saved batch of secure summation is damaged") from error


def _expect(value: object, kind: type[T]) -> T:
    """The value of a saved state's field, of that kind."""
    if not isinstance(value, kind):
        raise IntegrityError("a saved state of secure summation is damaged")
    return value


def _damaged(what: str) -> str:
    return f"the saved state of secure summation ({what}) is damaged"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StudyState:
    """One of two: an exchange key before the roster is pinned, a seat in the roster after."""

    coordinator: bytes
    enrolment: Enrolment
    sealing: SealingKeys
    exchange: ExchangeKey | None = None
    roster: Roster | None = None
    seat: Seat | None = None

    @property
    def exchange_key(self) -> ExchangeKey:
        """The exchange key, before a roster is pinned."""
        if self.exchange is None:
            raise IntegrityError(_damaged("study"))
        return self.exchange

    def pinned(self, roster: Roster, seat: Seat) -> StudyState:
        """The state after the roster was pinned."""
        return replace(self, exchange=None, roster=roster, seat=seat)


def save_study(state: StudyState) -> bytes:
    """The state as bytes, with secrets."""
    record: Record = {
        "coordinator": state.coordinator,
        "enrolment": state.enrolment.to_bytes(),
        "sealing": state.sealing.to_bytes(),
    }
    if state.exchange is not None:
        record["exchange"] = state.exchange.to_bytes()
    if state.roster is not None and state.seat is not None:
        record["roster"] = state.roster.to_bytes()
        record["extracted"], record["seals"] = state.seat.secrets, state.seat.seals
    return seal_state("study", record)


def load_study(data: bytes, identity: bytes) -> StudyState:
    """The state in its bytes, where it belongs to the hospital with this public key."""
    record = open_state("study", data)
    enrolment = Enrolment.from_bytes(_expect(record.get("enrolment"), bytes))
    if enrolment.identity != identity:
        raise IntegrityError("the saved state of secure summation (study) belongs to another identity")
    state = StudyState(
        coordinator=_expect(record.get("coordinator"), bytes),
        enrolment=enrolment,
        sealing=SealingKeys(_expect(record.get("sealing"), bytes)),
    )
    if "roster" not in record:
        return replace(state, exchange=ExchangeKey(_expect(record.get("exchange"), bytes)))
    roster = unpack_roster(_expect(record.get("roster"), bytes))
    members = read_roster(roster)
    position = members.positions.get(enrolment.party)
    secrets, seals = (_expect(record.get(name), bytes) for name in ("extracted", "seals"))
    if position is None or {len(secrets), len(seals)} != {KEY_BYTES * members.graph.size}:
        raise IntegrityError(_damaged("study"))
    return state.pinned(roster, Seat(members, position, secrets, seals))
