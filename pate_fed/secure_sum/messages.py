"""What coordinator and hospital say to each other in a secure summation; nothing else crosses the wire.

Every message is a frozen value, signed by its sender. It lowers to a flat record (`to_record`: integers,
text, bytes, flat arrays) and is rebuilt from one with every field checked (`from_record`). Its `repr` shows
no bytes and no arrays.

What leaves a hospital, in this order: public keys; sealed shares that only their receivers can open; one
masked vector, uniform to whoever lacks a mask; a signature on the set of survivors; its shares of *one* of
two secrets of each other hospital: the self-mask of one that survived, or the batch's pair seeds of one that
did not. In place of the vector, a complaint with the one key that opens what another sealed for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict, TypeVar, dataclass_transform, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.secure_sum.keys import (
    COMMITMENT_BYTES,
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    HashTree,
    Identity,
    Record,
    Value,
    digest,
    pack,
    unpack,
    verify,
)
from pate_fed.secure_sum.masks import Vector
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
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

VERSION = 3

PAIR_BYTES = 2 * COMMITMENT_BYTES
"""The commitments to such a share."""

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
_MOST_BYTES = 2**28  # of messages that others carry
_PACKED = Setting(holds=lambda value: 0 < len(value) < _MOST_BYTES, allowed="a packed message")
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
    "places": Setting(low=1, high=MAX_SHARES),
    "sealing_keys": _rows(KEY_BYTES),
    "sealings": _rows(KEY_BYTES),
    "paths": Setting(holds=lambda value: len(value) % KEY_BYTES == 0, allowed="paths of hashes"),
    "listed": _PACKED,
    "threshold": Setting(low=1, high=MAX_SHARES),
    "colluders": Setting(low=0, high=MAX_SHARES),
    "roster": _DIGEST_CHECK,
    "batch": Setting(low=0, high=2**31 - 1),
    "batch_digest": _DIGEST_CHECK,
    "length": Setting(low=1, high=2**31 - 1),
    "attempt": Setting(low=0, high=MAX_SHARES),
    "proof": Setting(holds=lambda value: len(value) < _MOST_BYTES, allowed="packed proofs"),
    "bits": Setting(holds=lambda value: value in (16, 32), allowed="16 or 32"),
    "view": _KEY_CHECK,
    "commitment": _KEY_CHECK,
    "commitments": _rows(PAIR_BYTES),
    "dealt": _rows(KEY_BYTES),
    "doubted": Setting(low=0, high=MAX_SHARES - 1),
    "message": _PACKED,
    "accused": Setting(pattern=PARTY_NAME, allowed=PARTY_NAME_IS),
    "about": _KEY_CHECK,
    "key": _KEY_CHECK,
    "seeds": Setting(holds=lambda value: len(value) % KEY_BYTES == TAG_BYTES, allowed="sealed seeds"),
    "sealed": _rows(SEALED_BYTES),
    "shares": _rows(SECRET_BYTES),
    "sharers": _POSITIONS,
    "survivors": _POSITIONS,
    "consenting": _POSITIONS,
    "consents": _rows(SIGNATURE_BYTES),
    "pinned": _rows(SIGNATURE_BYTES),
    "vector": Setting(holds=lambda value: value.ndim == 1, allowed="a flat array of uint16 or uint32"),
    "code": Setting(pattern=_CODE, allowed="a code of capital letters"),
    "signature": _bytes(SIGNATURE_BYTES),
}

_LABEL = "pate_fed/secure_sum/v3/"
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
    attempt: int


class ReplyHead(Head):
    """The fields of every reply about a batch."""

    party: str
    view: bytes


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
            values = self._signed_values()
            object.__setattr__(self, "_digest", digest(_LABEL + self.kind, values))
            return self._digest

    def _signed_values(self) -> Record:
        return {name: value for name, value in to_record(self).items() if name not in ("kind", "signature")}

    def __repr__(self) -> str:
        values = {entry.name: getattr(self, entry.name) for entry in entries(type(self))}
        shown = {name: value for name, value in values.items() if isinstance(value, int | str)}
        return f"{type(self).__name__}({', '.join(f'{n}={value!r}' for n, value in shown.items())}, ...)"


@_message("sum.enrol")
class EnrolRequest(Message):
    """Coordinator to hospital: join a study's secure summation, under this coordinator's key.

    `places` are the most others that it can have near it in the graph, itself with them.
    """

    study: str
    coordinator: bytes
    places: int


@_message("sum.enrolment")
class Enrolment(Message):
    """Hospital to coordinator: its name, its identity, and its exchange key for this study.

    `sealing_keys` are one more for each place near it, under which the hospital there seals for it.
    """

    study: str
    party: str
    identity: bytes
    exchange_key: bytes
    sealing_keys: bytes

    def _signed_values(self) -> Record:
        values = Message._signed_values(self)
        del values["sealing_keys"]
        return {**values, "sealing": HashTree(self.sealing_keys).root}


@_message("sum.roster")
class Roster(Message):
    """Coordinator to hospital: everyone who takes part, in one order, and how many must survive.

    `parties` holds the names, one a line; the byte strings hold one entry a party, `sealings` the root of the
    `HashTree` over its sealing keys, by which `enrolments` have signed them. `threshold`
    hospitals must survive each step, and as many survivors must sign the set of survivors. With its digest,
    and with the `colluders` that the study reckons with, it fixes the graph.
    """

    study: str
    coordinator: bytes
    parties: str
    identities: bytes
    exchange_keys: bytes
    sealings: bytes
    enrolments: bytes
    threshold: int
    colluders: int


@_message("sum.pin")
class PinRequest(Message):
    """Coordinator to one hospital: the packed roster, and the sealing keys that those near have for it.

    `paths` show, one member after the other, that the keys are those which the members have signed.
    """

    party: str
    listed: bytes
    sealing_keys: bytes
    paths: bytes


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
    attempt: int

    @property
    def head(self) -> Head:
        """The fields by which a message names its batch and attempt."""
        roster, digest_of_batch = self.roster, self.batch_digest
        return Head(roster=roster, batch=self.batch, batch_digest=digest_of_batch, attempt=self.attempt)


@_message()
class _Reply(_BatchMessage):
    """`view` is a digest of all that the hospital was shown about the batch when it made this reply."""

    party: str
    view: bytes


@_message("sum.open")
class BatchOpening(_BatchMessage):
    """Coordinator to hospital: a new batch of `length` entries, summed mod 2^`bits`.

    After the first attempt `proof` shows who broke the protocol in those before (`blame.pack_proofs`).
    """

    length: int
    bits: int
    proof: bytes = b""


@_message("sum.shares")
class BatchShares(_Reply):
    """Hospital to coordinator: sealed shares of its two fresh secrets, one pair for each near hospital.

    The coordinator learns a commitment to the self-mask's secret; the pair seeds are sealed under the other.
    `commitments` are to each of the shares. `pinned` is its signature on its `RosterPinned`.
    """

    pinned: bytes
    commitment: bytes
    seeds: bytes
    commitments: bytes
    sealed: bytes

    def part(self, place: int) -> tuple[bytes, bytes]:
        """What is sealed for the hospital in one slot, and the commitments to it."""
        return (
            self.sealed[place * SEALED_BYTES : (place + 1) * SEALED_BYTES],
            self.commitments[place * PAIR_BYTES : (place + 1) * PAIR_BYTES],
        )


@_message("sum.mask")
class MaskRequest(_BatchMessage):
    """Coordinator to one hospital: who has shared, and the shares that those near have sealed for it.

    `dealt` are the digests of the sharers' messages, the same for all hospitals; `pinned` are the signatures
    by which those near have pinned this roster, and no other.
    """

    party: str
    sharers: Positions
    pinned: bytes
    dealt: bytes
    commitments: bytes
    sealed: bytes


@_message("sum.masked")
class MaskedVector(_Reply):
    """Hospital to coordinator: its vector plus all masks, uniform to whoever lacks one of them."""

    vector: Vector


@_message("sum.doubt")
class ShareDoubt(_Reply):
    """Hospital to coordinator, in place of its vector: it cannot use what is sealed for it by `doubted`."""

    doubted: int


@_message("sum.evidence")
class ShareEvidence(_BatchMessage):
    """Coordinator to one hospital that doubts: the message that the doubted one signed."""

    party: str
    message: bytes


@_message("sum.complaint")
class Complaint(_Reply):
    """Hospital to coordinator: `accused` signed shares that do not open, in its message of digest `about`.

    `key` is the private key that opens what these two have sealed for each other, and nothing else. Anyone
    can see with it who of the two is wrong (`blame.judge`).
    """

    accused: str
    about: bytes
    key: bytes


@_message("sum.survivors")
class SurvivorNotice(_BatchMessage):
    """Coordinator to hospital: whose vectors are in the sum."""

    survivors: Positions


@_message("sum.consent")
class SurvivorConsent(_Reply):
    """Hospital to coordinator: its signature on the one set of survivors that it will help to unmask.

    The signature is on `view`, a `consent_digest`, the same text for all, so that it convinces the others.
    """


@_message("sum.unmask")
class UnmaskRequest(_BatchMessage):
    """Coordinator to hospital: survivors' signatures on the set; reveal your shares."""

    consenting: Positions
    consents: bytes


@_message("sum.unmasked")
class UnmaskShares(_Reply):
    """Hospital to coordinator: one share of each near sharer, of one of its two secrets and never of both."""

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


BatchRequest = BatchOpening | MaskRequest | ShareEvidence | SurvivorNotice | UnmaskRequest
BatchReply = BatchShares | MaskedVector | ShareDoubt | Complaint | SurvivorConsent | UnmaskShares
Request = EnrolRequest | PinRequest | BatchRequest
Reply = Enrolment | RosterPinned | BatchReply | SumRefused

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


def enrolment_digest(study: str, party: str, identity: bytes, exchange_key: bytes, sealing: bytes) -> bytes:
    """`Enrolment.digest`, for whoever has of its sealing keys the root of their `HashTree` alone."""
    keys: Record = {"identity": identity, "exchange_key": exchange_key, "sealing": sealing}
    return digest(_LABEL + Enrolment.kind, {"version": VERSION, "study": study, "party": party, **keys})


def sharing_view(opening: BatchOpening, sharers: Positions, dealt: bytes) -> bytes:
    """All that is shown before vectors are masked: the opening with its proofs, who shared, and what."""
    return digest(_LABEL + "sharing", {"opening": opening.digest, "sharers": sharers, "dealt": dealt})


def consent_digest(view: bytes, survivors: Positions) -> bytes:
    """What every survivor signs: all that it was shown before (`sharing_view`), and whose vectors are summed.

    Hospitals that were shown different rosters, shares or proofs do not accept each other's signature on it.
    """
    return digest(_LABEL + "consent", {"view": view, "survivors": survivors})


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
