"""What a study's terms mean for privacy: the mechanism, what the coordinator sees, the most that it costs.

Both sides use it: the coordinator to release, a hospital to hold the terms against its policy.
"""

from __future__ import annotations

from pate_fed.errors import InputError
from pate_fed.privacy import (
    PLAIN,
    SECURE_SUM,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    LNMax,
    PrivacyEvent,
    Protection,
    Sight,
    epsilon_of,
    hospital_noise,
)
from pate_fed.protocol import Terms

__all__ = ["Mechanism", "make_mechanism", "sight_of", "worst_epsilon"]

Mechanism = ConfidentGNMax | DistributedGNMax | GNMax | LNMax


def make_mechanism(terms: Terms) -> Mechanism:
    """The mechanism that the terms fix.

    Raises:
        InputError: the terms' mechanism is none that noise at the hospitals can serve.
    """
    teachers = terms.num_teachers
    if terms.sigma_party is not None:
        if terms.aggregator == "lnmax":
            raise InputError(
                "--aggregator lnmax with --noise-at hospitals: hospitals add shares of Gaussian noise; take "
                "gnmax or confident-gnmax"
            )
        return DistributedGNMax(
            num_teachers=teachers,
            num_classes=terms.num_classes,
            threshold=None if terms.aggregator == "gnmax" else terms.threshold,
            sigma_party=terms.sigma_party,
            least_honest=terms.least_clients - terms.colluders,
        )
    if terms.aggregator == "gnmax":
        return GNMax(num_teachers=teachers, num_classes=terms.num_classes, sigma=terms.sigma2)
    if terms.aggregator == "lnmax":
        return LNMax(num_teachers=teachers, num_classes=terms.num_classes, scale=terms.sigma2)
    return ConfidentGNMax(
        num_teachers=teachers,
        num_classes=terms.num_classes,
        threshold=terms.threshold,
        sigma1=terms.sigma1,
        sigma2=terms.sigma2,
    )


def sight_of(terms: Terms, voters: int) -> Sight:
    """What the coordinator sees of a batch in which so many parties voted."""
    if not terms.secure_sum:
        return PLAIN
    if terms.sigma_party is None:
        return SECURE_SUM
    return hospital_noise(sigma_party=terms.sigma_party, survivors=voters, colluders=terms.colluders)


def worst_epsilon(terms: Terms) -> tuple[float, float | None]:
    """The most that the study can cost at its δ: against all who see labels, and against the coordinator.

    Whatever the votes are; None where the coordinator sees votes or totals without noise.

    Raises:
        InputError: terms that no mechanism has.
    """
    moved = terms.teachers_per_client if terms.unit == "hospital" else 1
    event = PrivacyEvent(
        mechanism=make_mechanism(terms),
        asked=terms.max_queries,
        answered=min(terms.labels, terms.max_queries),
        protection=Protection(unit=terms.unit, adjacency=terms.adjacency, votes_moved=moved),
        noise="as agreed",
        private=terms.seed is None,
        coordinator=sight_of(terms, terms.least_clients),
    )
    public = epsilon_of(event.cost(), terms.delta)
    if terms.epsilon is not None:
        public = min(public, terms.epsilon)
    seen = event.coordinator_cost()
    return public, None if seen is None else epsilon_of(seen, terms.delta)
