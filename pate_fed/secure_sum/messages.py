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

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, TypedDict, TypeVar, dataclass_transform, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    Identity,
    Record,
    Value,
    digest,
    pack,
    unpack,
    verify,
)
from pate_fed.secure_sum.masks import Vector
from pate_fed.secure_sum.shamir import MAX_SHARES, SECRET_BYTES
from pate_fed.structure import (
    PARTY_NAME,
    PARTY_NAME_IS,
    Setting,
    SettingError,
    entries,
    from_record,
    to_record,
)

M = TypeVar("M", bound="Message")
T = TypeVar("T")

Positions = NDArray[np.int64]


class SumRefusal(Enum):
    """The reasons, each with the sentence that the coordinator and the user read."""

    VERSION = "the message is of another version of secure summation than this hospital's program"
    MALFORMED = "the message is malformed"
    COORDINATOR = "the message is not signed by the coordinator that this hospital knows"
    STUDY = "the message is about another study"
    ROSTER_SMALL = "the roster has fewer hospitals than this hospital demands"
    ROSTER_SELF = "the roster does not hold this hospital with its own keys"
    ROSTER_MEMBER = "a member of the roster is not signed by itself, or listed twice"
    CONFIRMED = "too few of the roster's hospitals are confirmed here by telephone, or one has another key"
    ROSTER_CHANGED = "another roster is pinned for this study"
    ROSTER_STALE = "the message names a roster that is not the pinned one"
    THRESHOLD = "the roster's threshold is lower than this hospital demands"
    BATCH_REPEATED = "a batch with this number or this digest was opened before"
    BATCH_UNKNOWN = "the batch was never opened"
    BATCH_CHANGED = "the batch was opened under another digest"
    BATCH_VOID = "the batch is void since the coordinator broke the protocol in it"
    REPEATED = "the same message was answered before"
    OUT_OF_ORDER = "a step of the batch is missing before this one"
    EQUIVOCATION = "another request for this step of the batch was answered before"
    SHARERS = "the sharing hospitals are too few, unknown, or without this hospital"
    SHARE = "a share was not sealed by the hospital that it is said to be from"
    SURVIVORS = "the survivors are too few, no sharing hospitals, or without this hospital"
    CONSENT = "too few survivors have signed the set of survivors, or a signature is not theirs"
    UNMASKED = "the batch was unmasked before"
    FAULT = "a fault at the hospital; its own log has the details"


class RefusedError(IntegrityError):
    """A message was refused; `reason` is what the other side may be told, the text is for one's own log."""

    def __init__(self, reason: SumRefusal, detail: str = "") -> None:
        super().__init__(f"{reason.value} ({detail})" if detail else reason.value)
        self.reason = reason


VERSION = 1

SEALED_BYTES = 2 * SECRET_BYTES + TAG_BYTES
"""One sealed share: of the self-mask's secret and of the pair seeds' secret."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STUDY = re.compile(r"[\x20-\x7e]{1,128}")
_CODE = re.compile(r"[A-Z_]{1,32}")


def _bytes(size: int) -> Setting:
    return Setting(holds=lambda value: len(value) == size, allowed=f"{size} bytes")


def _rows(size: int) -> Setting:
    return Setting(
        holds=lambda value: len(value) > 0 and len(value) % size == 0,
        allowed=f"one or more times {size} bytes",
    )


def _is_positions(value: NDArray[np.int64]) -> bool:
    increasing = value.ndim == 1 and len(value) > 0 and bool((np.diff(value) > 0).all())
    return increasing and bool(0 <= value[0] and value[-1] < MAX_SHARES)


def _is_roll(value: str) -> bool:
    names = value.split("\n")
    return len(names) <= MAX_SHARES and all(PARTY_NAME.fullmatch(name) for name in names)


_DIGEST_CHECK = Setting(pattern=_DIGEST, allowed="64 hexadecimal digits")
_KEY_CHECK = _bytes(KEY_BYTES)
_POSITIONS = Setting(holds=_is_positions, allowed="an increasing int64 array of positions in the roster")

# One field has one meaning and one check in all messages; sizes that depend on the number of hospitals are
# checked where that number is known, by the state machines.
CHECKS: dict[str, Setting] = {
    "version": Setting(low=VERSION, high=VERSION),
    "study": Setting(pattern=_STUDY, allowed="1 to 128 printable characters"),
    "party": Setting(pattern=PARTY_NAME, allowed=PARTY_NAME_IS),
    "parties": Setting(holds=_is_roll, allowed=f"names of {PARTY_NAME_IS}, one a line"),
    "coordinator": _KEY_CHECK,
    "identity": _KEY_CHECK,
    "exchange_key": _KEY_CHECK,
    "identities": _rows(KEY_BYTES),
    "exchange_keys": _rows(KEY_BYTES),
    "enrolments": _rows(SIGNATURE_BYTES),
    "threshold": Setting(low=1, high=MAX_SHARES),
    "roster": _DIGEST_CHECK,
    "batch": Setting(low=0, high=2**31 - 1),
    "batch_digest": _DIGEST_CHECK,
    "length": Setting(low=1, high=2**31 - 1),
    "bits": Setting(holds=lambda value: value in (16, 32), allowed="16 or 32"),
    "commitment": _KEY_CHECK,
    "seeds": Setting(holds=lambda value: len(value) % KEY_BYTES == TAG_BYTES, allowed="sealed seeds"),
    "sealed": _rows(SEALED_BYTES),
    "shares": _rows(SECRET_BYTES),
    "sharers": _POSITIONS,
    "survivors": _POSITIONS,
    "consenting": _POSITIONS,
    "consents": _rows(SIGNATURE_BYTES),
    "vector": Setting(holds=lambda value: value.ndim == 1, allowed="a flat array of uint16 or uint32"),
    "code": Setting(pattern=_CODE, allowed="a code of capital letters"),
    "signature": _bytes(SIGNATURE_BYTES),
}

_LABEL = "pate_fed/secure_sum/v1/"
_UNSIGNED = bytes(64)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def _message(kind: str = "") -> Callable[[type[T]], type[T]]:
    """A class of messages of this kind, from its annotated fields."""

    def make(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(cls)
        if kind:
            made.kind = kind  # type: ignore[attr-defined]
        return made

    return make


class Head(TypedDict):
    """The fields that name a batch in every message about it."""

    roster: str
    batch: int
    batch_digest: str


class _Digested:
    """A place for a message's digest, which takes a hash of all that it carries."""

    __slots__ = ("_digest",)

    _digest: bytes


@_message()
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
        """The message in such bytes."""
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


@_message("sum.enrol")
class EnrolRequest(Message):
    """Coordinator to hospital: join a study's secure summation, under this coordinator's key."""

    study: str
    coordinator: bytes


@_message("sum.enrolment")
class Enrolment(Message):
    """Hospital to coordinator: its name, its identity, and its exchange key for this study."""

    study: str
    party: str
    identity: bytes
    exchange_key: bytes


@_message("sum.roster")
class Roster(Message):
    """Coordinator to hospital: everyone who takes part, in one order, and how many must survive.

    `parties` holds the names, one a line; the three byte strings hold one entry a party. `threshold`
    hospitals must survive each step; as many shares open a secret, and as many survivors must sign the set of
    survivors.
    """

    study: str
    coordinator: bytes
    parties: str
    identities: bytes
    exchange_keys: bytes
    enrolments: bytes
    threshold: int


@_message("sum.pinned")
class RosterPinned(Message):
    """Hospital to coordinator: the roster is checked and pinned for the study."""

    roster: str
    party: str


@_message()
class _BatchMessage(Message):
    roster: str
    batch: int
    batch_digest: str


@_message("sum.open")
class BatchOpening(_BatchMessage):
    """Coordinator to hospital: a new batch of `length` entries, summed mod 2^`bits`."""

    length: int
    bits: int

    @property
    def head(self) -> Head:
        """The fields by which every later message names this batch."""
        return Head(roster=self.roster, batch=self.batch, batch_digest=self.batch_digest)


@_message("sum.shares")
class BatchShares(_BatchMessage):
    """Hospital to coordinator: sealed shares of its two fresh secrets, one pair of shares a hospital.

    The coordinator learns a commitment to the self-mask's secret; the pair seeds are sealed under the other.
    """

    party: str
    commitment: bytes
    seeds: bytes
    sealed: bytes


@_message("sum.mask")
class MaskRequest(_BatchMessage):
    """Coordinator to one hospital: who has shared, and the shares that are sealed for it."""

    party: str
    sharers: Positions
    sealed: bytes


@_message("sum.masked")
class MaskedVector(_BatchMessage):
    """Hospital to coordinator: its vector plus all masks, uniform to whoever lacks one of them."""

    party: str
    vector: Vector


@_message("sum.survivors")
class SurvivorNotice(_BatchMessage):
    """Coordinator to hospital: whose vectors are in the sum."""

    survivors: Positions


@_message("sum.consent")
class SurvivorConsent(_BatchMessage):
    """Hospital to coordinator: its signature on the one set of survivors that it will help to unmask.

    The signature is that of `consent_digest`, the same text for all, so that it convinces other hospitals.
    """

    party: str


@_message("sum.unmask")
class UnmaskRequest(_BatchMessage):
    """Coordinator to hospital: survivors' signatures on the set; reveal your shares."""

    consenting: Positions
    consents: bytes


@_message("sum.unmasked")
class UnmaskShares(_BatchMessage):
    """Hospital to coordinator: one share a sharing hospital, of one of its two secrets and never of both."""

    party: str
    shares: bytes


@_message("sum.refused")
class SumRefused(Message):
    """Hospital to coordinator: no, with a code from the fixed list `SumRefusal`."""

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
    """The coordinator's request in its bytes; IntegrityError where damaged, else as `Message.from_record`."""
    return _parse(unpack(data), _REQUESTS)


def read_reply(data: bytes) -> Reply:
    """The hospital's reply in its bytes; IntegrityError where damaged, else as `Message.from_record`."""
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
