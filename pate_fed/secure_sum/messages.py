"""What coordinator and hospital say to each other in a secure summation; nothing else crosses the wire.

Every message is a frozen value, signed by its sender. It lowers to a flat record (`to_record`: integers,
text, bytes, flat arrays) and is rebuilt from one with every field checked (`from_record`). Its `repr` shows
no bytes and no arrays.

What leaves a hospital, in this order: two public keys; sealed shares that only their receivers can open; one
masked vector, uniform to whoever lacks a mask; a signature on the set of survivors; its shares of *one* of
two secrets of each other hospital: the self-mask of one that survived, or the batch's pair seeds of one that
did not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.secure_sum.codec import Record, Value, digest, pack, unpack
from pate_fed.secure_sum.fields import CHECKS, VERSION
from pate_fed.secure_sum.keys import Identity, verify
from pate_fed.secure_sum.masks import Vector
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
from pate_fed.structure import SettingError, entries, from_record, to_record

M = TypeVar("M", bound="Message")

Positions = NDArray[np.int64]

_LABEL = "pate_fed/secure_sum/v1/"
_UNSIGNED = bytes(64)


class Head(TypedDict):
    """The fields that name a batch in every message about it."""

    roster: str
    batch: int
    batch_digest: str


class _Digested:
    """A place for a message's digest, which takes a hash of all that it carries."""

    __slots__ = ("_digest",)

    _digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Message(_Digested):
    """Shared by all messages: version, lowering, checks, signature."""

    kind: ClassVar[str]
    version: int = VERSION
    signature: bytes = _UNSIGNED

    def to_record(self) -> Record:
        """The message as a flat record."""
        return to_record(self)

    @classmethod
    def from_record(cls: type[M], record: Record) -> M:
        """The message in a record, every field checked.

        Raises:
            RefusedError: another version (VERSION), another kind, or a field missing, unknown or wrong
                (MALFORMED). The text names the field, never its value.
        """
        _check_version(record)
        try:
            return from_record(cls, record, checks=CHECKS)
        except SettingError as error:  # told without the value
            detail = f"{error.path} of a message {cls.kind!r}: {error.wanted}"
        raise _malformed(detail)

    def to_bytes(self) -> bytes:
        """The message in one string of bytes, for a file."""
        return pack(self.to_record())

    @classmethod
    def from_bytes(cls: type[M], data: bytes) -> M:
        """The message in such bytes.

        Raises:
            IntegrityError: damaged bytes, or not this message (RefusedError).
        """
        return cls.from_record(unpack(data))

    def signed(self: M, identity: Identity) -> M:
        """The same message with the signature of `identity`."""
        return replace(self, signature=identity.sign(self.digest))

    def signed_by(self, public: bytes) -> bool:
        """Whether the owner of `public` signed this message."""
        return verify(public, self.signature, self.digest)

    @property
    def digest(self) -> bytes:
        """SHA-256 over kind and all fields but the signature, 32 bytes: what is signed."""
        try:
            return self._digest
        except AttributeError:
            record = to_record(self)
            values = {name: value for name, value in record.items() if name not in ("kind", "signature")}
            object.__setattr__(self, "_digest", digest(_LABEL + self.kind, values))
            return self._digest

    def __repr__(self) -> str:
        values = {entry.name: getattr(self, entry.name) for entry in entries(type(self))}
        shown = {name: value for name, value in values.items() if isinstance(value, int | str)}
        return f"{type(self).__name__}({', '.join(f'{n}={value!r}' for n, value in shown.items())}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnrolRequest(Message):
    """Coordinator to hospital: join a study's secure summation, under this coordinator's key."""

    kind: ClassVar[str] = "sum.enrol"
    study: str
    coordinator: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Enrolment(Message):
    """Hospital to coordinator: its name, its identity, and its exchange key for this study."""

    kind: ClassVar[str] = "sum.enrolment"
    study: str
    party: str
    identity: bytes
    exchange_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Roster(Message):
    """Coordinator to hospital: everyone who takes part, in one order, and how many must survive.

    `parties` holds the names, one a line; the three byte strings hold one entry a party. `threshold`
    hospitals must survive each step; as many shares open a secret, and as many survivors must sign the set of
    survivors.
    """

    kind: ClassVar[str] = "sum.roster"
    study: str
    coordinator: bytes
    parties: str
    identities: bytes
    exchange_keys: bytes
    enrolments: bytes
    threshold: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RosterPinned(Message):
    """Hospital to coordinator: the roster is checked and pinned for the study."""

    kind: ClassVar[str] = "sum.pinned"
    roster: str
    party: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _BatchMessage(Message):
    roster: str
    batch: int
    batch_digest: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchOpening(_BatchMessage):
    """Coordinator to hospital: a new batch of `length` entries, summed mod 2^`bits`."""

    kind: ClassVar[str] = "sum.open"
    length: int
    bits: int

    @property
    def head(self) -> Head:
        """The fields by which every later message names this batch."""
        return Head(roster=self.roster, batch=self.batch, batch_digest=self.batch_digest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchShares(_BatchMessage):
    """Hospital to coordinator: sealed shares of its two fresh secrets, one pair of shares a hospital.

    The coordinator learns a commitment to the self-mask's secret; the pair seeds are sealed under the other.
    """

    kind: ClassVar[str] = "sum.shares"
    party: str
    commitment: bytes
    seeds: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MaskRequest(_BatchMessage):
    """Coordinator to one hospital: who has shared, and the shares that are sealed for it."""

    kind: ClassVar[str] = "sum.mask"
    party: str
    sharers: Positions
    sealed: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MaskedVector(_BatchMessage):
    """Hospital to coordinator: its vector plus all masks, uniform to whoever lacks one of them."""

    kind: ClassVar[str] = "sum.masked"
    party: str
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SurvivorNotice(_BatchMessage):
    """Coordinator to hospital: whose vectors are in the sum."""

    kind: ClassVar[str] = "sum.survivors"
    survivors: Positions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SurvivorConsent(_BatchMessage):
    """Hospital to coordinator: its signature on the one set of survivors that it will help to unmask.

    The signature is that of `consent_digest`, the same text for all, so that it convinces other hospitals.
    """

    kind: ClassVar[str] = "sum.consent"
    party: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnmaskRequest(_BatchMessage):
    """Coordinator to hospital: survivors' signatures on the set; reveal your shares."""

    kind: ClassVar[str] = "sum.unmask"
    consenting: Positions
    consents: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnmaskShares(_BatchMessage):
    """Hospital to coordinator: one share a sharing hospital, of one of its two secrets and never of both."""

    kind: ClassVar[str] = "sum.unmasked"
    party: str
    shares: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SumRefused(Message):
    """Hospital to coordinator: no, with a code from the fixed list `SumRefusal`."""

    kind: ClassVar[str] = "sum.refused"
    study: str
    party: str
    code: str

    @property
    def refusal(self) -> SumRefusal:
        """The reason; an unknown code counts as a fault."""
        return SumRefusal.__members__.get(self.code, SumRefusal.FAULT)


Request = EnrolRequest | Roster | BatchOpening | MaskRequest | SurvivorNotice | UnmaskRequest
Reply = Enrolment | RosterPinned | BatchShares | MaskedVector | SurvivorConsent | UnmaskShares | SumRefused

_REQUESTS: dict[Value, type[Request]] = {kind.kind: kind for kind in get_args(Request)}
_REPLIES: dict[Value, type[Reply]] = {kind.kind: kind for kind in get_args(Reply)}
# Read now: a field that cannot be read is an error at import, not a refusal of every hospital's answer.
_FIELDS = {kind: entries(kind) for kind in (*_REQUESTS.values(), *_REPLIES.values())}


def read_request(data: bytes) -> Request:
    """The coordinator's request in its bytes.

    Raises:
        IntegrityError: damaged bytes; RefusedError: another version, none of the requests, or malformed.
    """
    return _parse(unpack(data), _REQUESTS)


def read_reply(data: bytes) -> Reply:
    """The hospital's reply in its bytes.

    Raises:
        IntegrityError: damaged bytes; RefusedError: another version, none of the replies, or malformed.
    """
    return _parse(unpack(data), _REPLIES)


def _parse(record: Record, kinds: Mapping[Value, type[M]]) -> M:
    _check_version(record)
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise _malformed("a message of unknown kind")
    return kinds[kind].from_record(record)


def consent_digest(opening: BatchOpening, sharers: Positions, survivors: Positions) -> bytes:
    """What every survivor signs: roster, batch, digest, modulus, who shared and whose vectors are summed."""
    return digest(_LABEL + "consent", {"opening": opening.digest, "sharers": sharers, "survivors": survivors})


def _check_version(record: Record) -> None:
    version = record.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version != VERSION:
        older = "this program" if version > VERSION else "the other side's program"
        raise RefusedError(
            SumRefusal.VERSION,
            f"the message speaks version {version} of secure summation and this program version {VERSION}: "
            f"update {older}",
        )


def _malformed(detail: str) -> RefusedError:
    return RefusedError(SumRefusal.MALFORMED, detail)
