"""What a hospital would gain from a study: its own model alone, beside what to expect of all together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.doctor.records import QUICK, WantedRecords, predict_by_teacher
from pate_fed.data import Rows, split_by_patient
from pate_fed.errors import InputError
from pate_fed.format import accuracy_text, share_text, wilson_interval
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.privacy.planning.vote_model import VoteModel, assumed_votes

Ints = NDArray[np.int64]

_FOLDS = 5
_MOST_TRIED = 5  # teachers


def gain_lines(terms: Terms, rows: Rows, parts: list[Ints]) -> Iterator[str]:
    """The hospital's own model and, where it votes, one of its teachers and the federation's labels.

    `parts` are the teachers' own records, int64 indices.
    """
    wanted = WantedRecords.by_terms(terms)
    everyone = np.arange(len(rows.labels), dtype=np.int64)
    patients = len(np.unique(rows.patients))
    if patients < _FOLDS:
        yield f"  not tried: {patients} patients are too few to leave a part of them out"
        return
    folds = split_by_patient(everyone, rows.patients, num_teachers=_FOLDS, seed=0)
    alone = _tested(rows, wanted, [(np.setdiff1d(everyone, part), part) for part in folds])
    majority = float(np.bincount(rows.labels).max() / len(rows.labels))
    kind = "one model" if wanted.spec.schema is not None else f"one {QUICK} model, as a quick stand-in,"
    told = accuracy_text(alone[0] / alone[1], alone[1], majority=majority)
    yield f"  alone       {told}: {kind} of all your records, each fifth left out once"
    yield "              The majority's share is right for whoever always says the most frequent class."
    if wilson_interval(alone[0] / alone[1], alone[1])[0] <= majority:
        yield "              Your records alone may teach no more than that guess."
    if isinstance(terms.asks, SumTerms):
        yield "  together    not known beforehand; `pate-fed plan` tells what sums make of so many records"
        return
    single = alone
    if len(parts) > 1:
        single = _tested(rows, wanted, [(part, np.setdiff1d(everyone, part)) for part in parts[:_MOST_TRIED]])
        # Without an interval: several teachers told the same records, which are no independent trials.
        share = share_text(single[0] / single[1], len(rows.labels))
        yield (
            f"  a teacher   {share} right of {len(rows.labels):,}: it learnt from its part alone (mean of "
            f"{min(len(parts), _MOST_TRIED)})"
        )
    try:
        votes = assumed_votes(single[0] / single[1], terms.num_classes, terms.num_teachers)
    except InputError:
        yield "  together    no expectation: such teachers are always right, or no better than chance"
        return
    if (claim := VoteTerms.of(terms).claim) is not None:
        yield f"  together    not known beforehand: {claim.part.name} is none of our mechanisms"
        return
    labels, right = expect_labels(terms, votes)
    yield (
        f"  together    about {labels} labels, of which {share_text(right)} right: what `pate-fed plan` "
        f"expects of this noise and {terms.num_teachers} teachers, if all are as good as yours on inputs "
        "like these"
    )
    yield "              The student learns from these labels; how well it does is not known beforehand."


def _tested(rows: Rows, wanted: WantedRecords, pairs: list[tuple[Ints, Ints]]) -> tuple[int, int]:
    """How many records were told right by models that had not seen them, and of how many."""
    right = count = 0
    for own, asked in pairs:
        right += int((predict_by_teacher(rows, own, asked, wanted) == rows.labels[asked]).sum())
        count += len(asked)
    return right, count


def expect_labels(terms: Terms, votes: VoteModel) -> tuple[int, float]:
    """Labels that the study's own noise and caps would give of such votes, and the share that is right."""
    threshold, sigma1, sigma2 = VoteTerms.of(terms).aggregation.fixed()
    if VoteTerms.of(terms).aggregation.aggregator == "lnmax":
        sigma2 *= math.sqrt(2)  # the deviation of Laplace noise of that scale
    right = votes.right_chance(sigma2, terms.num_teachers)
    passed = np.ones_like(right)
    if VoteTerms.of(terms).aggregation.has_threshold:
        passed = votes.answered(threshold, sigma1, terms.num_teachers)
    answered = float(passed.mean())
    share = float((passed * right).sum() / max(float(passed.sum()), 1e-300))
    return min(terms.labels, round(terms.max_queries * answered)), share
