"""Votes of teachers on public inputs: the terms, the mechanism, what it costs.

Both sides use it: the coordinator to release, a hospital to hold the terms against its policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.config.backend import AUTO
from pate_fed.config.registry import find_part
from pate_fed.config.sections import INTERACTIVE, MOST_TEACHERS, Aggregation, Parties, Queries
from pate_fed.config.trust import TrustModel
from pate_fed.errors import InputError
from pate_fed.format import delta_text
from pate_fed.kinds.base import SHA256, Bounds, Check, KindTerms
from pate_fed.learning import TeacherSettings
from pate_fed.privacy import (
    BudgetFilter,
    ConfidentGNMax,
    CoordinatorView,
    DistributedGNMax,
    GNMax,
    InteractiveGNMax,
    LedgerTerms,
    LNMax,
    Protection,
    SanitiseSettings,
)
from pate_fed.privacy.bounds.cost import Claim
from pate_fed.privacy.mechanisms.data_dependent import check_sanitisable
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import PLAIN, SECURE_SUM, hospital_noise
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.privacy.protection import TEACHER, Assumption
from pate_fed.structure import check, refusal, same_as, setting
from pate_fed.structure.parts import PartIdentity

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.words import Words

_OUT_OF_REACH = 4.0  # σ1 by which T may exceed all teachers: beyond, one query in 30,000 passes
_ENCODER = 64 * 2**20  # bytes: far more than an encoder's file has
CONFIDENCE = 0.9  # of a student whose own label an unpassed check confirms

Mechanism = ConfidentGNMax | DistributedGNMax | GNMax | LNMax | OwnMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteTerms(KindTerms):
    """Teachers of each hospital vote on public inputs, batch by batch; noisy winners are released.

    `encoder` is the SHA-256 of the public encoder that teachers learn on, None where they need none.
    `teacher_part` is the code of a teacher that is none of ours, `claim` what such a mechanism says of
    itself.

    Raises:
        InputError: a value of the wrong type or out of range, or values that do not go together.
    """

    trains: ClassVar[bool] = True
    counts_inputs: ClassVar[bool] = True
    kind: str = setting("votes", choices=("votes",))
    teachers_per_client: int = same_as(Parties, "teachers_per_client")
    records_per_teacher: int | None = same_as(Parties, "records_per_teacher", None)
    teacher: TeacherSettings
    aggregation: Aggregation
    labels: int = same_as(Queries, "labels")
    max_queries: int = same_as(Queries, "max_queries")
    encoder: str | None = setting(None, **SHA256)
    teacher_part: PartIdentity | None = None
    claim: Claim | None = None

    def __post_init__(self) -> None:
        check(self)
        if not self.aggregation.own:
            self.aggregation.fixed()
        own = self.teacher.name if self.teacher.own else None
        part = None if self.teacher_part is None else self.teacher_part.name
        for name, fits, wanted in (
            ("aggregation.aggregator", self.aggregation.aggregator != AUTO, "one that is fixed"),
            ("aggregation.aggregator", self.aggregation.votes, "a vote"),
            ("teacher_part", own == part, "the code of the very teacher, where it is none of ours,"),
            ("claim", self._claim_fits(), "what the very mechanism claims, where it is none of ours,"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")

    def _claim_fits(self) -> bool:
        claim = self.claim
        if claim is None:
            return not self.aggregation.own
        same = set(self.aggregation.parameters) <= set(claim.parameters)
        return same and claim.part.name == self.aggregation.aggregator

    def checks(self, terms: Terms) -> Iterator[Check]:
        """Not too many teachers in all, and a mechanism of one's own adds its noise in one place."""
        few = self.num_teachers(terms.num_clients) <= MOST_TEACHERS
        yield "asks.teachers_per_client", few, f"at most {MOST_TEACHERS:,} in all"
        alone = not (terms.adds_noise and self.claim)
        yield "secrecy.noise_at", alone, "the coordinator, with such a mechanism,"

    @property
    def mechanism(self) -> str:
        """The aggregator."""
        return self.aggregation.aggregator

    @property
    def threshold(self) -> float | None:
        """T, where a noisy check decides first which queries are answered."""
        return self.aggregation.threshold if self.aggregation.has_threshold else None

    def num_teachers(self, num_clients: int) -> int:
        """All of them, or the most that there can be: no query has more votes."""
        return num_clients * self.teachers_per_client

    @property
    def least_teachers(self) -> int:
        """The fewest teachers that a hospital has."""
        return self.teachers_per_client if self.records_per_teacher is None else 1

    def bounds(self, terms: Terms) -> Bounds:
        """One vote a teacher on each of a batch's inputs."""
        return Bounds(
            rows=min(terms.pool_size, self.max_queries),
            columns=terms.num_classes,
            row=None if terms.adds_noise else (self.least_teachers, self.teachers_per_client),
            file=0 if self.encoder is None else _ENCODER,
        )

    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """The mechanism of each round, and caps on queries and labels.

        Raises:
            InputError: the budget does not even fit one query, or the terms allow no sanitised ε.
        """
        self.require_use(terms)
        mechanism, protection, privacy = make_mechanism(terms), protection_of(terms), terms.privacy
        later = make_interactive(terms)
        made = LedgerTerms(
            sanitise=_fix_sanitising(terms, protection) if privacy.sanitise else None,
            study_digest=terms.digest,
            delta=privacy.delta,
            epsilon=privacy.epsilon,
            mechanisms=(mechanism,) if later is None else (mechanism, later),
            protection=protection,
            noise=noise,
            private=private,
            coordinator=self.view(terms, terms.least_clients),
            most_asked=self.max_queries,
            most_answered=self.labels,
            assumed=terms.assumptions(together=together).at_hospitals,
        )
        if made.budget is not None and made.budget.affordable(mechanism, queries=1) == 0:
            beside = ", beside the sanitised ε" if privacy.sanitise else ""
            how = "[aggregation.parameters]" if self.claim else "--sigma1, --sigma2"
            raise InputError(
                f"--epsilon {privacy.epsilon:g} at --delta {delta_text(privacy.delta)}: not even one query "
                f"fits with this noise and {mechanism.num_teachers} teachers{beside}; give more noise "
                f"({how}), more teachers, or a larger budget"
            )
        return made

    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """Each hospital's votes, their exact sum, or a noisy one."""
        if not terms.secure_sum:
            return PLAIN
        if terms.sigma_party is None:
            return SECURE_SUM
        return hospital_noise(sigma_party=terms.sigma_party, survivors=voters, colluders=terms.colluders)

    def require_use(self, terms: Terms) -> None:
        """Refuse a threshold that no vote reaches or every vote does, and more labels than queries.

        Raises:
            InputError: it is such.
        """
        if self.labels > self.max_queries:
            raise InputError(
                f"--labels {self.labels} with --max-queries {self.max_queries}: a query gives at most one "
                f"label; give at most {self.max_queries} labels, or more queries"
            )
        if not self.aggregation.has_threshold:
            return
        threshold, sigma1, sigma2 = self.aggregation.fixed()
        noise, name = (sigma2, "sigma2") if terms.adds_noise else (sigma1, "sigma1")
        teachers = terms.num_teachers
        if threshold <= 0:
            raise InputError(
                f"--threshold {threshold:g}: every query would pass, and its check be paid for nothing; "
                f"above 0 and at most about {teachers} votes is meant, or --aggregator gnmax, which has no "
                "threshold"
            )
        if threshold - teachers > _OUT_OF_REACH * noise:
            raise InputError(
                f"--threshold {threshold:g} with {teachers} teachers and --{name} {noise:g}: out of reach, "
                f"so that ε would be spent for no label; at most {teachers} votes, one a teacher, is meant"
            )

    def hides_enough(self, terms: Terms) -> bool:
        """Whether the smallest sum of the shares holds the vote's noise."""
        try:
            least = noise_share(self.aggregation, terms.secrecy, terms.least_clients)
            hospital_noise(sigma_party=terms.sigma_party or 0.0, survivors=terms.least_clients)
        except InputError:
            return False
        return terms.sigma_party is not None and terms.sigma_party >= least

    @property
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """A teacher and a mechanism of the user's own."""
        teacher = () if self.teacher_part is None else (("teacher", self.teacher_part),)
        return teacher if self.claim is None else (*teacher, ("aggregator", self.claim.part))

    def words(self, terms: Terms) -> Words:
        """Those of `votes_words.py`."""
        from pate_fed.kinds.votes_words import VoteWords

        return VoteWords(terms, self)

    def assumptions(self, terms: Terms, *, together: bool) -> Iterator[Assumption]:
        """A mechanism's claim; a teacher where several of one process could pass something on."""
        if self.claim is not None:
            yield self.claim.assumption
        most = self.teachers_per_client
        if self.teacher_part is not None and (
            together or terms.privacy.votes_moved(most) < most * terms.privacy.hospitals_moved
        ):
            yield Assumption(kind=TEACHER, part=self.teacher_part)

    @property
    def study_settings(self) -> Mapping[str, Any]:
        """How many teachers a party has, and what they are."""
        parties = {
            "teachers_per_client": self.teachers_per_client,
            "records_per_teacher": self.records_per_teacher,
        }
        return {"parties": parties, "teacher": self.teacher}

    @property
    def file(self) -> str | None:
        """The public encoder that teachers learn on."""
        return self.encoder


def make_mechanism(terms: Terms) -> Mechanism:
    """The mechanism that the terms fix, of the first round where there are several.

    Raises:
        InputError: the terms' mechanism is none that noise at the hospitals can serve.
    """
    own = VoteTerms.of(terms)
    aggregator = own.aggregation.aggregator
    votes = {"num_teachers": terms.num_teachers, "num_classes": terms.num_classes}
    if own.claim is not None:  # none of its code is loaded
        return OwnMechanism(**votes, claim=own.claim)
    if terms.sigma_party is not None:
        _refuse_at_hospitals(aggregator)
    make = find_part(aggregator, "aggregator")
    made: Mechanism = make(votes, own.aggregation, **terms.shares)
    return made


def _refuse_at_hospitals(aggregator: str) -> None:
    if aggregator == INTERACTIVE:
        raise InputError(
            f"--aggregator {INTERACTIVE} with --noise-at hospitals: there a query costs as much as its "
            "answer, so it saves nothing to leave out what the student knows; take confident-gnmax, or "
            "noise at the coordinator"
        )
    if aggregator == "lnmax":
        raise InputError(
            "--aggregator lnmax with --noise-at hospitals: hospitals add shares of Gaussian noise; take "
            "gnmax or confident-gnmax"
        )


def make_interactive(terms: Terms) -> InteractiveGNMax | None:
    """The mechanism of rounds in which a student's predictions are the reference; None without such rounds.

    Its noise and threshold are the first round's, so a query costs the same in every round.
    """
    if VoteTerms.of(terms).aggregation.aggregator != INTERACTIVE:
        return None
    first = make_mechanism(terms)
    if not isinstance(first, ConfidentGNMax):
        return None
    return InteractiveGNMax(**asdict(first), confidence=CONFIDENCE)


def protection_of(terms: Terms) -> Protection:
    """What is protected, and how many votes it moves."""
    return terms.privacy.protection(VoteTerms.of(terms).teachers_per_client)


def noise_share(aggregation: Aggregation, secrecy: TrustModel, least_clients: int) -> float:
    """The parameter in votes of the noise that each hospital adds, so that the least sum holds the vote's.

    Raises:
        InputError: nobody is left whose noise nobody knows.
    """
    sigma2 = aggregation.fixed()[2]
    return party_sigma(sigma2, parties=least_clients, colluders=secrecy.colluders or 0)


def _fix_sanitising(terms: Terms, protection: Protection) -> SanitiseSettings:
    """The parameters of the sanitised release, from the terms alone, before the first vote."""
    if terms.adds_noise:
        raise InputError(
            "--sanitise with --noise-at hospitals: nobody knows the exact totals, so nothing is left to "
            "sanitise; the data-independent ε may be published as it is"
        )
    own, privacy = VoteTerms.of(terms), terms.privacy
    aggregator = own.aggregation.aggregator
    if aggregator == "lnmax":
        raise InputError(
            "--sanitise with --aggregator lnmax: smooth sensitivity is derived for Gaussian noise"
        )
    if aggregator == INTERACTIVE:
        raise InputError(
            f"--sanitise with --aggregator {INTERACTIVE}: smooth sensitivity is not derived for a check on "
            "differences of totals; the data-independent ε may be published as it is"
        )
    budget = None if privacy.epsilon is None else BudgetFilter(privacy.epsilon, privacy.delta, protection)
    _, sigma1, sigma2 = own.aggregation.fixed()
    try:
        settings = SanitiseSettings.for_study(
            asked=own.max_queries,
            answered=min(own.labels, own.max_queries),
            sigma1=sigma1 if own.aggregation.has_threshold else None,
            sigma2=sigma2,
            num_classes=terms.num_classes,
            delta=privacy.delta,
            order=None if budget is None else budget.order,
        )
        check_sanitisable(settings, sigma2=sigma2, num_classes=terms.num_classes, protection=protection)
    except InputError as error:
        raise InputError(f"--sanitise: {error}") from error
    return settings
