"""Totals in, labels out: the budget is asked before, the ledger is on disk before a label is used.

This is the one place where votes become public. Nothing data-dependent decides whether it goes on: the filter
runs on what was asked and answered, both of which are released anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy import (
    BudgetFilter,
    ConfidentGNMax,
    GNMax,
    Ledger,
    LedgerTerms,
    LNMax,
    NoiseSource,
    Protection,
    Release,
    SanitiseSettings,
    check_sanitisable,
)
from pate_fed.protocol import Terms
from pate_fed.study import Study

__all__ = ["Desk", "Mechanism", "make_ledger_terms", "make_mechanism"]

Mechanism = ConfidentGNMax | GNMax | LNMax


def make_mechanism(terms: Terms) -> Mechanism:
    """The mechanism that the terms fix."""
    teachers = terms.num_clients * terms.teachers_per_client
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
        budget = self._ledger.terms.budget
        if budget is None or queries <= 0:
            return max(0, queries)
        return budget.affordable(
            self._mechanism, events=self._ledger.events(), queries=queries, max_answers=self.labels_left
        )

    def release(self, batch_digest: str, index: NDArray[np.int64], totals: NDArray[np.int64]) -> Release:
        """Label one batch; the ledger's row and the labels are on disk when this returns.

        Shapes: `index` int64 (queries,), `totals` int64 (queries, classes), at most `room` queries.

        Raises:
            BudgetError: the batch would pass the budget; nothing is released.
            IntegrityError: the ledger cannot be written, or this batch was released before.
        """
        release = self._mechanism.release(
            totals,
            self._noise,
            max_answers=self.labels_left,
            protection=self._ledger.terms.protection,
        )
        self._ledger.charge(
            release.event,
            batch_digest=batch_digest,
            index=index[: release.asked],
            answered=release.answered,
            label=release.label,
        )
        return release
