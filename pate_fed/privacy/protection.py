"""What a guarantee is of: the unit that is protected, whose noise is counted on, and on whose word ε rests.

Light: settings and terms import it before anything is computed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_count
from pate_fed.structure import check, setting
from pate_fed.structure.parts import PartIdentity

LEAST_PARTIES = 4
"""Hospitals below which no sum is formed: of three, two that pool what they know read the third's votes."""

QUORUM = 0.8
"""Least share of the parties that must answer, unless a study says otherwise."""

LEAST_SHARE_VARIANCE = 2
"""A hospital's share of noise, in votes squared: below it no bound is known (arXiv 2102.06387)."""

RECORD_UNIT, PATIENT_UNIT, HOSPITAL_UNIT = "record", "patient", "hospital"
UNITS = (RECORD_UNIT, PATIENT_UNIT, HOSPITAL_UNIT)
MEANING = {
    RECORD_UNIT: "one record; a patient with several is protected less",
    PATIENT_UNIT: "all records of one patient at a hospital together",
    HOSPITAL_UNIT: "all that a hospital gives",
}
"""What each unit means, wherever it is said: a record is one also where patients are named."""

ADJACENCIES = ("replace-one", "add-or-remove-one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Neighbouring relation: the unit that two data sets differ in, and how many votes it moves.

    `votes_moved` is the number of teachers that one unit can sway: K for a hospital with K teachers; for a
    record or patient 1 at each hospital, and 2 where another one in its place may teach another teacher.
    Where it is above 1 Gaussian RDP grows by its square and pure ε by itself. `hospitals` is how many a
    patient was at, at most.

    The unit "label" is for features that are public: one record's label is replaced (label DP).
    """

    unit: str = "record"
    adjacency: str = "replace-one"
    votes_moved: int = 1
    hospitals: int = 1

    def __post_init__(self) -> None:
        if self.unit not in (*UNITS, "label"):
            raise InputError(f"unit={self.unit!r}: must be one of {', '.join(UNITS)}")
        if self.adjacency not in ADJACENCIES:
            raise InputError(f"adjacency={self.adjacency!r}: must be one of {', '.join(ADJACENCIES)}")
        moved = check_count("votes_moved", self.votes_moved, least=1)
        if moved > 10**9:
            raise InputError(f"votes_moved={moved}: must be at most 10^9")
        hospitals = check_count("hospitals", self.hospitals, least=1)
        if hospitals > 1 and (self.unit != PATIENT_UNIT or hospitals > moved):
            raise InputError(f"hospitals={hospitals}: 1, or of a patient at most its {moved} votes, is meant")
        if self.unit == "label" and (self.adjacency, moved) != ("replace-one", 1):
            raise InputError("unit='label': one label is replaced, and moves one vote")
        # A NumPy number would be spelt differently in the ledger.
        object.__setattr__(self, "votes_moved", moved)
        object.__setattr__(self, "hospitals", hospitals)

    def to_dict(self) -> dict[str, Any]:
        """As ledgers have it: one hospital is not named, as in those of earlier versions."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("hospitals", 1)}

    @property
    def votes_vanish(self) -> bool:
        """Whether the unit's votes may appear or disappear whole, instead of moving from class to class.

        Only a hospital that joins or leaves takes its teachers along. A record that is added or removed
        changes the teachers that saw it, which go on voting.
        """
        return self.unit == "hospital" and self.adjacency == "add-or-remove-one"

    @property
    def l1(self) -> int:
        """L1 sensitivity of the totals, in votes."""
        return self.votes_moved if self.votes_vanish else 2 * self.votes_moved

    @property
    def l2_squared(self) -> int:
        """Squared L2 sensitivity of the totals: all moved votes may go from one class to one other."""
        return self.votes_moved**2 if self.votes_vanish else 2 * self.votes_moved**2

    @property
    def top(self) -> int:
        """Sensitivity of the largest total, in votes."""
        return self.votes_moved

    def text(self) -> str:
        """The unit and the adjacency as part of a sentence."""
        if self.unit == "label":
            return "one record's label replaced, where features are public"
        verb = "replaced" if self.adjacency == "replace-one" else "added or removed"
        votes = "one vote" if self.votes_moved == 1 else f"up to {self.votes_moved} votes"
        if self.votes_moved == 1:
            effect = "appears or disappears" if self.votes_vanish else "moves"
        else:
            effect = "appear or disappear" if self.votes_vanish else "move"
        where = "" if self.hospitals == 1 else f" at each of up to {self.hospitals:,} hospitals"
        return f"one {self.unit} {verb}{where} ({votes} of a query {effect})"


def to_a_patient(
    *, unit: str, adjacency: str, hospitals: int, epsilon: str | None, sees: str | None, private: bool
) -> str:
    """Whom ε protects, against whom, and what it does not, in one sentence that a patient understands.

    `hospitals` is how many a patient was at, at most; `epsilon` that against the public, None where nothing
    bounds it; `sees` what a coordinator sees that no ε bounds, None where one does; `private` whether the
    noise protects anyone.
    """
    if not private:
        return "Nobody is protected: who knows the seed of this study's noise can take the noise away again."
    if epsilon is None:
        return "Nobody is promised anything: no ε is known for what this study publishes."
    where = "at one of these hospitals" if hospitals == 1 else f"at up to {hospitals:,} of these hospitals"
    several = "two or more" if hospitals == 1 else f"more than {hospitals:,}"
    treated = f"someone who knows that you were treated at {several} of these hospitals can learn more"
    one, few = ("what it is", "whether it was used"), ("what they are", "whether they were used")
    what, change, but = {
        RECORD_UNIT: (
            *("one single record of yours", one),
            "someone who knows that several records are yours, at one hospital or more, can learn more",
        ),
        PATIENT_UNIT: (f"all your records {where} together", few, treated),
        HOSPITAL_UNIT: ("all records of one hospital, yours among them", few, treated),
        "label": ("the label of one single record of yours", one, "the rest of the record is not hidden"),
    }[unit]
    who = "Whoever gets what this study publishes" + (", and its coordinator," if sees is None else "")
    told = f"{who} can learn from it no more than ε = {epsilon} allows about {what}"
    told += f", {change[adjacency != ADJACENCIES[0]]}; but {but}"
    return f"{told}." if sees is None else f"{told}, and the coordinator sees {sees}, which no ε covers."


RECORD = Protection()
LABEL = Protection(unit="label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who is counted on where hospitals add the noise: `least_voters` in a sum, less the `colluders`."""

    num_clients: int
    least_voters: int
    colluders: int

    @classmethod
    def usual(cls, num_clients: int) -> Shares:
        """Those of a study of so many hospitals that sets neither quorum nor colluders."""
        return cls(
            num_clients=num_clients,
            least_voters=masked_voters(num_clients, QUORUM),
            colluders=usual_colluders(num_clients),
        )

    @property
    def honest(self) -> int:
        """Hospitals in every sum whose noise nobody knows."""
        return self.least_voters - self.colluders

    @property
    def least_sigma(self) -> float:
        """The least noise of a sum, in votes, of which every hospital's share is still large enough."""
        return math.ceil(math.sqrt(LEAST_SHARE_VARIANCE * self.honest) * 1e3) / 1e3


def masked_voters(num_clients: int, quorum: float) -> int:
    """Hospitals below which a masked batch gives nothing: the quorum, and two thirds in any case."""
    return max(math.ceil(quorum * num_clients), -(-2 * num_clients // 3))


def usual_colluders(num_clients: int) -> int:
    """Hospitals that may tell the coordinator their own noise where a study does not say: one in ten."""
    return max(1, num_clients // 10)


MECHANISM, FEATURE_MAP, TEACHER = "mechanism", "feature map", "teacher"

_ASSUMED = {
    MECHANISM: (
        "every ε rests on the privacy curve that {} claims for one query, and on its noise: pate_fed has not "
        "proven them"
    ),
    FEATURE_MAP: (
        "every ε rests on the word of {} that an input's features follow from that input alone: pate_fed "
        "cuts what each record adds, and has not proven that no record changes the features of others"
    ),
    TEACHER: (
        "every ε rests on the word of {} that a teacher follows from its own records alone: one process has "
        "several teachers, and pate_fed has not proven that the code passes nothing from one to another"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A part of the user's own, of a kind above, on whose word every ε of a study rests.

    Raises:
        InputError: another kind.
    """

    kind: str = setting(choices=tuple(_ASSUMED))
    part: PartIdentity

    def __post_init__(self) -> None:
        check(self)

    @property
    def warning(self) -> str:
        """What every ε of such a study must be read with, as a sentence without its full stop."""
        return _ASSUMED[self.kind].format(self.part.text)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All of a study's, in words; false where its ε rests on nobody's word."""

    each: tuple[Assumption, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.each)

    @property
    def names(self) -> tuple[str, ...]:
        """The code's names."""
        return tuple(one.part.name for one in self.each)

    @property
    def short(self) -> str:
        """Whose word it is, beside a single ε."""
        return f"claimed by {' and '.join(self.names)}, not proven"

    @property
    def warning(self) -> str:
        """All warnings as one sentence without its full stop."""
        return "; ".join(one.warning for one in self.each)

    @property
    def at_hospitals(self) -> tuple[Assumption, ...]:
        """Those about code that runs at hospitals: the ledger has a mechanism's own with its curve."""
        return tuple(one for one in self.each if one.kind != MECHANISM)

    @property
    def sources(self) -> list[dict[str, str | None]]:
        """Kind, name, version and digest of each, for JSON."""
        return [{"kind": one.kind, **asdict(one.part)} for one in self.each]
