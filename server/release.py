"""Totals in, labels out: the budget is asked before, the ledger is on disk before a label is used.

This is the one place where votes become public. Nothing data-dependent decides whether it goes on: the filter
runs on what was asked and answered, both of which are released anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy import (
    PLAIN,
    SECURE_SUM,
    BudgetFilter,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    Ledger,
    LedgerTerms,
    LNMax,
    NoiseSource,
    PrivacyEvent,
    Protection,
    Release,
    SanitiseSettings,
    Sight,
    check_sanitisable,
    hospital_noise,
)
from pate_fed.protocol import Terms
from pate_fed.study import Study

__all__ = ["Desk", "Mechanism", "make_ledger_terms", "make_mechanism", "sight_of"]

_FEW = 50  # queries that are worth a batch of their own under hospitals' noise

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


def _protection(study: Study) -> Protection:
    """What the ledger protects: a record moves one vote, a whole hospital those of all its teachers."""
    moved = study.parties.teachers_per_client if study.privacy.unit == "hospital" else 1
    return Protection(unit=study.privacy.unit, adjacency=study.privacy.adjacency, votes_moved=moved)


def sight_of(terms: Terms, voters: int) -> Sight:
    """What the coordinator sees of a batch in which so many parties voted."""
    if not terms.secure_sum:
        return PLAIN
    if terms.sigma_party is None:
        return SECURE_SUM
    return hospital_noise(sigma_party=terms.sigma_party, survivors=voters, colluders=terms.colluders)


def make_ledger_terms(study: Study, terms: Terms, noise: NoiseSource) -> LedgerTerms:
    """What the ledger fixes before the first vote.

    Raises:
        InputError: the budget does not even fit one query, or the terms allow no sanitised ε.
    """
    mechanism, privacy = make_mechanism(terms), study.privacy
    made = LedgerTerms(
        sanitise=_fix_sanitising(terms, _protection(study)) if terms.sanitise else None,
        study_digest=terms.digest,
        delta=terms.delta,
        epsilon=terms.epsilon,
        mechanisms=(mechanism,),
        protection=_protection(study),
        noise=noise.kind,
        private=noise.private,
        coordinator=sight_of(terms, terms.least_clients),
        most_asked=terms.max_queries,
        most_answered=terms.labels,
    )
    if made.budget is not None and made.budget.affordable(mechanism, queries=1) == 0:
        raise InputError(
            f"--epsilon {privacy.epsilon:g} at --delta {privacy.delta:g}: not even one query fits with this "
            f"noise and {mechanism.num_teachers} teachers"
            f"{', beside the sanitised ε' if terms.sanitise else ''}; give more noise (--sigma1, --sigma2), "
            "more teachers, or a larger budget"
        )
    return made


def _fix_sanitising(terms: Terms, protection: Protection) -> SanitiseSettings:
    """The parameters of the sanitised release, from the terms alone, before the first vote."""
    if terms.adds_noise:
        raise InputError(
            "--sanitise with --noise-at hospitals: nobody knows the exact totals, so nothing is left to "
            "sanitise; the data-independent ε may be published as it is"
        )
    if terms.aggregator == "lnmax":
        raise InputError(
            "--sanitise with --aggregator lnmax: smooth sensitivity is derived for Gaussian noise"
        )
    budget = None if terms.epsilon is None else BudgetFilter(terms.epsilon, terms.delta, protection)
    try:
        settings = SanitiseSettings.for_study(
            asked=terms.max_queries,
            answered=min(terms.labels, terms.max_queries),
            sigma1=terms.sigma1 if terms.aggregator == "confident-gnmax" else None,
            sigma2=terms.sigma2,
            num_classes=terms.num_classes,
            delta=terms.delta,
            budget=budget,
        )
        check_sanitisable(settings, sigma2=terms.sigma2, num_classes=terms.num_classes, protection=protection)
    except InputError as error:
        raise InputError(f"--sanitise: {error}") from error
    return settings


class Desk:
    """Releases batch after batch until labels, queries or budget are used up."""

    def __init__(self, terms: Terms, mechanism: Mechanism, *, noise: NoiseSource, ledger: Ledger) -> None:
        self._terms, self._mechanism, self._noise, self._ledger = terms, mechanism, noise, ledger

    @property
    def asked(self) -> int:
        """Queries looked at so far."""
        return sum(event.asked for event in self._ledger.events())

    @property
    def answered(self) -> int:
        """Labels released so far."""
        return sum(event.answered for event in self._ledger.events())

    @property
    def labels_left(self) -> int:
        """Labels that may still be released."""
        return self._terms.labels - self.answered

    def room(self, queries: int) -> int:
        """How many of the next `queries` may be asked; 0 ends the study's questions."""
        if self.labels_left <= 0:
            return 0
        queries = min(queries, self._terms.max_queries - self.asked)
        if self._terms.adds_noise:
            # What is asked is paid in full, so little more than the labels left is asked at once.
            few = 0 if self._terms.aggregator == "gnmax" else _FEW
            queries = min(queries, max(self.labels_left, few))
        budget = self._ledger.terms.budget
        if budget is None or queries <= 0:
            return max(0, queries)
        return budget.affordable(
            self._mechanism, events=self._ledger.events(), queries=queries, max_answers=self.labels_left
        )

    def release(
        self, batch_digest: str, index: NDArray[np.int64], totals: NDArray[np.int64], *, voters: int
    ) -> Release:
        """Label one batch; the ledger's row and the labels are on disk when this returns.

        Shapes: `index` int64 (queries,), `totals` int64 (queries, classes), at most `room` queries. `voters`
        parties are in the totals.

        Raises:
            BudgetError: the batch would pass the budget; nothing is released.
            IntegrityError: the ledger cannot be written, or this batch was released before.
        """
        release = self._mechanism.release(
            totals,
            self._noise,
            max_answers=self.labels_left,
            protection=self._ledger.terms.protection,
            coordinator=sight_of(self._terms, voters),
        )
        self._ledger.charge(
            release.event,
            batch_digest=batch_digest,
            index=index[: release.asked],
            answered=release.answered,
            label=release.label,
        )
        return release

    def void(self, batch_digest: str, index: NDArray[np.int64]) -> None:
        """Charge a batch that was asked and gave nothing; it is never asked again.

        It counts as asked and not answered, with the fewest parties that a batch may have: votes may be on
        their way, and what becomes of them is not in this program's hands any more.

        Raises:
            IntegrityError: the ledger cannot be written.
        """
        terms, nothing = self._ledger.terms, np.zeros(len(index), dtype=np.bool_)
        event = PrivacyEvent(
            mechanism=self._mechanism,
            asked=len(index),
            answered=0,
            protection=terms.protection,
            noise=terms.noise,
            private=terms.private,
            coordinator=terms.coordinator,
        )
        label = np.full(len(index), -1, dtype=np.int64)
        self._ledger.charge(event, batch_digest=batch_digest, index=index, answered=nothing, label=label)
