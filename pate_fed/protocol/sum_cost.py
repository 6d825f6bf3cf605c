"""What a study of class sums means for privacy: its one release, what the coordinator sees, what it costs."""

from __future__ import annotations

import math
from typing import Any

from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS, Privacy
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy import CoordinatorView, LedgerTerms, Protection
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import (
    ClassSums,
    SharedClassSums,
    SumShape,
    least_share,
    least_sigma,
)
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import EXACT_SUMS, NOISY_SUMS
from pate_fed.privacy.protection import Shares
from pate_fed.protocol.sum_terms import SumTerms
from pate_fed.protocol.terms import Terms

SumMechanism = ClassSums | SharedClassSums


def _terms_of(terms: Terms) -> SumTerms:
    if terms.sums is None:
        raise TypeError("a study with votes: no sums of features are asked for")
    return terms.sums


def sum_mechanism(terms: Terms) -> SumMechanism:
    """The one release that the terms fix.

    Raises:
        InputError: noise that no bound is known for.
    """
    sums = _terms_of(terms)
    shape = {
        "num_classes": terms.num_classes,
        "dimension": sums.dimension,
        "squared_norm": sums.squared_norm,
    }
    made: SumMechanism = find_part(CLASS_SUMS, "aggregator")(shape, sums.sigma, **noise_at_hospitals(terms))
    return made


def noise_at_hospitals(terms: Terms) -> dict[str, Any]:
    """What a mechanism is told of noise that hospitals add; nothing where the coordinator does."""
    if terms.sigma_party is None:
        return {}
    return {
        "sigma_party": terms.sigma_party,
        "survivors": terms.least_clients,
        "colluders": terms.colluders,
    }


def sum_protection(terms: Terms) -> Protection:
    """What is protected under the terms; see `protection_by`."""
    return protection_by(terms.privacy, _terms_of(terms).most_units)


def protection_by(privacy: Privacy, most: int | None) -> Protection:
    """What is protected: one record (one patient, where these are named), or a hospital's sum as it is cut.

    `most` is to how many records' length that is.

    Raises:
        InputError: the unit hospital, whose sum nothing bounds.
    """
    if privacy.unit == "hospital" and most is None:
        raise InputError(
            "sums.most_records: with the unit hospital a number is meant, to whose length a hospital's whole "
            "sum is cut; else nothing bounds what it adds"
        )
    moved = most if privacy.unit == "hospital" and most is not None else 1
    return Protection(unit=privacy.unit, adjacency=privacy.adjacency, votes_moved=moved)


def sum_view(terms: Terms) -> CoordinatorView:
    """What the coordinator sees: the exact sums over all hospitals, or noisy ones."""
    return NOISY_SUMS if terms.adds_noise else EXACT_SUMS


def sum_noise(
    shape: SumShape,
    protection: Protection,
    *,
    privacy: Privacy,
    sigma2: float | None,
    shares: Shares | None,
) -> float:
    """Noise in the feature map's steps: of the sum or, where hospitals add it in `shares`, of each of them.

    It follows from the budget, unless `sigma2`, in records, is given.

    Raises:
        InputError: no noise serves this budget, or nothing says how much there should be.
    """
    if sigma2 is not None:
        sigma = sigma2 * math.sqrt(shape.squared_norm)
        if shares is None:
            return sigma
        return party_sigma(sigma, parties=shares.least_voters, colluders=shares.colluders)
    if privacy.epsilon is None:
        raise InputError("--epsilon: the noise of class sums follows from it; give it, or --sigma2")
    if shares is None:
        return least_sigma(privacy.epsilon, privacy.delta, shape, protection)
    return least_share(
        privacy.epsilon,
        privacy.delta,
        shape,
        protection,
        survivors=shares.least_voters,
        colluders=shares.colluders,
    )


def sum_ledger_terms(terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
    """What the ledger fixes before the first message: one release, at its exact cost.

    Raises:
        InputError: it would pass the study's budget.
    """
    mechanism, privacy = sum_mechanism(terms), terms.privacy
    made = LedgerTerms(
        study_digest=terms.digest,
        delta=privacy.delta,
        mechanisms=(mechanism,),
        protection=sum_protection(terms),
        noise=noise,
        private=private,
        coordinator=sum_view(terms),
        most_asked=terms.max_queries,
        most_answered=terms.labels,
        assumed=terms.assumptions(together=together).at_hospitals,
        by_patient=terms.names_patients,
    )
    epsilon = guaranteed_epsilon(made)
    if privacy.epsilon is not None and not (epsilon is not None and epsilon <= privacy.epsilon):
        raise InputError(
            f"--epsilon {privacy.epsilon:g} at --delta {delta_text(privacy.delta)}: this noise costs "
            f"ε={epsilon_text(epsilon)}; leave --sigma2 out, and the noise follows from the budget"
        )
    return made
