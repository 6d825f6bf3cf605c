"""Terms of a study: what every hospital agrees to before the first question, and what they guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pate_fed.config.sections import (
    CLASS_SUMS,
    EPSILON_ALARM,
    MOST_CLASSES,
    MOST_INPUTS,
    About,
    Data,
    Parties,
    Privacy,
)
from pate_fed.config.trust import MOST_PARTIES, TrustModel
from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.base import SHA256, Bounds, KindTerms
from pate_fed.kinds.labels import LabelTerms
from pate_fed.kinds.own import OwnTerms
from pate_fed.kinds.rounds import RoundTerms, ScoredTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.kinds.words import Words
from pate_fed.privacy import CoordinatorView, LedgerTerms
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.protection import HOSPITAL_UNIT, PATIENT_UNIT, Assumptions
from pate_fed.protocol.messages import MOST_STUDENT, Agreed
from pate_fed.structure import check, entries, from_plain, nearest, refusal, same_as, setting

KINDS: dict[str, type[KindTerms]] = {
    "votes": VoteTerms,
    "class-sums": SumTerms,
    "sums-in-rounds": RoundTerms,
    "sums-and-scores": ScoredTerms,
    "private-labels": LabelTerms,
    "own": OwnTerms,
}
"""The kinds of question by name; "own" are those of the user's code, which their section names."""

_MOST_LENGTH = 10_000_000  # numbers that an input has


def _read_kind(value: Any) -> Any:
    """The section of a kind from its plain values, by the name in it."""
    if not isinstance(value, Mapping):
        return value
    name = value.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"kind {name!r}: one of {', '.join(KINDS)} is meant{nearest(name, KINDS)}")
    return from_plain(KINDS[name], value, where="asks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Agreed):
    """What a hospital agrees to; fixed before the first question.

    `asks` is what is asked, by its kind. The other sections are those of the study, resolved. Where
    `secrecy.noise_at` is "hospitals" each adds noise of `sigma_party` first, in the unit of what is asked, so
    that sums over `least_clients` of them, less the colluders that may tell theirs, hold enough. `table` is
    what a table's columns mean, `window` what is black and white in DICOM images. `about` says who asks and
    what for, to people.

    Raises:
        InputError: a value of the wrong type or out of range, or values that do not go together.
    """

    study: str = setting(most=100)
    asks: KindTerms = setting(read=_read_kind)  # noqa: RUF009
    num_classes: int = setting(low=2, high=MOST_CLASSES)
    image_shape: tuple[int, ...] = setting(unit="lengths", low=1, high=_MOST_LENGTH)
    pool_size: int = setting(low=1, high=MOST_INPUTS)
    pool_digest: str = setting(**SHA256)
    num_clients: int = same_as(Parties, "num_clients")
    least_clients: int = setting(low=1, high=MOST_PARTIES)
    privacy: Privacy
    secrecy: TrustModel = field(default_factory=TrustModel)
    sigma_party: float | None = setting(None, low=1e-6, high=1e9)
    seed: int | None = setting(None, low=0, high=2**63 - 1)
    classes: tuple[str, ...] = setting((), most=1000)
    table: Schema | None = None
    window: tuple[float, float] | None = same_as(Data, "window", None)
    about: About = field(default_factory=About)

    def __post_init__(self) -> None:
        check(self)
        few, noisy = self.privacy.hospitals_moved <= self.num_clients, self.adds_noise
        shape, features = self.image_shape, self.table.num_features if self.table is not None else None
        for name, fits, wanted in (
            ("least_clients", self.least_clients <= self.num_clients, f"at most {self.num_clients}"),
            ("image_shape", len(shape) in (1, 2, 3), "height, width and channels, or a row's length"),
            ("image_shape", math.prod(shape) <= _MOST_LENGTH, f"at most {_MOST_LENGTH:,} numbers"),
            ("image_shape", features is None or shape == (features,), f"the table's {features} features"),
            ("classes", len(self.classes) in (0, self.num_classes), f"a name for each of {self.num_classes}"),
            (
                "table.labels" if self.several else "table.target_range",
                (self.target_range is None and not self.several)
                or (
                    self.asks.kind == CLASS_SUMS
                    and self.privacy.unit != HOSPITAL_UNIT
                    and self.num_classes == 2 * max(1, self.several)  # the ends of its range, or no and yes
                ),
                "classes, or class sums once by record or patient,",
            ),
            ("window", self.window is None or self.window[0] < self.window[1], "[black, white]"),
            ("privacy.unit", self.privacy.unit in self.asks.units, " or ".join(self.asks.units)),
            (
                "privacy.unit",
                self._may_name_patients,
                "record or hospital: the table names no patients; that",
            ),
            ("privacy.hospitals_per_patient", few, f"at most {self.num_clients}, the hospitals,"),
            ("privacy.delta", bool(self.delta) != self.asks.noisy_alone, "δ, unless ε holds without,"),
            ("sigma_party", noisy == (self.sigma_party is not None), "noise, if hospitals add it,"),
            ("secrecy.colluders", noisy == (self.secrecy.colluders is not None), "a number, if they do,"),
            ("secrecy.colluders", self.colluders < self.least_clients, f"fewer than {self.least_clients}"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")
        self.asks.check(self)

    @property
    def _may_name_patients(self) -> bool:
        """Whether records can say whose they are, where the unit is a patient; without a table they may."""
        named = self.table is None or self.table.patient is not None
        return named or self.privacy.unit != PATIENT_UNIT

    # What is asked.

    @property
    def labels(self) -> int:
        """Labels that are released at most."""
        return self.asks.labels

    @property
    def max_queries(self) -> int:
        """Public inputs that are asked about, or labelled, at most."""
        return self.asks.max_queries

    @property
    def answer_digest(self) -> str:
        """Names what a hospital answers: under terms of one such name it is the same."""
        return self.asks.answer_digest(self)

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation, the most that there can be; 0 where nothing is trained."""
        return self.asks.num_teachers(self.num_clients)

    @property
    def bounds(self) -> Bounds:
        """What a hospital's answer to one question takes at most."""
        return self.asks.bounds(self)

    @property
    def words(self) -> Words:
        """What is said of the study, by its kind."""
        return self.asks.words(self)

    # What it costs.

    def ledger_terms(self, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """What the ledger fixes before the first question (`KindTerms.ledger_terms`)."""
        return self.asks.ledger_terms(self, noise=noise, private=private, together=together)

    def view(self, voters: int) -> CoordinatorView:
        """What the coordinator sees of an answer in which so many hospitals have a part."""
        return self.asks.view(self, voters)

    def assumptions(self, *, together: bool = False) -> Assumptions:
        """Code of others on whose word every ε rests; `together`: one process plays several hospitals.

        State that such code hides passes from record to record, or teacher to teacher, of its own process.
        Where that is one hospital's, and the unit moves all that the hospital gives, nothing rests on it.
        """
        return Assumptions(tuple(self.asks.assumptions(self, together=together)))

    @property
    def needs_torch(self) -> bool:
        """Whether a hospital's records are images, which it reads and learns from with torch."""
        return self.asks.reads_inputs and self.table is None

    @property
    def drawn(self) -> bool:
        """Whether there are no public inputs: the pool is rows drawn from the ranges in the schema."""
        return self.table is not None and bool(self.table.ranges)

    @property
    def target_range(self) -> tuple[float, float] | None:
        """What labels can be where they are numbers, not classes."""
        return None if self.table is None else self.table.target_range

    @property
    def several(self) -> int:
        """How many labels each record has, where these are several; else 0."""
        return 0 if self.table is None else len(self.table.labels)

    @property
    def names_patients(self) -> bool:
        """Whether the records of one patient are taken together: never where the unit is a record."""
        column = self.table is not None and self.table.patient is not None
        return self.privacy.unit == PATIENT_UNIT or (column and self.privacy.by_patient)

    @property
    def delta(self) -> float:
        """The δ that every ε is stated for."""
        return self.privacy.delta

    @property
    def secure_sum(self) -> bool:
        """Whether answers leave a hospital masked only."""
        return self.secrecy.secure_sum

    @property
    def adds_noise(self) -> bool:
        """Whether each hospital adds its share of the noise."""
        return self.secrecy.at_hospitals

    @property
    def shares(self) -> dict[str, Any]:
        """Noise that hospitals add, as mechanisms are given it; empty where the coordinator adds it."""
        if self.sigma_party is None:
            return {}
        return {
            "sigma_party": self.sigma_party,
            "survivors": self.least_clients,
            "colluders": self.colluders,
        }

    @property
    def colluders(self) -> int:
        """Hospitals that may tell the coordinator their own noise."""
        return self.secrecy.colluders or 0


# Read now: a field that cannot be read is an error at import, not a refusal by every hospital.
_FIELDS = (entries(Terms), *map(entries, KINDS.values()))


# What follows from a study's terms before its first message: its guarantee, and its messages' sizes.


_NUMBER = 8  # int64 on the wire; masked entries take less, and so do most pools
_PER_HOSPITAL = 2048  # a name, keys, signatures, sealed shares
_RECEIPT = 400  # digests of a query's messages: five, where it is a batch of its own
_MARGIN = 2**20  # headers, digests, and what Flower wraps around a message
_MOST = 2**31 - 1  # gRPC's own limit


def guarantee_lines(fixed: LedgerTerms) -> list[str]:
    """ε that a study cannot pass, as text: at which δ, for which unit, against whom."""
    public, coordinator = guaranteed_epsilon(fixed), guaranteed_coordinator_epsilon(fixed)
    told = "unbounded" if coordinator is None else f"ε={epsilon_text(coordinator)}"
    found = [
        f"guaranteed: ε={epsilon_text(public)} at δ={delta_text(fixed.delta)} for {fixed.protects}, "
        "against all who see the labels or the student",
        f"against the coordinator: {told}; it sees {fixed.coordinator.text()}",
    ]
    found += (each.warning for each in fixed.assumptions.each)
    if not fixed.private:
        found.append("not private: the noise is seeded; with private noise the same ε would hold")
    return found


def worst_epsilon(terms: Terms) -> tuple[float | None, float | None]:
    """The most that the study can cost at its δ: against all who see labels, and against the coordinator.

    What the ledger promises: whatever the answers are. None where the coordinator sees them without noise.

    Raises:
        InputError: terms that no mechanism has.
    """
    fixed = terms.ledger_terms(noise="as agreed", private=terms.seed is None)
    return guaranteed_epsilon(fixed), guaranteed_coordinator_epsilon(fixed)


def require_meaningful(terms: Terms, fixed: LedgerTerms) -> None:
    """Refuse a study whose guarantee means almost nothing, unless its terms say that it is meant.

    Raises:
        InputError: ε above 10 against the public, or none; the message says what to do.
    """
    if terms.privacy.allow_weak:
        return
    epsilon = guaranteed_epsilon(fixed)
    if epsilon is not None and epsilon <= EPSILON_ALARM:
        return
    raise InputError(
        f"ε={epsilon_text(epsilon)} at δ={delta_text(terms.delta)} against all who see labels promises "
        f"almost nothing: at most {EPSILON_ALARM:g} is meant, and nothing was asked. {terms.words.instead}. "
        "--allow-weak-privacy (privacy.allow_weak = true) runs it all the same"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSizes:
    """Bytes of the largest legitimate message each way, with a margin; `end` brings hospitals the student."""

    to_hospital: int
    to_coordinator: int
    end: int


def largest_messages(terms: Terms) -> MessageSizes:
    """What the largest message of a study under these terms can take.

    To a hospital that is the public pool (8 bytes a number, its file's type not being in the terms) with the
    encoder or the feature map, to the coordinator a batch of all the queries that the terms allow: votes as
    they leave without masks, or as many numbers.
    """
    shared = _MARGIN + _PER_HOSPITAL * terms.num_clients
    to_hospital = shared + len(terms.to_json())
    bounds, queries = terms.bounds, min(terms.pool_size, terms.max_queries)
    if terms.asks.reads_inputs:
        to_hospital += _NUMBER * terms.pool_size * math.prod(terms.image_shape)
    asked = _NUMBER * max(queries, bounds.rows)  # places of a question
    if terms.asks.gives:  # an entry of a public array for each number of an answer
        asked += _NUMBER * bounds.rows * bounds.columns
    receipt = _RECEIPT * queries
    to_hospital += asked + receipt + bounds.file
    to_coordinator = shared + (_NUMBER * bounds.rows * bounds.columns if terms.secure_sum else bounds.nbytes)
    return MessageSizes(
        to_hospital=min(to_hospital, _MOST),
        to_coordinator=min(to_coordinator, _MOST),
        end=min(shared + receipt + MOST_STUDENT, _MOST),
    )
