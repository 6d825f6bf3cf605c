"""Terms of a ledger, and the ε that they guarantee: what no course of the study can pass.

How many queries are asked and answered depends on the votes, so what a run happened to spend is a reading,
and no bound that was fixed beforehand. The budget is one, held by the filter at one order (Feldman and Zrnic
2021); so is the cost of as many queries and labels as the terms allow: an ordinary composition, and tighter
by optimal control over the privacy loss, as the caps are fixed beforehand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, epsilon_text
from pate_fed.privacy.accounting import BudgetFilter
from pate_fed.privacy.bounds.control import CheckedQuery, capped_cost_epsilon, checked_epsilon
from pate_fed.privacy.bounds.cost import NOTHING, Cost, epsilon_of, in_parallel
from pate_fed.privacy.checks import check_count, check_delta
from pate_fed.privacy.label_dp import LABEL_MECHANISMS, LabelRelease, LabelResponse
from pate_fed.privacy.mechanisms.class_sums import CLASS_SUM_MECHANISMS, HeldOutCounts, InRounds
from pate_fed.privacy.mechanisms.data_dependent import SanitiseSettings
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax
from pate_fed.privacy.mechanisms.events import PLAIN, CoordinatorView, Mechanism, PrivacyEvent
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Voting
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.privacy.protection import PATIENT_UNIT, Assumption, Assumptions, Protection
from pate_fed.structure import PART_NAME, from_plain, to_plain

# Every mechanism by its name, as studies and ledgers know it: ours, and by module:attribute others'.


MECHANISMS: dict[str, type[Voting]] = {
    kind.name: kind for kind in (LNMax, GNMax, ConfidentGNMax, InteractiveGNMax, DistributedGNMax)
}


def mechanism_from_parameters(name: str, parameters: dict[str, Any]) -> Mechanism:
    """The mechanism with that name and these parameters, as a ledger keeps them.

    One of somebody else's is what its row says: no code of it is loaded (`own.check_claim` does that).

    Raises:
        InputError: an unknown name, or parameters that are not the mechanism's.
    """
    if isinstance(name, str) and PART_NAME.fullmatch(name) is not None:
        return OwnMechanism.from_parameters(name, parameters)
    labels = LABEL_MECHANISMS | CLASS_SUM_MECHANISMS
    kind: type[Any] | None = MECHANISMS.get(name) or labels.get(name)
    if kind is None:
        raise InputError(f"mechanism={name!r}: must be one of {', '.join(MECHANISMS)}")
    names = {entry.name for entry in fields(kind)}
    if set(parameters) != names:
        raise InputError(f"mechanism={name!r} has the parameters {', '.join(sorted(names))}")
    made: Mechanism = kind(**parameters)
    return made


_CHARGED = "outcome"
_MOST_TOTALS = 1_000_000


def is_digest(value: object) -> bool:
    """Whether the value is a SHA-256 digest in lower-case hex."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerms:
    """What is fixed before the first vote: the ledger's first row, which every charge must keep to.

    `study_digest` is the SHA-256 hex of the study's terms, `epsilon` the budget or None, `mechanisms` those
    that may be charged, `noise` and `private` the noise source's, `coordinator` what the coordinator sees
    (with hospital noise `survivors` is the least number in a sum). With `sanitise` a data-dependent ε will be
    released too, once; it is paid here, before the first query, whether or not it is drawn in the end.
    `most_asked` and `most_answered` are the study's caps on queries and labels. Where all mechanisms respond
    label by label, no record is in two rows, δ may be 0, and rows compose in parallel. Every query is charged
    by its outcome. Counts of held-out records are the last row, and compose in parallel with all sums.
    `assumed` is code beside the records on whose word every ε rests. `by_patient` is of earlier versions,
    whose unit record meant a patient in class sums where a table named these.
    """

    study_digest: str
    delta: float
    epsilon: float | None = None
    mechanisms: tuple[Mechanism, ...]
    protection: Protection
    noise: str
    private: bool
    coordinator: CoordinatorView = PLAIN
    sanitise: SanitiseSettings | None = None
    most_asked: int | None = None
    most_answered: int | None = None
    assumed: tuple[Assumption, ...] = ()
    by_patient: bool = False

    def __post_init__(self) -> None:
        if not is_digest(self.study_digest):
            raise InputError(
                f"study_digest={self.study_digest!r}: must be a SHA-256 digest in lower-case hex"
            )
        if not isinstance(self.by_patient, bool):
            raise InputError(f"by_patient={self.by_patient!r}: must be true or false")
        if not self.mechanisms:
            raise InputError("mechanisms=(): a ledger needs at least one mechanism to charge")
        if self.delta != 0 or not self.each_once:
            check_delta(self.delta)
        if self.each_once and len({each.cost_asked(self.protection) for each in self.mechanisms}) > 1:
            raise InputError("mechanisms that respond label by label must have one ε")
        if sum(each.held_out for each in self.mechanisms) > 1:
            raise InputError("held-out records are counted by one mechanism")
        if self.counts is not None and self.epsilon is not None:
            raise InputError("counts of held-out records go with caps; a filter has no part in them")
        if self.epsilon is not None:
            BudgetFilter(self.epsilon, self.delta, self.protection, self.reserved)
        for name in ("most_asked", "most_answered"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least=1)
        for mechanism in self.mechanisms:
            mechanism.cost(1, 1, self.protection)  # refuses what it has no bound for
        self.coordinator.cost(1, self.protection, num_classes=self.mechanisms[0].num_classes)

    @property
    def reserved(self) -> Cost:
        """Cost paid before the first query: the sanitised release, where the study has one."""
        return Cost() if self.sanitise is None else self.sanitise.cost()

    @property
    def budget(self) -> BudgetFilter | None:
        """The filter that never lets the budget be passed; None where there is no budget.

        It need not be asked where the caps keep the budget (`caps_keep_budget`).
        """
        if self.epsilon is None:
            return None
        return BudgetFilter(self.epsilon, self.delta, self.protection, self.reserved)

    @property
    def caps_keep_budget(self) -> bool:
        """Whether the caps alone keep the budget, by optimal control: the filter then stops nothing before.

        Caps are fixed beforehand, so all that fits them is within ε whatever the filter, which works at one
        Rényi order, has room for.
        """
        if self.epsilon is None:
            return False
        most = caps_epsilon(self)
        return most is not None and most <= self.epsilon

    @property
    def assumptions(self) -> Assumptions:
        """Code of others on whose word every ε rests: mechanisms that claim their curve, and `assumed`."""
        own = (each.claim.assumption for each in self.mechanisms if isinstance(each, OwnMechanism))
        return Assumptions((*own, *self.assumed))

    @property
    def protects(self) -> str:
        """The unit and the adjacency as part of a sentence, and what of a release one unit moves.

        With the unit record each record is cut by itself, so k records of one patient move the sums k times
        as far: group privacy, which for this noise is that of noise k times smaller.
        """
        protection = self.protection
        verb = "replaced" if protection.adjacency == "replace-one" else "added or removed"
        if isinstance(first := self.mechanisms[0], OwnMechanism) and not first.num_teachers:
            return f"one {protection.unit} {verb}"
        if not self.sums:
            return protection.text()
        if protection.unit == PATIENT_UNIT:
            cut = "all records of one patient at one hospital together"
            if protection.hospitals > 1:
                cut = (
                    f"all records of one patient together at each of up to {protection.hospitals:,} hospitals"
                )
        elif protection.unit != "record":
            cut = f"cut to {protection.votes_moved:,} records' length"
        elif self.by_patient:
            cut = "all records of one patient at one hospital together"
        else:
            cut = "each record by itself: k records of one patient are protected as by noise k times smaller"
        where = "the sums" + ("" if self.counts is None else " or, if held out, one count")
        return f"one {protection.unit} {verb} (its features in {where}, {cut})"

    @property
    def sums(self) -> bool:
        """Whether features summed by class are what is released."""
        return any(mechanism.name in CLASS_SUM_MECHANISMS for mechanism in self.mechanisms)

    @property
    def counts(self) -> HeldOutCounts | None:
        """The mechanism by which held-out records are counted, where there is one."""
        return next((each for each in self.mechanisms if isinstance(each, HeldOutCounts)), None)

    @property
    def most_summed(self) -> int | None:
        """The cap on queries without those of held-out records' counts."""
        kept = 0 if self.counts is None else self.counts.labels
        return None if self.most_asked is None else max(0, self.most_asked - kept)

    @property
    def each_once(self) -> bool:
        """Whether every release responds label by label, so that no record may be in two of them."""
        return all(isinstance(mechanism, LabelResponse) for mechanism in self.mechanisms)

    def plus(self, cost: Cost, event: PrivacyEvent) -> Cost:
        """The cost of all releases with one more: they add up, unless it is about other records."""
        if event.mechanism.held_out:
            return in_parallel(cost, event.cost())
        return (self.reserved if self.each_once else cost) + event.cost()

    def refuse_again(self, places: Sequence[NDArray[np.int64]]) -> None:
        """Refuse a record that is in two rows, or twice in one, where each may be there once.

        Shapes: `places` int64 (asked,) of each row.

        Raises:
            IntegrityError: there is one.
        """
        if not self.each_once:
            return
        every = np.concatenate(places)
        if len(np.unique(every)) != len(every):
            raise IntegrityError("a record's label is asked about a second time")

    def refuse(self, event: PrivacyEvent) -> None:
        """Refuse an event that is not what the terms fix.

        Raises:
            IntegrityError: another mechanism, parameter, protection, noise or coordinator.
        """
        for what, fixed, given in (
            ("protection", self.protection, event.protection),
            ("noise", (self.noise, self.private), (event.noise, event.private)),
        ):
            if fixed != given:
                raise IntegrityError(f"the {what} of a release is not the one in the ledger's terms: {given}")
        if event.mechanism not in self.mechanisms:
            raise IntegrityError(f"the ledger's terms allow no {event.mechanism}")
        if not _keeps_to(event.coordinator, self.coordinator):
            raise IntegrityError("the coordinator saw other than what the ledger's terms say")
        counts = isinstance(event.mechanism, LabelRelease) and not self.each_once
        rounds = isinstance(event.mechanism, InRounds | HeldOutCounts)
        whole = event.mechanism.parameters()["labels"] if rounds else self.most_asked
        if counts and event.asked != whole:
            raise IntegrityError(
                "counts and sums are released once, or once a round, about all public inputs"
            )

    def refuse_out_of_turn(self, before: Iterable[PrivacyEvent], event: PrivacyEvent) -> None:
        """Refuse counts of held-out records before all sums, what follows them, and sums in their place.

        Raises:
            IntegrityError: it is such. Their cost is known as that of the last row alone.
        """
        if self.counts is None:
            return
        events = [*before, event]
        if any(each.mechanism.held_out for each in events[:-1]):
            raise IntegrityError("held-out records were counted: nothing is released after that")
        asked, most = sum(each.asked for each in events if not each.mechanism.held_out), self.most_summed
        if most is not None and (asked > most or (event.mechanism.held_out and asked < most)):
            raise IntegrityError(f"{asked} queries of sums: the ledger's terms have {most}, and then counts")

    def refuse_beyond_caps(self, *, asked: int, answered: int) -> None:
        """Refuse totals of queries and labels beyond the caps.

        Raises:
            IntegrityError: they are.
        """
        for what, most, total in (
            ("queries", self.most_asked, asked),
            ("labels", self.most_answered, answered),
        ):
            if most is not None and total > most:
                raise IntegrityError(f"{total} {what} in all: the ledger's terms allow {most}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; `assumed` only where code is named, and `by_patient` where patients are."""
        named: dict[str, Any] = {}
        if self.assumed:
            named["assumed"] = [to_plain(each) for each in self.assumed]
        if self.by_patient:
            named["by_patient"] = True
        return named | {
            "charged": _CHARGED,
            "study_digest": self.study_digest,
            "delta": float(self.delta),
            "epsilon": None if self.epsilon is None else float(self.epsilon),
            "mechanisms": [_mechanism_dict(mechanism) for mechanism in self.mechanisms],
            "protection": self.protection.to_dict(),
            "noise": self.noise,
            "private": bool(self.private),
            "coordinator": asdict(self.coordinator),
            "sanitise": None if self.sanitise is None else asdict(self.sanitise),
            "most_asked": self.most_asked,
            "most_answered": self.most_answered,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LedgerTerms:
        """Terms from plain values.

        Raises:
            KeyError, TypeError, InputError: they are no terms.
            IntegrityError: a ledger of an earlier version, which charged noisy totals.
        """
        if values.get("charged") != _CHARGED:
            raise IntegrityError(
                "begun by an earlier version, which charged noisy totals; go on with that version, or begin "
                "a new study"
            )
        made = [mechanism_from_parameters(m["name"], m["parameters"]) for m in values["mechanisms"]]
        return cls(
            **{
                **{name: value for name, value in values.items() if name != "charged"},
                "mechanisms": tuple(made),
                "protection": Protection(**values["protection"]),
                "coordinator": CoordinatorView(**values["coordinator"]),
                "assumed": tuple(
                    from_plain(Assumption, each, where="the ledger's terms")
                    for each in values.get("assumed", ())
                ),
                "sanitise": None if values["sanitise"] is None else SanitiseSettings(**values["sanitise"]),
            }
        )


def guaranteed_epsilon(terms: LedgerTerms) -> float | None:
    """ε against the student and the public at the terms' δ, rounded up; None where nothing bounds it."""
    # Both hold, so the smaller does; what was spent is no bound, as it depends on the votes.
    bounds = [] if terms.epsilon is None else [terms.epsilon]
    most = caps_epsilon(terms)
    return min(bounds if most is None else [*bounds, most], default=None)


def caps_epsilon(terms: LedgerTerms) -> float | None:
    """ε of all that the caps allow against the student and the public; None where there are none."""
    most, query = guaranteed_cost(terms), checked_query(terms)
    if most is None:
        return None
    found = capped_cost_epsilon(most, terms.delta)
    if query is None or terms.most_asked is None:
        return found
    return min(found, checked_epsilon(query, terms.most_asked, terms.delta))


def checked_query(terms: LedgerTerms) -> CheckedQuery | None:
    """A query, bit and winner together, where the coordinator sees each vector of votes, and checks it.

    None elsewhere: under masks totals may be none of honest votes, and no alarm may tell. Nor of so many
    teachers, or an unknown number, that every total from 0 to it would fill the memory: charged apart, bit
    and winner cost no less.
    """
    mechanism, protection = terms.mechanisms[0], terms.protection
    if not isinstance(mechanism, ConfidentGNMax) or isinstance(mechanism, InteractiveGNMax):
        return None
    if len(terms.mechanisms) > 1 or terms.coordinator != PLAIN or terms.sanitise is not None:
        return None
    if protection.votes_vanish or mechanism.num_teachers > _MOST_TOTALS:
        return None
    return CheckedQuery(
        threshold=math.ceil(mechanism.threshold),
        sigma1=float(mechanism.sigma1),
        sigma2=float(mechanism.sigma2),
        teachers=mechanism.num_teachers,
        votes=protection.votes_moved,
        two=mechanism.num_classes == 2,
    )


def guaranteed_cost(terms: LedgerTerms) -> Cost | None:
    """The most that the caps allow against the student and the public; None where there are none.

    It adds up with the costs of other studies. So does a budget's, which is RDP at the order of its filter.
    """
    if terms.most_asked is None or terms.most_answered is None:
        return None
    # A set: see `_most`.
    most = {
        _most(mechanism, terms, terms.most_summed or 0, terms.most_answered)
        for mechanism in terms.mechanisms
        if not mechanism.held_out
    }
    found, counts = sum(most, terms.reserved), terms.counts
    return found if counts is None else in_parallel(found, counts.cost_asked(terms.protection))


def _most(mechanism: Mechanism, terms: LedgerTerms, asked: int, answered: int) -> Cost:
    """Cost of one mechanism that gets all queries and labels.

    The caps hold for all mechanisms together, so those of equal cost count once, however they share.
    """
    if mechanism.answers_all:
        asked = min(asked, answered)
    return mechanism.cost(asked, min(asked, answered), terms.protection)


def guaranteed_coordinator_epsilon(terms: LedgerTerms) -> float | None:
    """ε against the coordinator, with the fewest hospitals in every sum; None where nothing bounds it."""
    if terms.coordinator.sees_release:
        return guaranteed_epsilon(terms)
    cost = guaranteed_coordinator_cost(terms)
    return None if cost is None else epsilon_of(cost, terms.delta)


def guaranteed_coordinator_cost(terms: LedgerTerms) -> Cost | None:
    """The most that the caps allow against the coordinator; None where nothing bounds it."""
    if terms.coordinator.sees_release:
        return guaranteed_cost(terms)
    if terms.most_asked is None:
        return None
    classes = terms.mechanisms[0].num_classes
    cost = terms.coordinator.cost(terms.most_asked, terms.protection, num_classes=classes)
    return None if cost is None else NOTHING + cost


def guarantee_text(terms: LedgerTerms) -> str:
    """What fixes the guarantee, as text: the budget, the caps, or both."""
    if terms.each_once:
        return "the mechanism, by which each record's label is answered about once"
    if terms.sums:
        first, most = terms.mechanisms[0], terms.most_summed
        often = "once"
        if isinstance(first, InRounds) and most is not None:
            often = f"at most {counted(-(-most // first.labels), 'time')}"
        if terms.counts is not None:
            often += ", and counts of other records once"
        return f"the mechanism, by which sums over all hospitals are released {often}"
    caps = f"at most {terms.most_asked} queries and {terms.most_answered} labels"
    known = terms.most_asked is not None and terms.most_answered is not None
    if terms.epsilon is None:
        return caps if known else "nothing: neither a budget nor a number of queries was set"
    budget = f"the budget ε={epsilon_text(terms.epsilon)}"
    return f"{budget}, and {caps}" if known else budget


def _mechanism_dict(mechanism: Mechanism) -> dict[str, Any]:
    return {"name": mechanism.name, "parameters": mechanism.parameters()}


def _keeps_to(seen: CoordinatorView, fixed: CoordinatorView) -> bool:
    if fixed.survivors is None or seen.survivors is None:
        return seen == fixed
    same = (seen.kind, seen.sigma_party, seen.colluders) == (fixed.kind, fixed.sigma_party, fixed.colluders)
    return same and seen.survivors >= fixed.survivors
