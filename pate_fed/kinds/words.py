"""What a kind says in words of a study: to hospitals before it, to readers of its report after it.

A kind gives a `Words` of its own; what it leaves as it is here holds for every kind. Pages, reports and
commands read nothing else, so none of them asks which kind a study is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.format import counted
from pate_fed.privacy.protection import MEANING, PATIENT_UNIT
from pate_fed.secure_sum import in_league, shape
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from pate_fed.data import Schema
    from pate_fed.kinds.terms import Terms

Facts = tuple[tuple[str, str], ...]
"""Names, each with a sentence or a value."""

ALSO = (
    "The hospital's name, its public keys, that it agrees, and a code where it refuses. No record, no "
    "model, no file name, no text of an error."
)
_MOST_NAMES = 60  # of columns or classes that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One who could try to learn about a patient: what it sees, what is kept from it, and by what.

    `bounded` is False where no ε is stated against it.
    """

    who: str
    sees: str
    hidden: str
    by: str
    bounded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AtHome:
    """Who has the records, what stays there, what goes to the coordinator, and what that one releases."""

    name: str
    holds: str
    sends: str
    released: str


class Words(ABC):
    """A kind's words on a study under `terms`.

    `kind` is what is released, `answers` what a hospital gives, both in the plural; `at_home` is what nobody
    else ever sees. `label` ends the sentence on a table's label.
    """

    kind: ClassVar[str]
    answers: ClassVar[str]
    at_home: ClassVar[str] = "Records"
    label: ClassVar[str] = "which is asked about"
    masked: ClassVar[str] = "who said what"  # what masks hide
    rows: ClassVar[str] = "queries"  # what a question is about, in the plural
    shown: ClassVar[tuple[str, str]] = ("answer", "its first rows")  # an answer, and where what is shown is
    made_of: ClassVar[str] = ""  # what inputs get labels from, where nobody is asked about them
    prepares: ClassVar[bool] = True  # whether hospitals get ready before they answer
    labels_on_ledger: ClassVar[bool] = True  # whether a row has the labels that it released
    brings_student: ClassVar[bool] = True  # whether a student comes to the hospitals
    figures_of_answers: ClassVar[bool] = False  # whether a simulation has figures of private answers

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @property
    def target(self) -> str:
        """What is told where it is a number, with its range, or several labels; empty of classes."""
        table = getattr(self.terms, "table", None)  # a study of private labels has none
        if table is not None and self.several:
            return f"{len(table.labels)} yes/no labels"
        if table is None or table.target_range is None:
            return ""
        low, high = table.target_range
        return f"{table.label} from {low:.15g} to {high:.15g}"

    @property
    def several(self) -> bool:
        """Whether several labels are told."""
        table = getattr(self.terms, "table", None)
        return table is not None and bool(table.labels)

    @property
    def score(self) -> str:
        """What says first how good the student is."""
        return "mean AUC" if self.several else "R²" if self.target else "accuracy"

    @property
    def true_ones(self) -> str:
        """What an input has to have to test a student that tells no class; empty where it tells one."""
        both = "all true labels, both yes and no of one," if self.several else "true numbers that differ"
        return both if self.target else ""

    @property
    def outcomes(self) -> str:
        """What is told apart, in a few words."""
        return self.target or f"{self.terms.num_classes} classes"

    # Before a study: the pages that a hospital agrees to.

    @property
    def reads(self) -> Facts:
        """What of a hospital's records is read."""
        terms = self.terms
        classes = listed(terms.classes) if terms.classes else f"{terms.num_classes} without names"
        if terms.table is None:
            size = "×".join(map(str, terms.image_shape))
            return (("images", f"Images of {size} and the class of each."), ("classes", classes))
        table = terms.table
        found: Facts = (
            ("columns", f"{counted(len(table.columns), 'column')}, and no other: {listed(_columns(table))}"),
            ("label", f"The column {table.label}, {self.label}."),
            ("classes", classes),
        )
        if table.target_range is not None:
            low, high = table.target_range
            told = f"A number between {low:.15g} and {high:.15g}. One beyond that counts as the nearer end."
            found = (*found[:2], ("target", told))
        if table.labels:
            names = ", ".join(f"{name} ({no} for no, {yes} for yes)" for name, (no, yes) in table.labels)
            found = (*found[:1], ("labels", f"{len(table.labels)} columns, {self.label}: {names}."))
        if table.patient is None:
            return found
        one = f"The column {table.patient} says which rows are one patient's. It is not learnt from."
        one += "" if terms.names_patients else " Each row counts by itself."
        return (*found, ("patient", one))

    @property
    def unit(self) -> str:
        """Whom ε is stated for, and what that means."""
        privacy = self.terms.privacy
        meant, most = MEANING.get(privacy.unit, "one record's label"), privacy.hospitals_moved
        if privacy.unit != PATIENT_UNIT:
            return meant
        at = "one of these hospitals only" if most == 1 else f"up to {most:,} of these hospitals"
        return f"{meant}, for patients who were at {at}"

    @property
    def trains(self) -> Facts:
        """What is trained at a hospital."""
        return (("none", "Nothing is trained at your hospital."),)

    @property
    @abstractmethod
    def leaves(self) -> Facts:
        """What leaves a hospital, and how."""

    @property
    @abstractmethod
    def sees(self) -> Facts:
        """What the coordinator, other hospitals and the public see of it."""

    @property
    def protects(self) -> str:
        """The unit and the adjacency as part of a sentence."""
        terms = self.terms
        return terms.ledger_terms(noise="as agreed", private=terms.seed is None).protects

    @property
    @abstractmethod
    def caps(self) -> Facts:
        """How much is asked and released at most."""

    @property
    def limits(self) -> Facts:
        """The caps, and how many hospitals must answer."""
        terms = self.terms
        counts = f"At least {terms.least_clients} of {terms.num_clients} must answer, or nothing is released."
        return (*self.caps, ("hospitals", counts))

    @property
    def values(self) -> dict[str, Any]:
        """What of it a program reads on the page, by names of the kind's own."""
        return {self.terms.asks.kind: to_plain(self.terms.asks)}

    @property
    def labels(self) -> int | None:
        """Labels that are released at most; None where nothing caps them."""
        return min(self.terms.labels, self.terms.max_queries)

    @property
    @abstractmethod
    def asked(self) -> str:
        """What is asked at most, in a few words."""

    @property
    def asked_of_pool(self) -> str:
        """The same, before "of a pool of …"."""
        return self.asked

    @abstractmethod
    def together(self, accuracy: float) -> Iterator[str]:
        """What to expect of all hospitals where a model of one is right so often."""

    @property
    def at_once(self) -> int:
        """Queries that a policy counts of the one answer that there is; 0 where it counts as they come."""
        return 0

    @property
    def instead(self) -> str:
        """What to do where the guarantee means almost nothing."""
        return "Give a smaller --epsilon"

    def given(self, rows: int, *, left: bool) -> str:
        """What a hospital gave that leaves the study after so many `rows`; `left`: anything left it."""
        return f"answers to {counted(rows, 'query')}"

    def so_far(self, *, asked: int, answered: int) -> str:
        """How much was asked and released, and how much may be."""
        terms = self.terms
        return f"{answered:,} of {terms.labels:,} after {asked:,} of {terms.max_queries:,} queries"

    # After it: the report, the terminal, and whoever watches.

    @property
    def step(self) -> tuple[int, str]:
        """How many inputs one of what is asked in turn is about, and what it is called, in the plural."""
        return 1, "queries"

    @property
    def released(self) -> str:
        """What the labels are of which reports give the number."""
        return "labels released"

    def share(self, *, asked: int, answered: int) -> str:
        """Of what the released labels are a part."""
        return f"of {asked:,} queries asked" + (f" ({answered / asked:.0%})" if asked else "")

    @property
    def mechanism(self) -> str:
        """The mechanism's name."""
        return self.terms.asks.mechanism

    @property
    def quorum(self) -> str:
        """How many hospitals had to answer."""
        return f"quorum {self.terms.least_clients:,}"

    @abstractmethod
    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """What was done, for the board of a hospital; `inputs` is what the pool holds, in the plural."""

    @abstractmethod
    def left(self, inputs: str) -> str:
        """What left a hospital, for its board."""

    @property
    def glossary(self) -> Facts:
        """Words of this kind alone."""
        return ()

    @property
    def records_apart(self) -> bool:
        """Whether several records of a patient at one hospital are protected less than one."""
        return not self.terms.names_patients

    def why_large(self, answered: int) -> str:
        """Why ε is as large as it is, and what brings it down."""
        return "A smaller --epsilon brings it down."

    def settings(self, records: str) -> Facts:
        """Hospitals and mechanism as names and values; `records` says whose the private ones are."""
        terms = self.terms
        hospitals = f"{terms.num_clients:,}, at least {terms.least_clients:,} in every answer"
        return (("Hospitals", hospitals), ("Private records", records), ("Mechanism", self.mechanism))

    @property
    def way(self) -> tuple[str, str]:
        """How answers reach the coordinator: a name, and how; empty where there is nothing to say."""
        return f"{self.answers.capitalize()} reach the coordinator", self._way()

    def _way(self) -> str:
        return "masked: only their sum can be read" if self.terms.secure_sum else "as they are"

    @property
    def stop(self) -> str:
        """Where the study stops before its budget does; empty where it asks once."""
        return ""

    def against(self, noise: str, sees: str) -> list[Against]:
        """The public, the coordinator, which `sees` so much, and other hospitals; `noise` is its source."""
        hidden, by = self._from_coordinator()
        coordinator = Against(who="The coordinator", sees=sees, hidden=hidden, by=by)
        return [self._public(noise), coordinator, self._other_hospitals()]

    @abstractmethod
    def _public(self, noise: str) -> Against: ...

    def _from_coordinator(self) -> tuple[str, str]:
        """What is kept from the coordinator, and by what."""
        own = f"ne hospital's own {self.answers}. {self.at_home}"
        if not self.terms.secure_sum:
            return self.at_home, f"trust alone: no noise is added before it sees the {self.answers}"
        if not self.terms.adds_noise:
            by = f"masks hide {self.masked}, {masks_hold(self.terms)}; the exact sum is shown"
            return f"O{own}", by
        return f"Exact totals, o{own}", noise_and_masks(self.terms)

    def _other_hospitals(self) -> Against:
        colluders = self.terms.secrecy.colluders  # None: they add no noise
        by = "the same noise, as long as they do not share in what the coordinator sees"
        if colluders is not None:
            some = counted(colluders, "hospital")
            by = f"the noise of the others: up to {some} may pool their own shares of it"
        return Against(
            who="The other hospitals",
            sees=f"The same as the public, and their own {self.answers}",
            hidden=f"Another hospital's {self.answers}. {self.at_home}",
            by=by,
            bounded=colluders != 0,
        )

    @property
    @abstractmethod
    def home(self) -> AtHome:
        """Where records are, for the picture of who sees what."""

    def summary(self, hospitals: str, *, asked: int, answered: int, apart: bool) -> Facts:
        """What took part and what came of it; `apart`: hospitals are more than places of one table."""
        return (("hospitals", hospitals), ("queries", f"{asked:,} asked, {answered:,} answered"))

    def question(self, rows: int) -> str:
        """A question of so many rows."""
        return counted(rows, "query") if rows else "a batch"


def listed(names: list[str] | tuple[str, ...]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more (--format json has all)" if more > 0 else "")


def _columns(table: Schema) -> list[str]:
    ranges = {name: f" ({low:g} to {high:g})" for name, (low, high) in table.ranges}
    return [
        f"{name} ({listed(values)})" if values else name + ranges.get(name, "")
        for name, values in table.columns
    ]


def masks_hold(terms: Terms) -> str:
    """Against how many hospitals: t shares open a secret, and 2t - n suffice a coordinator that lies."""
    clients, least = terms.num_clients, terms.least_clients
    honest, lying = least - 1, max(0, in_league(clients, least, terms.colluders))
    near = shape(clients, least, terms.colluders)[0] - 1
    if near + 1 < clients:
        many = counted(lying, "hospital")
        return f"while at most {many} pool what they know with it (each masks with {near} others)"
    return (
        f"while at most {counted(honest, 'hospital')} pool what they know with it "
        f"({lying:,} where it breaks the protocol)"
    )


def noise_and_masks(terms: Terms) -> str:
    """What keeps sums from the coordinator where hospitals add the noise."""
    return (
        f"noise and masks added at home; the masks hold {masks_hold(terms)}; up to "
        f"{counted(terms.colluders, 'hospital')} may tell it their own noise"
    )


def fixed_by(terms: Terms) -> str:
    """What fixes ε before the first question."""
    caps = f"at most {counted(terms.max_queries, 'query')} and {counted(terms.labels, 'label')}"
    return caps if terms.privacy.epsilon is None else f"the budget and {caps}"
