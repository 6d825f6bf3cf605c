"""What a hospital keeps for a whole study: coordinator, enrolment, pinned roster, secrets of its pairs.

Guarantee: the exchange key's private part is forgotten once the roster is pinned; what is left are the
secrets of the pairs of this roster, from which only keys of single batches are derived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.codec import Record
from pate_fed.secure_sum.dealing import Seat
from pate_fed.secure_sum.keys import KEY_BYTES, ExchangeKey, extract
from pate_fed.secure_sum.messages import Enrolment, Roster
from pate_fed.secure_sum.progress import expect, open_state, seal_state
from pate_fed.secure_sum.roster import Members, read_roster

_DAMAGED = "the saved state of secure summation (study) is damaged"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StudyState:
    """One of two: an exchange key before the roster is pinned, a seat in the roster after."""

    coordinator: bytes
    enrolment: Enrolment
    exchange: ExchangeKey | None = None
    roster: Roster | None = None
    seat: Seat | None = None

    @property
    def exchange_key(self) -> ExchangeKey:
        """The exchange key, before a roster is pinned.

        Raises:
            IntegrityError: it is forgotten already.
        """
        if self.exchange is None:
            raise IntegrityError(_DAMAGED)
        return self.exchange

    def pinned(self, roster: Roster, seat: Seat) -> StudyState:
        """The state after the roster was pinned."""
        return replace(self, exchange=None, roster=roster, seat=seat)


def save_study(state: StudyState) -> bytes:
    """The state as bytes, with secrets."""
    record: Record = {"coordinator": state.coordinator, "enrolment": state.enrolment.to_bytes()}
    if state.exchange is not None:
        record["exchange"] = state.exchange.to_bytes()
    if state.roster is not None and state.seat is not None:
        record["roster"] = state.roster.to_bytes()
        record["extracted"] = b"".join(state.seat.secrets)
    return seal_state("study", record)


def load_study(data: bytes, identity: bytes) -> StudyState:
    """The state in its bytes, where it belongs to the hospital with this public key.

    Raises:
        IntegrityError: damaged, or of another identity.
    """
    record = open_state("study", data)
    enrolment = Enrolment.from_bytes(expect(record.get("enrolment"), bytes))
    if enrolment.identity != identity:
        raise IntegrityError("the saved state of secure summation (study) belongs to another identity")
    state = StudyState(coordinator=expect(record.get("coordinator"), bytes), enrolment=enrolment)
    if "roster" not in record:
        return replace(state, exchange=ExchangeKey(expect(record.get("exchange"), bytes)))
    roster, members = _pinned(expect(record.get("roster"), bytes))
    position = members.positions.get(enrolment.party)
    secrets = expect(record.get("extracted", record.get("secrets")), bytes)
    if position is None or len(secrets) != KEY_BYTES * len(members):
        raise IntegrityError(_DAMAGED)
    rows = [secrets[at : at + KEY_BYTES] for at in range(0, len(secrets), KEY_BYTES)]
    if "extracted" not in record:  # earlier releases kept them as they were agreed on
        salt = bytes.fromhex(members.digest)
        rows = [row if at == position else extract(row, salt) for at, row in enumerate(rows)]
    return state.pinned(roster, Seat(members, position, tuple(rows)))


@lru_cache(maxsize=4)
def _pinned(data: bytes) -> tuple[Roster, Members]:
    """A roster in its bytes, with its members: all public, and the same for all hospitals of a study.

    Remembered, like `verify`, for simulations.
    """
    roster = Roster.from_bytes(data)
    return roster, read_roster(roster)
