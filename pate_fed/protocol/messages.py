"""What coordinator and hospital say to each other, typed, both ways; nothing else crosses the wire.

Every message lowers to a flat record of numbers, text and integer arrays (`to_record`) and is rebuilt from
one with every field checked (`from_record`): a malformed message is refused before anything acts on it. A
hospital's reviewer finds here all that can leave the house: a name, a digest, an array of whole numbers or,
instead of it, the key material and the masked vector of `pate_fed.secure_sum.messages`; and codes of a
fixed list. What the numbers are is the kind of question's to say (`clients/kinds/`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.structure import (
    Setting,
    SettingError,
    entries,
    from_plain,
    from_record,
    setting,
    to_plain,
    to_record,
)

# The fixed list of reasons for which a hospital does not answer.

_BY_POLICY = "refused by the hospital's policy: "


class Refusal(Enum):
    """Why a hospital does not answer: the fixed list, so that no error text can carry data out."""

    TERMS = "the terms are not the ones this hospital agreed to"
    NO_POOL = "this hospital has no copy of the public pool yet"
    POOL = "the public pool is not the one in the terms"
    FUTILE = "under these terms ε would be spent for no label"
    FILE = "the public file that came is not the one in the terms, or none came"
    PART = "the code that is installed here is not the one in the terms"
    REPEATED = "a query of this batch was answered before"
    ANSWERED = "this hospital was asked about its labels before, under other terms"
    CAPS = "the batch asks more than the terms allow in all"
    NOT_READY = "no terms were agreed to yet, or nothing is ready to answer with"
    POLICY = "refused by the hospital's policy"
    POLICY_STUDY = f"{_BY_POLICY}not a study that it takes part in"
    POLICY_POOL = f"{_BY_POLICY}not a pool that it answers about"
    POLICY_CLASSES = f"{_BY_POLICY}other classes than it votes on"
    POLICY_HOSPITALS = f"{_BY_POLICY}too few hospitals; a larger --quorum counts more of them"
    POLICY_SECURE_SUM = f"{_BY_POLICY}votes would be seen without masks; --secure-sum masks them"
    POLICY_CONFIRMED = f"{_BY_POLICY}too few of the other hospitals are confirmed at it by telephone"
    POLICY_SUMS = f"{_BY_POLICY}class sums do not leave it"
    POLICY_ROUNDS = f"{_BY_POLICY}class sums in more rounds than it allows"
    POLICY_COUNTS = (
        f"{_BY_POLICY}counts of held-out records do not leave it; sums.scores = false asks for none"
    )
    POLICY_EXACT_SUMS = (
        f"{_BY_POLICY}class sums would be read without noise; --noise-at hospitals adds it before they leave"
    )
    POLICY_TEACHER = f"{_BY_POLICY}the teacher's code is not on its list of teachers"
    POLICY_AGGREGATOR = f"{_BY_POLICY}ε is claimed by a mechanism that is not on its list of aggregators"
    POLICY_FEATURE_MAP = f"{_BY_POLICY}the feature map's code is not on its list"
    POLICY_KIND = f"{_BY_POLICY}the code of this kind of question is not on its list"
    POLICY_SEED = f"{_BY_POLICY}seeded noise protects nobody"
    POLICY_PUBLIC = f"{_BY_POLICY}too large an ε against the public"
    POLICY_COORDINATOR = f"{_BY_POLICY}too large an ε against the coordinator"
    POLICY_DELTA = f"{_BY_POLICY}too large a δ for a limit on ε"
    POLICY_UNIT = f"{_BY_POLICY}ε is stated for a unit (privacy.unit) not on its list"
    POLICY_ADJACENCY = f"{_BY_POLICY}ε is stated for neighbours (privacy.adjacency) not on its list"
    POLICY_PATIENT = (
        f"{_BY_POLICY}ε is stated for patients of too few hospitals; a larger privacy.hospitals_per_patient "
        "counts more of them"
    )
    POLICY_COLLUDERS = (
        f"{_BY_POLICY}ε reckons with too few hospitals that tell the coordinator their noise; a larger "
        "secrecy.colluders counts more of them"
    )
    POLICY_CAPS = f"{_BY_POLICY}the whole pool may be asked about; --max-queries below it is a cap"
    POLICY_QUERIES = f"{_BY_POLICY}more queries than it answers in one study"
    POLICY_DAY = f"{_BY_POLICY}more queries than it answers in a day of one study"
    POLICY_TOTAL = f"{_BY_POLICY}too large an ε over all its studies"
    OLDER = "this hospital's state directory is behind what the hospital has answered: a backup was put back"
    LEDGER = "the coordinator's ledger is behind what it showed before: a backup was put back"
    BEHIND = "the coordinator shows fewer answers of a hospital than it showed before, which hides a backup"
    LEFT = "this hospital has left the study"
    MALFORMED = "the request is malformed"
    PLAIN = "by the study's terms answers leave this hospital masked only"
    COORDINATOR = "this hospital began the study's secure summation with another coordinator or run directory"
    VERSION = "the request speaks another version of secure summation than this hospital's program"
    DATA = "the hospital's own data cannot be used"
    LATER = "this hospital cannot do it now, as a disk is full or cannot be written, say; it is asked again"
    FAULT = "a fault at the hospital; its own log has the details"

    @property
    def is_policy(self) -> bool:
        """Whether the hospital's policy is the reason."""
        return self.name.startswith("POLICY")

    @property
    def sentence(self) -> str:
        """That the hospital refused, and why."""
        return self.value if self.is_policy else f"refused: {self.value}"


# Terms of any kind: frozen values with one text and one digest, by which both sides name them.

A = TypeVar("A", bound="Agreed")


def digest_of(*parts: bytes) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts collide."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


class Agreed:
    """Terms that both sides name by their digest: frozen values with one canonical text."""

    __slots__ = ()

    def to_json(self) -> str:
        """Canonical JSON: equal terms give equal text."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_json(cls: type[A], text: str) -> A:
        """Terms from their canonical JSON.

        Raises:
            IntegrityError: not JSON, fields missing or unknown, or values that the terms refuse.
        """
        kind: type = cls
        terms = _read(kind, text)
        assert isinstance(terms, cls)
        return terms

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, hex; named in every later message."""
        return _digest(_Same(self))


# Parties that one process plays in turn read the same terms with every message.


@lru_cache(maxsize=4)
def _read(cls: type, text: str) -> Agreed:
    try:
        values = json.loads(text)
        if isinstance(values, dict) and set(values) != {entry.name for entry in entries(cls)}:
            raise IntegrityError(
                "the study's terms have missing or unknown fields: both sides must run one release"
            )
        terms: Agreed = from_plain(cls, values, where="the study's terms", error=IntegrityError)
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError("the study's terms are not readable") from error
    if to_plain(terms) != values:  # what is left out of a section would be each side's own default
        raise IntegrityError(
            "the study's terms do not say all that they hold; both sides must run the same release"
        )
    return terms


class _Same:
    """One very object as a key: equal terms may have different texts, as 0.0 and -0.0 have."""

    __slots__ = ("terms",)

    def __init__(self, terms: Agreed) -> None:
        self.terms = terms

    def __hash__(self) -> int:
        return id(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.terms is other.terms


@lru_cache(maxsize=4)
def _digest(one: _Same) -> str:
    return digest_of(b"pate_fed/v1 terms", one.terms.to_json().encode())


Packed = NDArray[np.int64] | NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
"""An answer on its way without masks, as `pate_fed.kinds.base.Bounds` packs it."""
NUMBERS = tuple(np.dtype(code) for code in ("<i8", "|u1", "<u2", "<u4"))
"""The whole numbers that an array in a message may hold."""
Scalar = int | float | str | bytes
Record = dict[str, Scalar | NDArray[Any]]
M = TypeVar("M", bound="_Message")

JOIN = "train.join"
ANSWER = "query.answer"
SUM = "query.sum"
END = "query.end"
_MOST_SAID = 300  # characters in which a coordinator says how a study ended
MOST_STUDENT = 64 * 2**20
"""Bytes in which a student comes to a hospital; a larger one is not sent."""

# What is counted along one axis; answers are held to their shape by their kind.
_LISTS = {"index": Setting(holds=lambda array: array.ndim == 1, allowed="a list of whole numbers")}


def record_digest(record: Record) -> str:
    """SHA-256 hex of a message's flat record: its fields by name, each with its type, whatever carries it.

    Raises:
        TypeError: a field of a type that no message has.
    """
    parts = [b"pate_fed/v2 message"]
    for name in sorted(record):
        parts.append(name.encode())
        value = record[name]
        if isinstance(value, np.ndarray):
            if value.dtype not in NUMBERS:
                raise TypeError(f"{name}: messages hold whole numbers of {', '.join(map(str, NUMBERS))}")
            little = value.astype(value.dtype.newbyteorder("<"))
            parts += [b"array", f"{little.dtype.str}{value.shape}".encode(), little.tobytes()]
        elif isinstance(value, bytes):
            parts += [b"bytes", value]
        elif isinstance(value, str):
            parts += [b"text", value.encode()]
        elif isinstance(value, int | float):
            parts += [type(value).__name__.encode(), repr(value).encode()]
        else:
            raise TypeError(f"{name}: no message has a {type(value).__name__}")
    return digest_of(*parts)


class _Message:
    """Shared lowering: a message is a flat record with its kind and fields."""

    kind: ClassVar[str]
    __slots__ = ()

    def to_record(self) -> Record:
        """The message as a flat record."""
        return to_record(self)

    @classmethod
    def from_record(cls: type[M], record: Record) -> M:
        """The message in a record, every field checked.

        Raises:
            IntegrityError: another kind of message, or a field missing, unknown or of the wrong type.
        """
        try:
            return from_record(cls, record, checks=_LISTS)
        except SettingError as error:  # told without the value, which may be an answer
            text = f"{error.path} of a message {cls.kind!r} has the wrong type or value: {error.wanted}"
        raise IntegrityError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(_Message):
    """Coordinator to hospital: the terms; get ready to answer if you agree.

    `enrol` is a packed `secure_sum.messages.EnrolRequest` where answers will be masked, else empty. `pool` is
    the public inputs as a .npy file, for a hospital that has no copy of them, else empty. `file` is the
    public file that the terms name by its digest (an encoder, a feature map, clusters), else empty. `heads`
    is the ledger's alone, and `coordinator` the key of the run, as in a `Question`. Where answers will be
    masked `hospitals` are those that are admitted by now, NAME=FINGERPRINT a line.
    """

    kind: ClassVar[str] = "join"
    terms: str
    enrol: bytes = b""
    pool: bytes = b""
    file: bytes = b""
    heads: str = ""
    coordinator: bytes = b""
    hospitals: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply(_Message):
    """Hospital to coordinator: agreed and ready. No figure about data or training.

    `enrolment` is a packed `secure_sum.messages.Enrolment` where answers will be masked, else empty.
    """

    kind: ClassVar[str] = "joined"
    party: str
    terms_digest: str
    enrolment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(_Message):
    """Coordinator to hospital: answer about these places, as the terms' kind says what a place is.

    Shapes: `index` is int64 (rows,): positions in the public pool, features, clusters. Of the last `measured`
    of them nothing is released: they are test inputs, on which teachers are measured (simulated parties
    only). `given` are public bytes that the answer rests on, such as the weights of a round, else empty.
    `coordinator` is the key of the coordinator's run, `signature` its own on the digest; without them a
    question is answered once and not again. `heads` are the ledger's and, under masks, of all hospitals, the
    same for all (`protocol.heads.heads_text`); `statement` is the newest that this hospital has made, packed.
    """

    kind: ClassVar[str] = "question"
    terms_digest: str
    batch: int
    index: NDArray[np.int64]
    measured: int = setting(0, low=0)
    given: bytes = b""
    coordinator: bytes = b""
    signature: bytes = b""
    heads: str = ""
    statement: bytes = b""

    @property
    def digest(self) -> str:
        """SHA-256 hex that names the question in the reply and in the ledger."""
        head = f"{self.terms_digest}/{self.batch}/{self.measured}".encode()
        index = self.index.astype("<i8").tobytes()
        return digest_of(b"pate_fed/v3 question", head, index, self.given, self.heads.encode())

    @property
    def released(self) -> NDArray[np.int64]:
        """The places of which something is released: int64 (rows - measured,)."""
        return self.index[: max(0, len(self.index) - self.measured)]

    @property
    def content_digest(self) -> str:
        """Names a question by what it asks about, so that another number or order does not make it new."""
        content = np.sort(self.index).astype("<i8").tobytes()
        return digest_of(b"pate_fed/v2 content", content, self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReply(_Message):
    """Hospital to coordinator: its answer without masks, (rows, columns), or a class for each row's one vote.

    `statement` is a packed `protocol.heads.Statement`; empty from a simulated hospital.
    """

    kind: ClassVar[str] = "answer"
    party: str
    batch_digest: str
    answer: Packed
    statement: bytes = b""

    def __repr__(self) -> str:
        return f"AnswerReply(party={self.party!r}, batch_digest={self.batch_digest!r}, answer=<hidden>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest(_Message):
    """Coordinator to hospital: one step of a batch's secure summation.

    `step` is a packed request of `secure_sum.messages`, `roster` the packed roster where this hospital has
    not shown yet that it has pinned it, else empty. `batch`, `index`, `measured` and `given` are those of a
    `Question`, whose digest the step must carry; these but the number, and `heads`, are empty but in the two
    steps that need them (opening and masking). `statement` is as in a `Question`.
    """

    kind: ClassVar[str] = "sum"
    terms_digest: str
    batch: int
    index: NDArray[np.int64]
    roster: bytes
    step: bytes
    measured: int = setting(0, low=0)
    given: bytes = b""
    heads: str = ""
    statement: bytes = b""

    @property
    def question(self) -> Question:
        """What is answered, as a plain request would ask it."""
        return Question(
            terms_digest=self.terms_digest,
            batch=self.batch,
            index=self.index,
            measured=self.measured,
            given=self.given,
            heads=self.heads,
            statement=self.statement,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReply(_Message):
    """Hospital to coordinator: a packed, signed reply of `secure_sum.messages`, and a statement."""

    kind: ClassVar[str] = "summed"
    party: str
    step: bytes
    statement: bytes = b""

    def __repr__(self) -> str:
        return f"SumReply(party={self.party!r}, step=<{len(self.step)} bytes>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalReply(_Message):
    """Hospital to coordinator: no, with a code from the fixed list `Refusal`."""

    kind: ClassVar[str] = "refused"
    party: str
    code: str

    @property
    def refusal(self) -> Refusal:
        """The reason; an unknown code counts as a fault."""
        return Refusal.__members__.get(self.code, Refusal.FAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest(_Message):
    """Coordinator to hospital: the study is over; `exit_code` and `summary` are the coordinator's own.

    `receipt` is a signed `pate_fed.identity.keys.Receipt` of what came from this hospital, `student` the
    study's signed `pate_fed.identity.bundle`; empty where the coordinator has no keys.

    Raises:
        IntegrityError: long texts, or what steers a terminal, as a hospital shows them on its own; or a
            student that is too large.
    """

    kind: ClassVar[str] = "end"
    status: str
    exit_code: int
    summary: str
    receipt: str = ""
    student: bytes = b""

    def __post_init__(self) -> None:
        text = self.status + self.summary
        if len(text) > _MOST_SAID or not text.isprintable():
            raise IntegrityError(f"up to {_MOST_SAID} printable characters are meant")
        if len(self.student) > MOST_STUDENT:
            raise IntegrityError(f"a student of at most {MOST_STUDENT:,} bytes is meant")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReply(_Message):
    """Hospital to coordinator: heard."""

    kind: ClassVar[str] = "ended"
    party: str


Reply = JoinReply | AnswerReply | SumReply | RefusalReply | EndReply
_REPLIES: tuple[type[Reply], ...] = get_args(Reply)
# Read now: a field that cannot be read is an error at import, not a refusal of every hospital's answer.
_REQUESTS = (JoinRequest, Question, SumRequest, EndRequest)
_FIELDS = {kind: entries(kind) for kind in (*_REQUESTS, *_REPLIES)}


def parse_reply(record: Record) -> Reply:
    """The reply in a record; IntegrityError where it is none of the replies, or malformed."""
    said = record.get("kind")
    for kind in _REPLIES:
        if isinstance(said, str) and said == kind.kind:  # an array would be compared number by number
            return kind.from_record(record)
    raise IntegrityError("a reply of unknown kind")
