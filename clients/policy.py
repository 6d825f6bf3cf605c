"""A hospital's policy.toml: which studies it takes part in, how much it answers, what it may cost.

The default protects: votes leave masked only, class sums masked and with this hospital's own noise, a study
has caps, a batch counts three hospitals, and its noise is not seeded. Whoever agrees to more says so in a
line of the file. Every refusal has a reason from the fixed list; the sentence with the figures stays in the
hospital's own log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pate_fed.disk import read_toml
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.rounds import ScoredTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.privacy import protection
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import Demands, read_fingerprint, threshold_for
from pate_fed.structure import SettingError, check, from_plain, setting

POLICY_FILE = "policy.toml"  # beside a hospital's keys it holds without being named

# Which class sums leave: none, those with this hospital's noise in them, or also those without.
NO_SUMS, NOISY_SUMS, EXACT_SUMS = "no", "noisy", "exact"

Demand = tuple[Refusal, bool, str]
"""Why a study would be refused, whether the demand holds, and a sentence with what would help."""

_LIMIT = "a finite number of at least 0"
_REPLACED = (
    "no longer a key of a policy: votes leave masked only, unless plain_votes = true; take the line out"
)


def _fingerprints(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        return value
    return {name: read_fingerprint(text) for name, text in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a hospital allows; None and empty lists, but of code, allow everything, other defaults protect.

    Code is named as module:attribute; without a line here, none of others runs beside the records, and of no
    kind or mechanism is its word for ε taken. ε rests on the word of feature maps, too, and of teachers where
    a hospital has several (`Terms.assumptions`). ε are the most that a study can cost, at its own δ; where
    one is limited, so is δ, by `delta`: the coordinator names it, and at a large one any ε is small.

    What an ε means is the coordinator's choice, too: with the same noise it is another for other neighbours.
    Where hospitals add the noise, ε must reckon with `least_colluders` of them, or more, that tell the
    coordinator their own; without that line, with all that are not confirmed. No hospital sees where else its
    patients were: ε must hold for one at `least_hospitals_per_patient` hospitals.

    Queries are counted in a state directory, which is one study's: only the totals of ε bind all together.

    "noisy" `class_sums` have this hospital's own noise, so that nobody ever reads an exact sum; of "exact"
    ones the coordinator reads the sum of all hospitals (how many of all records have a class and a feature).

    In a secure summation `least_hospitals` is also the smallest roster and sum. Whoever is not `trusted` may
    be the coordinator's invention; no name among them may have another key.
    """

    studies: tuple[str, ...] = setting((), help="names of studies, or digests of terms; none: any study")
    pools: tuple[str, ...] = setting((), help="SHA-256 of public pools; none: any pool")
    classes: tuple[str, ...] = setting((), help="names of classes that are voted on; none: any")
    teachers: tuple[str, ...] = setting(
        (), help="code of others that may run here, as module:attribute; of several teachers ε takes its word"
    )
    feature_maps: tuple[str, ...] = setting(
        (),
        help="the same, for features of class sums; ε takes its word that they follow from one input alone",
    )
    kinds: tuple[str, ...] = setting(
        (), help="kinds of question of others, by name or SHA-256, that may read records; ε takes their word"
    )
    aggregators: tuple[str, ...] = setting((), help="mechanisms of others whose word for ε is taken")
    most_queries: int | None = setting(None, low=0, help="public inputs answered in one study")
    most_queries_a_day: int | None = setting(
        None, low=0, help="the same in a day; another study on that day has as many again"
    )
    least_hospitals: int = setting(3, low=0, help="hospitals that every released batch must count")
    plain_votes: bool = setting(False, help="the coordinator may see this hospital's votes, one by one")
    uncapped: bool = setting(False, help="the study may ask about every public input")
    epsilon_public: float | None = setting(
        None, low=0, allowed=_LIMIT, help="the most that a study can cost against the public, at its own δ"
    )
    epsilon_coordinator: float | None = setting(
        None, low=0, allowed=_LIMIT, help="the same against the coordinator; without a bound it is refused"
    )
    epsilon_public_total: float | None = setting(
        None, low=0, allowed=_LIMIT, help="the most that all studies together can cost, at delta"
    )
    epsilon_coordinator_total: float | None = setting(
        None, low=0, allowed=_LIMIT, help="the same against all coordinators together"
    )
    delta: float = setting(1e-3, low=0, allowed=_LIMIT, help="the largest δ where an ε is limited")
    units: tuple[str, ...] = setting(
        (),
        choices=(*protection.UNITS, protection.LABEL.unit),
        help="whom the ε of a study may protect, a record being one also where patients are named; none: any",
    )
    adjacencies: tuple[str, ...] = setting(
        (), choices=protection.ADJACENCIES, help="what neighbours may differ in, for that ε; none: any"
    )
    least_colluders: int | None = setting(
        None,
        low=0,
        help="hospitals that tell the coordinator their own noise, with which ε must reckon at least; none: "
        "all that are not in [trusted]",
    )
    least_hospitals_per_patient: int = setting(
        1,
        low=1,
        help="hospitals that ε must let one patient have been at, or more; above 1 it must be for a patient",
    )
    seeded_noise: bool = setting(False, help="take part in rehearsals whose noise protects nobody")
    class_sums: str = setting(
        NOISY_SUMS,
        choices=(NO_SUMS, NOISY_SUMS, EXACT_SUMS),
        help="class sums leave never, with this hospital's noise, or also without; so do kinds of others",
    )
    most_sums: int | None = setting(
        None, low=0, help="times that class sums leave in one study; none: any, as its ε is of all of them"
    )
    counts: bool = setting(
        False,
        help="held-out records may be counted once after class sums; `pate-fed hospital accept` writes true "
        "after a yes to a study that asks it",
    )
    every_signature: bool = setting(False, help="all hospitals of a masked sum sign who is in it")
    least_confirmed: int | None = setting(
        None,
        low=0,
        help="hospitals of [trusted] that a masked sum must be over; none: as many as protect, 2 at least",
    )
    trusted: Mapping[str, str] = setting(
        factory=dict,
        read=_fingerprints,
        allowed="a table of hospitals' names and fingerprints",
        help="hospitals confirmed by telephone, name and fingerprint; `pate-fed hospital accept` adds them",
    )

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def load(cls, path: Path | None) -> Policy:
        """From a policy.toml; without one, the default.

        Raises:
            InputError: the file cannot be read, or a key or value is none that a policy has.
        """
        if path is None:
            return cls()
        values, where = read_toml(path, option="--policy"), f"--policy {path}"
        if "secure_sum" in values:
            raise SettingError("secure_sum", _REPLACED, where=where)
        return from_plain(cls, values, where=where)

    @classmethod
    def of_simulated(cls) -> Policy:
        """The policy of a simulated party that is rehearsed: it has no records at risk."""
        return cls(
            seeded_noise=True,
            plain_votes=True,
            uncapped=True,
            least_hospitals=1,
            class_sums=EXACT_SUMS,
            counts=True,
        ).rehearsed()

    def rehearsed(self) -> Policy:
        """The same where all other hospitals are played, and nobody is there to be telephoned."""
        if self.trusted:
            return self
        return replace(
            self, least_confirmed=self.least_confirmed or 0, least_colluders=self.least_colluders or 0
        )

    def objection(self, terms: Terms) -> tuple[Refusal, str] | None:
        """Why this hospital does not take part in a study, with a sentence for its own log; or None."""
        return _refused(self._demands(terms)) or self._cost(terms) or self._unconfirmed(terms)

    def refuses_code(self, terms: Terms) -> tuple[Refusal, str] | None:
        """Why code that would run beside the records is not listed, with a sentence; None where all is."""
        at_home = (each for each in self._demands_on_code(terms) if each[0] != Refusal.POLICY_AGGREGATOR)
        return _refused(at_home)

    def refuses_more(self, *, answered: int, today: int, asked: int) -> tuple[Refusal, str] | None:
        """Why `asked` more are too many, where the study got so many answers in all and in the last day."""
        for reason, key, most, before in (
            (Refusal.POLICY_QUERIES, "most_queries", self.most_queries, answered),
            (Refusal.POLICY_DAY, "most_queries_a_day", self.most_queries_a_day, today),
        ):
            if most is not None and before + asked > most:
                allowed = _limit(f"{key} = {most}")
                return reason, f"{before} queries were answered, {asked} more are asked, {allowed}"
        return None

    @property
    def limits_total(self) -> bool:
        """Whether it limits what all studies can cost together."""
        return self.epsilon_public_total is not None or self.epsilon_coordinator_total is not None

    def demands(self, terms: Terms) -> Demands:
        """What this hospital demands of a roster and of each sum, beyond what the terms promise."""
        return Demands(
            least_parties=max(protection.LEAST_PARTIES, self.least_hospitals),
            least_voters=max(terms.least_clients, self.least_hospitals),
            every_signature=self.every_signature,
            colluders=terms.colluders,
            trusted=self.trusted,
            least_confirmed=self.least_confirmed,
            most_strangers=terms.colluders if terms.adds_noise and self.least_colluders is None else None,
        )

    def must_confirm(self, terms: Terms) -> int:
        """How many of the other hospitals must be confirmed before anything leaves masked."""
        least = max(threshold_for(terms.num_clients), terms.least_clients)
        return self.demands(terms).confirmed_of(terms.num_clients, least) if terms.secure_sum else 0

    def _demands(self, terms: Terms) -> Iterator[Demand]:
        """What is asked of a study, its method and its ε."""
        yield from self._demands_on_study(terms)
        yield from self._demands_on_method(terms)
        yield from self._demands_on_meaning(terms)

    def _demands_on_study(self, terms: Terms) -> Iterator[Demand]:
        named = not self.studies or terms.study in self.studies or terms.digest in self.studies
        told = f"the study {terms.study!r}, terms {terms.digest}, is not in {_list('studies')}"
        yield Refusal.POLICY_STUDY, named, told
        pool = not self.pools or terms.pool_digest in self.pools
        yield Refusal.POLICY_POOL, pool, f"the pool {terms.pool_digest} is not in {_list('pools')}"
        yield from self._demands_on_code(terms)
        names = terms.classes or ("without names",)
        foreign = sorted(set(names) - set(self.classes)) if self.classes else []
        told = f"the classes {', '.join(foreign)} are not in {_list('classes')}"
        yield Refusal.POLICY_CLASSES, not foreign, told
        least, wanted = terms.least_clients, self.least_hospitals
        told = f"a batch may count {least}, the policy wants {wanted}; {_line(f'least_hospitals = {least}')}"
        yield Refusal.POLICY_HOSPITALS, least >= wanted, told

    def _demands_on_code(self, terms: Terms) -> Iterator[Demand]:
        """Code that is none of ours is listed: by its name, a kind's also by its SHA-256."""
        for reason, kind, key, whose in (
            (Refusal.POLICY_TEACHER, "teacher", "teachers", protection.TEACHER),
            (Refusal.POLICY_AGGREGATOR, "aggregator", "aggregators", protection.MECHANISM),
            (Refusal.POLICY_FEATURE_MAP, "feature map", "feature_maps", protection.FEATURE_MAP),
            (Refusal.POLICY_KIND, "kind", "kinds", protection.MECHANISM),
        ):
            codes, listed = [code for known, code in terms.asks.parts if known == kind], getattr(self, key)
            allowed = all(code.name in listed or (kind == "kind" and code.digest in listed) for code in codes)
            names = [code.name for code in codes]
            yield reason, allowed, f"{_word(terms, whose)}{_line(f'{key} = {names}')}"

    def _demands_on_method(self, terms: Terms) -> Iterator[Demand]:
        asks, sums = terms.asks, isinstance(terms.asks, SumTerms)
        counts = isinstance(asks, ScoredTerms)
        masked = terms.secure_sum or asks.noisy_alone or self.plain_votes
        yield Refusal.POLICY_SECURE_SUM, masked, _line("plain_votes = true")
        some = not sums or self.class_sums != NO_SUMS
        told = _line(f'class_sums = "{NOISY_SUMS}"', allows="would allow them under masks")
        yield Refusal.POLICY_SUMS, some, told
        often = asks.questions - counts if isinstance(asks, SumTerms) else None
        few = often is None or self.most_sums is None or often <= self.most_sums
        limit = _limit(f"most_sums = {self.most_sums}")
        yield Refusal.POLICY_ROUNDS, few, f"sums may be asked for {counted(often or 0, 'time')}, {limit}"
        told = _line("counts = true", allows="would allow counts of held-out records")
        yield Refusal.POLICY_COUNTS, not counts or self.counts, told
        exact = asks.totals_tell and not terms.adds_noise and self.class_sums != EXACT_SUMS
        yield Refusal.POLICY_EXACT_SUMS, not exact, _line(f'class_sums = "{EXACT_SUMS}"')
        seeded = terms.seed is not None and not self.seeded_noise
        yield Refusal.POLICY_SEED, not seeded, _line("seeded_noise = true")
        most, pool = terms.max_queries, terms.pool_size
        capped = not asks.counts_inputs or most < pool or self.uncapped
        told = f"up to {most} queries of a pool of {pool}; {_line('uncapped = true')}"
        yield Refusal.POLICY_CAPS, capped, told
        few = sums or self.most_queries is None or most <= self.most_queries
        limit = _limit(f"most_queries = {self.most_queries}")
        yield Refusal.POLICY_QUERIES, few, f"up to {most} queries would be asked, {limit}"

    def _unconfirmed(self, terms: Terms) -> tuple[Refusal, str] | None:
        """What to do where too few of the other hospitals are confirmed; last, as it takes telephones."""
        needed, others = self.must_confirm(terms), terms.num_clients - 1
        if len(self.trusted) >= needed:
            return None
        lines = [] if self.least_confirmed == 0 else ["least_confirmed = 0"]
        if terms.adds_noise and self.least_colluders is None:
            lines.append(f"least_colluders = {terms.colluders}")
        sentence = (
            f"{needed} of the other {others} must be confirmed, {len(self.trusted)} are, and the rest may be "
            "invented: ask them for their words by telephone, and give the admission again to `pate-fed "
            f"hospital accept --confirm NAME=WORDS`; {' and '.join(lines)} in {POLICY_FILE} would do without"
        )
        return Refusal.POLICY_CONFIRMED, sentence

    def _demands_on_meaning(self, terms: Terms) -> Iterator[Demand]:
        """What is asked of the ε that a study states: for whom, between which neighbours, despite whom."""
        stated = terms.privacy
        for reason, key, value, name, allowed in (
            (Refusal.POLICY_UNIT, "unit", stated.unit, "units", self.units),
            (Refusal.POLICY_ADJACENCY, "adjacency", stated.adjacency, "adjacencies", self.adjacencies),
        ):
            told = f"privacy.{key} is {value!r}, the policy allows {', '.join(allowed)}"
            line = _line(f"{name} = {[*allowed, value]}")
            yield reason, not allowed or value in allowed, f"{told}; {line}"
        most, least = stated.hospitals_moved, self.least_hospitals_per_patient
        told = (
            f"ε is stated for one {stated.unit} at {counted(most, 'hospital')}, the policy wants a "
            f"patient at {least}; {_line(f'least_hospitals_per_patient = {most}', allows='allows it')}"
        )
        yield Refusal.POLICY_PATIENT, most >= least, told
        some = terms.secrecy.colluders  # None: the coordinator adds all noise
        wanted = self.least_colluders or 0  # None: who is confirmed is counted
        told = (
            f"secrecy.colluders is {some}, the policy wants {wanted} at least; "
            f"{_line(f'least_colluders = {some}')}"
        )
        yield Refusal.POLICY_COLLUDERS, some is None or some >= wanted, told

    def _cost(self, terms: Terms) -> tuple[Refusal, str] | None:
        if self.epsilon_public is None and self.epsilon_coordinator is None:
            return None
        if terms.delta > self.delta:
            return (
                Refusal.POLICY_DELTA,
                f"δ is {delta_text(terms.delta)}, {_limit(f'delta = {delta_text(self.delta)}')}",
            )
        public, coordinator = worst_epsilon(terms)
        for reason, key, most, cost in (
            (Refusal.POLICY_PUBLIC, "epsilon_public", self.epsilon_public, public),
            (Refusal.POLICY_COORDINATOR, "epsilon_coordinator", self.epsilon_coordinator, coordinator),
        ):
            # Not "cost > most": whatever cannot be compared is refused.
            if most is not None and not (cost is not None and cost <= most):
                shown = "without a bound" if cost is None else epsilon_text(cost)
                allowed = _limit(f"{key} = {most:g}")
                return reason, f"ε at δ={delta_text(terms.delta)} may be {shown}, {allowed}"
        return None


def _refused(demands: Iterable[Demand]) -> tuple[Refusal, str] | None:
    """The first of these that does not hold, with what would help."""
    return next(((reason, sentence) for reason, holds, sentence in demands if not holds), None)


def _list(name: str) -> str:
    """A list of the policy, as a refusal names it."""
    return f"the list {name} of {POLICY_FILE}"


def _line(line: str, *, allows: str = "would allow it") -> str:
    """The line of the policy with which a study would not be refused."""
    return f"the line {line} in {POLICY_FILE} {allows}"


def _limit(line: str) -> str:
    """A limit of the policy, as a refusal names it."""
    return f"{POLICY_FILE} allows {line}"


def _word(terms: Terms, kind: str) -> str:
    """Whose word every ε would rest on, before what would allow it; nothing where it would on nobody's."""
    return "".join(f"{each.warning}; " for each in terms.assumptions().each if each.kind == kind)


def find_policy(given: str | None, identity: str | None) -> Path | None:
    """The file of a hospital's policy: what --policy names, else policy.toml beside its keys, or none."""
    if given is not None:
        return Path(given)
    beside = None if identity is None else Path(identity) / POLICY_FILE
    return beside if beside is not None and beside.is_file() else None
