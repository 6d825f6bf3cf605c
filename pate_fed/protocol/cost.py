"""What a study's terms mean for privacy: the mechanism, what the coordinator sees, the most that it costs.

Both sides use it: the coordinator to release, a hospital to hold the terms against its policy.
"""

from __future__ import annotations

from dataclasses import asdict

from pate_fed.config.registry import find_part
from pate_fed.config.sections import INTERACTIVE, Aggregation
from pate_fed.config.trust import TrustModel
from pate_fed.errors import InputError
from pate_fed.format import delta_text
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
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.mechanisms.data_dependent import check_sanitisable
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import PLAIN, SECURE_SUM, hospital_noise
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.protocol.sum_cost import noise_at_hospitals, sum_ledger_terms, sum_protection, sum_view
from pate_fed.protocol.terms import Terms

_OUT_OF_REACH = 4.0  # σ1 by which T may exceed all teachers: beyond, one query in 30,000 passes
CONFIDENCE = 0.9  # of a student whose own label an unpassed check confirms

Mechanism = ConfidentGNMax | DistributedGNMax | GNMax | LNMax | OwnMechanism


def make_mechanism(terms: Terms) -> Mechanism:
    """The mechanism that the terms fix, of the first round where there are several.

    Raises:
        InputError: the terms' mechanism is none that noise at the hospitals can serve.
    """
    aggregator = terms.aggregation.aggregator
    votes = {"num_teachers": terms.num_teachers, "num_classes": terms.num_classes}
    if terms.claim is not None:  # none of its code is loaded
        return OwnMechanism(**votes, claim=terms.claim)
    if terms.sigma_party is not None:
        _refuse_at_hospitals(aggregator)
    make = find_part(aggregator, "aggregator")
    made: Mechanism = make(votes, terms.aggregation, **noise_at_hospitals(terms))
    return made


def check_reach(terms: Terms) -> None:
    """Refuse terms under which votes would be spent for nothing; either side asks before any vote.

    Raises:
        InputError: a threshold that no vote reaches or every vote does, or more labels than queries.
    """
    if terms.sums is not None:
        return
    if terms.labels > terms.max_queries:
        raise InputError(
            f"--labels {terms.labels} with --max-queries {terms.max_queries}: a query gives at most one "
            f"label; give at most {terms.max_queries} labels, or more queries"
        )
    if not terms.aggregation.has_threshold:
        return
    threshold, sigma1, sigma2 = terms.aggregation.fixed()
    noise, name = (sigma2, "sigma2") if terms.adds_noise else (sigma1, "sigma1")
    teachers = terms.num_teachers
    if threshold <= 0:
        raise InputError(
            f"--threshold {threshold:g}: every query would pass, and its check be paid for nothing; above 0 "
            f"and at most about {teachers} votes is meant, or --aggregator gnmax, which has no threshold"
        )
    if threshold - teachers > _OUT_OF_REACH * noise:
        raise InputError(
            f"--threshold {threshold:g} with {teachers} teachers and --{name} {noise:g}: out of reach, so "
            f"that ε would be spent for no label; at most {teachers} votes, one a teacher, is meant"
        )


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
    if terms.aggregation.aggregator != INTERACTIVE:
        return None
    first = make_mechanism(terms)
    if not isinstance(first, ConfidentGNMax):
        return None
    return InteractiveGNMax(**asdict(first), confidence=CONFIDENCE)


def protection_of(terms: Terms) -> Protection:
    """What is protected, and how many votes it moves.

    Raises:
        InputError: sums of features that are not bounded for this unit.
    """
    if terms.sums is not None:
        return sum_protection(terms)
    privacy = terms.privacy
    moved = privacy.votes_moved(terms.teachers_per_client)
    return Protection(unit=privacy.unit, adjacency=privacy.adjacency, votes_moved=moved)


def noise_share(aggregation: Aggregation, secrecy: TrustModel, least_clients: int) -> float:
    """The parameter in votes of the noise that each hospital adds, so that the least sum holds the vote's.

    Raises:
        InputError: nobody is left whose noise nobody knows.
    """
    sigma2 = aggregation.fixed()[2]
    return party_sigma(sigma2, parties=least_clients, colluders=secrecy.colluders or 0)


def coordinator_view(terms: Terms, voters: int) -> CoordinatorView:
    """What the coordinator sees of a batch in which so many parties voted."""
    if terms.sums is not None:
        return sum_view(terms)
    if not terms.secure_sum:
        return PLAIN
    if terms.sigma_party is None:
        return SECURE_SUM
    return hospital_noise(sigma_party=terms.sigma_party, survivors=voters, colluders=terms.colluders)


def make_ledger_terms(terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
    """What the ledger fixes before the first vote; `noise` is the source's kind, `private` whether it is one.

    `together` says that one process plays several hospitals, as in a simulation (`Terms.assumptions`).

    Raises:
        InputError: the budget does not even fit one query, or the terms allow no sanitised ε.
    """
    if terms.sums is not None:
        return sum_ledger_terms(terms, noise=noise, private=private, together=together)
    check_reach(terms)
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
        coordinator=coordinator_view(terms, terms.least_clients),
        most_asked=terms.max_queries,
        most_answered=terms.labels,
        assumed=terms.assumptions(together=together).at_hospitals,
    )
    if made.budget is not None and made.budget.affordable(mechanism, queries=1) == 0:
        beside = ", beside the sanitised ε" if privacy.sanitise else ""
        how = "[aggregation.parameters]" if terms.claim else "--sigma1, --sigma2"
        raise InputError(
            f"--epsilon {privacy.epsilon:g} at --delta {delta_text(privacy.delta)}: not even one query fits "
            f"with this noise and {mechanism.num_teachers} teachers{beside}; give more noise ({how}), more "
            "teachers, or a larger budget"
        )
    return made


def _fix_sanitising(terms: Terms, protection: Protection) -> SanitiseSettings:
    """The parameters of the sanitised release, from the terms alone, before the first vote."""
    if terms.adds_noise:
        raise InputError(
            "--sanitise with --noise-at hospitals: nobody knows the exact totals, so nothing is left to "
            "sanitise; the data-independent ε may be published as it is"
        )
    aggregator, privacy = terms.aggregation.aggregator, terms.privacy
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
    _, sigma1, sigma2 = terms.aggregation.fixed()
    try:
        settings = SanitiseSettings.for_study(
            asked=terms.max_queries,
            answered=min(terms.labels, terms.max_queries),
            sigma1=sigma1 if terms.aggregation.has_threshold else None,
            sigma2=sigma2,
            num_classes=terms.num_classes,
            delta=privacy.delta,
            order=None if budget is None else budget.order,
        )
        check_sanitisable(settings, sigma2=sigma2, num_classes=terms.num_classes, protection=protection)
    except InputError as error:
        raise InputError(f"--sanitise: {error}") from error
    return settings


def worst_epsilon(terms: Terms) -> tuple[float | None, float | None]:
    """The most that the study can cost at its δ: against all who see labels, and against the coordinator.

    What the ledger promises: whatever the votes are. None where the coordinator sees votes or totals without
    noise.

    Raises:
        InputError: terms that no mechanism has.
    """
    fixed = make_ledger_terms(terms, noise="as agreed", private=terms.seed is None)
    return guaranteed_epsilon(fixed), guaranteed_coordinator_epsilon(fixed)
