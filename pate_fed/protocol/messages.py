"""What coordinator and hospital say to each other, typed, both ways; nothing else crosses the wire.

Every message lowers to a flat record of numbers, text and integer arrays (`to_record`) and is rebuilt from
one with every field checked (`from_record`): a malformed message is refused before anything acts on it. A
hospital's reviewer finds here all that can leave the house: a name, a digest, a count of teachers, a vote
matrix or, instead of it, the key material and the masked vector of `pate_fed.secure_sum.messages`; where
features are public and labels private, labels after randomised response; and refusals from a fixed list.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.sections import (
    MOST_CLASSES,
    MOST_INPUTS,
    MOST_TEACHERS,
    About,
    Aggregation,
    Data,
    Parties,
    Privacy,
    Queries,
)
from pate_fed.config.trust import MOST_PARTIES, TrustModel
from pate_fed.data import Schema
from pate_fed.errors import IntegrityError
from pate_fed.learning import TeacherSettings
from pate_fed.protocol.agreed import Agreed, digest_of
from pate_fed.structure import (
    SettingError,
    check,
    from_record,
    refusal,
    same_as,
    setting,
    to_record,
)

__all__ = [
    "COUNTS",
    "END",
    "EVALUATION",
    "LABELS",
    "RELEASE",
    "SUM",
    "TEACH",
    "VOTES",
    "EndReply",
    "EndRequest",
    "LabelReply",
    "LabelRequest",
    "Record",
    "Refusal",
    "RefusalReply",
    "Reply",
    "SumReply",
    "SumRequest",
    "TeachReply",
    "TeachRequest",
    "Terms",
    "VoteReply",
    "VoteRequest",
    "parse_reply",
]

Scalar = int | float | str | bytes
Record = dict[str, Scalar | NDArray[Any]]
M = TypeVar("M", bound="_Message")

TEACH = "train.teacher"
VOTES = "query.votes"
SUM = "query.sum"
LABELS = "query.labels"
COUNTS = "query.counts"
END = "query.end"
RELEASE = "release"
_MOST_SAID = 300  # characters in which a coordinator says how a study ended
EVALUATION = "evaluation"

_SHA256: dict[str, Any] = {"pattern": re.compile(r"[0-9a-f]{64}"), "allowed": "a SHA-256 in hexadecimal"}
_MOST_LENGTH = 10_000_000  # numbers that an input has


class Refusal(Enum):
    """Why a hospital does not answer: the fixed list, so that no error text can carry data out."""

    TERMS = "the terms are not the ones this hospital agreed to"
    NO_POOL = "this hospital has no copy of the public pool yet"
    POOL = "the public pool is not the one in the terms"
    FUTILE = "under these terms votes would be spent for no label"
    ENCODER = "the encoder that came is not the one in the terms, or none came"
    REPEATED = "a query of this batch was answered before"
    ANSWERED = "this hospital was asked about its labels before, under other terms"
    CAPS = "the batch asks more than the terms allow in all"
    NOT_TAUGHT = "no teacher is trained yet"
    POLICY = "refused by the hospital's policy"
    POLICY_STUDY = "refused by the hospital's policy: not a study that it takes part in"
    POLICY_POOL = "refused by the hospital's policy: not a pool that it answers about"
    POLICY_CLASSES = "refused by the hospital's policy: other classes than it votes on"
    POLICY_HOSPITALS = (
        "refused by the hospital's policy: too few hospitals; a larger --quorum counts more of them"
    )
    POLICY_SECURE_SUM = (
        "refused by the hospital's policy: votes would be seen without masks; --secure-sum masks them"
    )
    POLICY_SEED = "refused by the hospital's policy: seeded noise protects nobody"
    POLICY_PUBLIC = "refused by the hospital's policy: too large an ε against the public"
    POLICY_COORDINATOR = "refused by the hospital's policy: too large an ε against the coordinator"
    POLICY_DELTA = "refused by the hospital's policy: too large a δ for a limit on ε"
    POLICY_CAPS = (
        "refused by the hospital's policy: the whole pool may be asked about; --max-queries below it is a cap"
    )
    POLICY_QUERIES = "refused by the hospital's policy: more queries than it answers in all"
    POLICY_DAY = "refused by the hospital's policy: more queries than it answers in a day"
    POLICY_TOTAL = "refused by the hospital's policy: too large an ε over all its studies"
    LEFT = "this hospital has left the study"
    MALFORMED = "the request is malformed"
    PLAIN = "by the study's terms votes leave this hospital masked only"
    COORDINATOR = "this hospital began the study's secure summation with another coordinator or run directory"
    VERSION = "the request speaks another version of secure summation than this hospital's program"
    DATA = "the hospital's own data cannot be used"
    FAULT = "a fault at the hospital; its own log has the details"

    @property
    def is_policy(self) -> bool:
        """Whether the hospital's policy is the reason."""
        return self.name.startswith("POLICY")

    @property
    def sentence(self) -> str:
        """That the hospital refused, and why."""
        return self.value if self.is_policy else f"refused: {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Agreed):
    """What a hospital agrees to before it trains; fixed before the first vote is seen.

    The sections are those of the study, resolved. Where `secrecy.noise_at` is "hospitals" each adds noise of
    `sigma_party` votes first, so that sums over `least_clients` of them, less the colluders that may tell
    theirs, hold the vote's noise. `encoder` is the SHA-256 of the public encoder that teachers learn on, None
    where they need none; `table` is what a table's columns mean, `window` what is black and white in DICOM
    images. `about` says who asks and what for, to people.

    Raises:
        InputError: a value of the wrong type or out of range, or values that do not go together.
    """

    study: str = setting(most=100)
    num_classes: int = setting(low=2, high=MOST_CLASSES)
    image_shape: tuple[int, ...] = setting(unit="lengths", low=1, high=_MOST_LENGTH)
    pool_size: int = setting(low=1, high=MOST_INPUTS)
    pool_digest: str = setting(**_SHA256)
    num_clients: int = same_as(Parties, "num_clients")
    teachers_per_client: int = same_as(Parties, "teachers_per_client")
    records_per_teacher: int | None = same_as(Parties, "records_per_teacher", None)
    least_clients: int = setting(low=1, high=MOST_PARTIES)
    aggregation: Aggregation
    labels: int = same_as(Queries, "labels")
    max_queries: int = same_as(Queries, "max_queries")
    privacy: Privacy
    teacher: TeacherSettings
    secrecy: TrustModel = field(default_factory=TrustModel)
    sigma_party: float | None = setting(None, unit="votes", low=1e-6, high=1e9)
    seed: int | None = setting(None, low=0, high=2**63 - 1)
    classes: tuple[str, ...] = setting((), most=1000)
    table: Schema | None = None
    window: tuple[float, float] | None = same_as(Data, "window", None)
    encoder: str | None = setting(None, **_SHA256)
    about: About = field(default_factory=About)

    def __post_init__(self) -> None:
        check(self)
        self.aggregation.fixed()
        shape, features = self.image_shape, self.table.num_features if self.table is not None else None
        for name, fits, wanted in (
            ("teachers_per_client", self.num_teachers <= MOST_TEACHERS, f"at most {MOST_TEACHERS:,} in all"),
            ("least_clients", self.least_clients <= self.num_clients, f"at most {self.num_clients}"),
            ("image_shape", len(shape) in (1, 2, 3), "height, width and channels, or a row's length"),
            ("image_shape", math.prod(shape) <= _MOST_LENGTH, f"at most {_MOST_LENGTH:,} numbers"),
            ("image_shape", features is None or shape == (features,), f"the table's {features} features"),
            ("classes", len(self.classes) in (0, self.num_classes), f"a name for each of {self.num_classes}"),
            ("window", self.window is None or self.window[0] < self.window[1], "[black, white]"),
            ("sigma_party", self.adds_noise == (self.sigma_party is not None), "noise, if hospitals add it,"),
            ("secrecy.colluders", not self.adds_noise or self.secrecy.colluders is not None, "a number"),
            ("secrecy.colluders", self.colluders < self.least_clients, f"fewer than {self.least_clients}"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation, or the most that there can be: no query has more votes."""
        return self.num_clients * self.teachers_per_client

    @property
    def least_teachers(self) -> int:
        """The fewest teachers that a hospital has."""
        return self.teachers_per_client if self.records_per_teacher is None else 1

    @property
    def delta(self) -> float:
        """The δ that every ε is stated for."""
        return self.privacy.delta

    @property
    def secure_sum(self) -> bool:
        """Whether votes leave a hospital masked only."""
        return self.secrecy.secure_sum

    @property
    def adds_noise(self) -> bool:
        """Whether each hospital adds its share of the noise."""
        return self.secrecy.at_hospitals

    @property
    def colluders(self) -> int:
        """Hospitals that may tell the coordinator their own noise."""
        return self.secrecy.colluders or 0


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
            return from_record(cls, record)
        except SettingError as error:  # told without the value, which may be votes
            text = f"{error.path} of a message {cls.kind!r} has the wrong type or value: {error.wanted}"
        raise IntegrityError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachRequest(_Message):
    """Coordinator to hospital: the terms; train if you agree.

    `enrol` is a packed `secure_sum.messages.EnrolRequest` where votes will be masked, else empty. `pool` is
    the public inputs as a .npy file, for a hospital that has no copy of them, else empty. `encoder` is the
    public encoder's safetensors file where the terms name one, else empty.
    """

    kind: ClassVar[str] = "teach"
    terms: str
    enrol: bytes = b""
    pool: bytes = b""
    encoder: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachReply(_Message):
    """Hospital to coordinator: agreed and trained. No figure about data or training.

    `enrolment` is a packed `secure_sum.messages.Enrolment` where votes will be masked, else empty.
    """

    kind: ClassVar[str] = "taught"
    party: str
    terms_digest: str
    num_teachers: int
    enrolment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(_Message):
    """Coordinator to hospital: vote on these public inputs.

    Shapes: `index` is int64 (queries,), positions in the public pool. `purpose` is "release", or "evaluation"
    where nothing is released (simulated parties only). `coordinator` is the key of the coordinator's run,
    `signature` its own on the digest; without them a question is answered once and not again.
    """

    kind: ClassVar[str] = "query"
    terms_digest: str
    batch: int
    purpose: str
    index: NDArray[np.int64]
    coordinator: bytes = b""
    signature: bytes = b""

    @property
    def digest(self) -> str:
        """SHA-256 hex that names the batch in the reply and in the ledger."""
        head = f"{self.terms_digest}/{self.batch}/{self.purpose}".encode()
        return digest_of(b"pate_fed/v1 batch", head, self.index.astype("<i8").tobytes())

    @property
    def content_digest(self) -> str:
        """Names a batch by what it asks about, so that another number or order does not make it new."""
        return hashlib.sha256(np.sort(self.index).astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply(_Message):
    """Hospital to coordinator: the vote matrix, int64 (queries, classes)."""

    kind: ClassVar[str] = "votes"
    party: str
    batch_digest: str
    votes: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"VoteReply(party={self.party!r}, batch_digest={self.batch_digest!r}, votes=<hidden>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest(_Message):
    """Coordinator to hospital: one step of a batch's secure summation.

    `step` is a packed request of `secure_sum.messages`, `roster` the packed roster where this hospital has
    not shown yet that it has pinned it, else empty. `index` names the batch's public inputs in the two steps
    that need them (opening and masking) and is empty in the others; `batch` and `purpose` are those of a
    `VoteRequest`, whose digest the step must carry.
    """

    kind: ClassVar[str] = "sum"
    terms_digest: str
    batch: int
    purpose: str
    index: NDArray[np.int64]
    roster: bytes
    step: bytes

    @property
    def question(self) -> VoteRequest:
        """What is voted on, as a plain request would ask it."""
        return VoteRequest(
            terms_digest=self.terms_digest, batch=self.batch, purpose=self.purpose, index=self.index
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReply(_Message):
    """Hospital to coordinator: a packed, signed reply of `secure_sum.messages`."""

    kind: ClassVar[str] = "summed"
    party: str
    step: bytes

    def __repr__(self) -> str:
        return f"SumReply(party={self.party!r}, step=<{len(self.step)} bytes>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(_Message):
    """Coordinator to hospital: the terms of a study of private labels; answer if you agree.

    `terms` are `pate_fed.protocol.label_terms.LabelTerms`. Shapes: `clusters` int64 (pool_size,), the public
    inputs' clusters, where counts will be summed under masks, and empty else; so is `enrol`, a packed
    `secure_sum.messages.EnrolRequest`.
    """

    kind: ClassVar[str] = "labels"
    terms: str
    clusters: NDArray[np.int64]
    enrol: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReply(_Message):
    """Hospital to coordinator: agreed, with its labels after randomised response, or with its enrolment.

    Shapes: `index` int64 (n,), which public inputs are its own; `label` int64 (n,). Both are empty where
    counts will be summed, and `enrolment` is empty else.
    """

    kind: ClassVar[str] = "labelled"
    party: str
    terms_digest: str
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    enrolment: bytes = b""

    def __repr__(self) -> str:
        return f"LabelReply(party={self.party!r}, labels=<hidden>)"


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

    `receipt` is a signed `pate_fed.identity.receipt.Receipt` of what came from this hospital; empty where the
    coordinator has no keys.

    Raises:
        IntegrityError: long texts, or what steers a terminal; a hospital shows them on its own.
    """

    kind: ClassVar[str] = "end"
    status: str
    exit_code: int
    summary: str
    receipt: str = ""

    def __post_init__(self) -> None:
        text = self.status + self.summary
        if len(text) > _MOST_SAID or not text.isprintable():
            raise IntegrityError(f"up to {_MOST_SAID} printable characters are meant")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReply(_Message):
    """Hospital to coordinator: heard."""

    kind: ClassVar[str] = "ended"
    party: str


Reply = TeachReply | VoteReply | SumReply | LabelReply | RefusalReply | EndReply
_REPLIES: tuple[type[Reply], ...] = get_args(Reply)


def parse_reply(record: Record) -> Reply:
    """The reply in a record.

    Raises:
        IntegrityError: it is none of the replies, or malformed.
    """
    said = record.get("kind")
    for kind in _REPLIES:
        if isinstance(said, str) and said == kind.kind:  # an array would be compared number by number
            return kind.from_record(record)
    raise IntegrityError("a reply of unknown kind")
