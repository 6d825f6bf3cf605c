"""An empirical audit: sample the real mechanism on neighbouring votes, hold a lower bound of ε to the ledger.

A lower bound above the ledger's ε proves a fault (but for one audit in a thousand, by chance). One below it
proves nothing; it only failed to find a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.orders import Floats, check_histograms
from pate_fed.privacy.checks import check_count, check_delta, is_number
from pate_fed.privacy.filter import epsilon_of
from pate_fed.privacy.mechanisms.events import RECORD, Cost, Mechanism, Protection
from pate_fed.privacy.mechanisms.gnmax import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Release
from pate_fed.privacy.mechanisms.noise import NoiseSource

__all__ = ["AuditResult", "audit", "audit_all", "clopper_pearson"]

Ints = NDArray[np.int64]


class Releasing(Mechanism, Protocol):
    """A mechanism that can be sampled."""

    def release(self, totals: ArrayLike, noise: NoiseSource) -> Release:
        """Noisy labels of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found. `lower_bound` holds with `confidence`; `epsilon` is the ledger's for the same δ.

    `passed` is False where the lower bound is above the ledger's ε.
    """

    name: str
    epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    trials: int
    queries: int

    @property
    def passed(self) -> bool:
        """Whether the mechanism was not caught."""
        return self.lower_bound <= self.epsilon

    def line(self) -> str:
        """The finding in one line."""
        verdict = "no fault found" if self.passed else "FAULT: the mechanism leaks more than the ledger says"
        charged = epsilon_text(self.epsilon)
        return (
            f"{self.name}: sampled ε >= {self.lower_bound:.3f}, ledger ε = {charged} at "
            f"δ={self.delta:g} ({self.queries} queries, {self.trials} trials, confidence "
            f"{self.confidence:g}): {verdict}"
        )


def clopper_pearson(hits: int, trials: int, *, miss: float) -> tuple[float, float]:
    """Exact bounds on a chance, each of which fails with probability at most `miss`.

    Raises:
        InputError: more hits than trials, or `miss` outside (0, 1).
    """
    check_count("trials", trials, least=1)
    if check_count("hits", hits) > trials or not 0 < miss < 1:
        raise InputError(f"hits={hits}, trials={trials}, miss={miss!r}: not a count of hits and a chance")
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, miss))
    high = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 1 - miss))
    return low, high


def audit(
    mechanism: Releasing,
    totals: ArrayLike,
    neighbour: ArrayLike,
    *,
    noise: NoiseSource,
    claimed: Mechanism | None = None,
    queries: int = 4,
    trials: int = 20_000,
    delta: float = 0.1,
    confidence: float = 0.999,
    bit_only: bool = False,
    protection: Protection = RECORD,
    name: str | None = None,
) -> AuditResult:
    """Release the same query `queries` times in each of `trials` trials, on both of two neighbouring votes.

    Half of the trials choose the event that tells the two apart best (a likelihood ratio of outcome counts),
    the other half measure it: with Clopper-Pearson bounds, ε >= ln((P_low - δ)/P'_high). `claimed` is the
    mechanism that the ledger charges, `mechanism` itself unless a fault is to be simulated. `bit_only` looks
    at the answered bits alone, for which the ledger's cost is that of the check. A large δ finds most: there
    the ledger's bound on Gaussian noise is tightest, and events are frequent.

    Shapes: `totals` and `neighbour` (classes,).

    Raises:
        InputError: votes that are no neighbours under `protection`, or parameters out of range.
    """
    check_count("queries", queries, least=1)
    check_count("trials", trials, least=100)
    if not is_number(confidence) or not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: must be above 0.5 and below 1")
    delta = check_delta(delta)
    votes = _check_neighbours(totals, neighbour, protection)
    charged = mechanism if claimed is None else claimed
    one = charged.cost_asked(protection) + (Cost() if bit_only else charged.cost_answered(protection))
    counts = [_outcomes(mechanism, row, noise, trials, queries, bit_only) for row in votes]
    return AuditResult(
        name=name or charged.name,
        epsilon=epsilon_of(one * queries, delta),
        delta=delta,
        lower_bound=_lower_bound(counts[0], counts[1], delta, (1 - confidence) / 2),
        confidence=confidence,
        trials=trials,
        queries=queries,
    )


def _check_neighbours(totals: ArrayLike, neighbour: ArrayLike, protection: Protection) -> Ints:
    """Both votes as (2, classes)."""
    pair = [check_histograms(row) for row in (totals, neighbour)]
    if pair[0].shape != pair[1].shape or len(pair[0]) != 1:
        raise InputError("the votes must be two histograms over the same classes")
    votes = np.concatenate(pair)
    change = votes[1] - votes[0]
    size = int(np.abs(change).sum())
    if size == 0:
        raise InputError("the votes are the same, so there is nothing to tell apart")
    if size > protection.l1 or (not protection.votes_vanish and change.sum() != 0):
        raise InputError(f"the votes are no neighbours: {protection.words()} cannot turn one into the other")
    return votes


def _outcomes(
    mechanism: Releasing, votes: Ints, noise: NoiseSource, trials: int, queries: int, bit_only: bool
) -> Ints:
    """How often each outcome came up in each trial: (trials, classes + 1), unanswered last."""
    classes = len(votes)
    release = mechanism.release(np.tile(votes, (trials * queries, 1)), noise)
    outcome = np.where(release.answered, 0 if bit_only else release.label, classes)
    at = np.repeat(np.arange(trials), queries) * (classes + 1) + outcome
    return np.bincount(at, minlength=trials * (classes + 1)).reshape(trials, classes + 1)


def _lower_bound(here: Ints, there: Ints, delta: float, miss: float) -> float:
    """A bound below ε that fails with probability at most 2 `miss`, whichever of the two is more likely."""
    half = len(here) // 2
    weights = _log_share(here[:half]) - _log_share(there[:half])
    chosen: tuple[float, float, float] = (-math.inf, 0.0, 1.0)
    for sign, first, second in ((1.0, here, there), (-1.0, there, here)):
        bound, cut = _best_cut(first[:half] @ (sign * weights), second[:half] @ (sign * weights), delta, miss)
        chosen = max(chosen, (bound, cut, sign))
    _, cut, sign = chosen
    first, second = (here, there) if sign > 0 else (there, here)
    # Fresh trials measure the one event that was chosen, so no choice has to be paid for.
    hits = [int((rows[half:] @ (sign * weights) >= cut).sum()) for rows in (first, second)]
    low, _ = clopper_pearson(hits[0], len(here) - half, miss=miss)
    _, high = clopper_pearson(hits[1], len(here) - half, miss=miss)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _log_share(counts: Ints) -> Floats:
    """Log of each outcome's share, with half a count more so that none is 0."""
    totals = counts.sum(axis=0) + 0.5
    share: Floats = np.log(totals / totals.sum())
    return share


def _best_cut(first: Floats, second: Floats, delta: float, miss: float) -> tuple[float, float]:
    """The best bound and the score from which on a trial counts as the event."""
    cuts = np.unique(first)
    hits = len(first) - np.searchsorted(np.sort(first), cuts)
    others = len(second) - np.searchsorted(np.sort(second), cuts)
    low = betaincinv(hits, len(first) - hits + 1, miss)
    high = np.where(
        others == len(second), 1.0, betaincinv(others + 1, np.maximum(len(second) - others, 1), 1 - miss)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)
    best = int(np.argmax(bound))
    return float(bound[best]), float(cuts[best])


def audit_all(
    noise: NoiseSource, *, trials: int = 10_000, confidence: float = 0.999, shrink: float = 1.0
) -> list[AuditResult]:
    """Audit every sampled mechanism on the votes that are worst for it, with few votes and strong noise.

    `shrink` multiplies the noise that is drawn, not the one that is charged: 0.5 simulates a fault that the
    audit must find.

    Raises:
        InputError: parameters out of range.
    """
    if not is_number(shrink) or not 0 < shrink <= 1:
        raise InputError(f"shrink={shrink!r}: must be above 0 and at most 1")
    return [
        audit(
            case.sampled(shrink),
            case.totals,
            case.neighbour,
            noise=noise,
            claimed=case.mechanism,
            queries=case.queries,
            delta=case.delta,
            trials=trials,
            confidence=confidence,
            bit_only=case.bit_only,
            name=case.name,
        )
        for case in _cases()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    name: str
    mechanism: LNMax | GNMax | ConfidentGNMax
    totals: tuple[int, ...] = (5, 5, 0)
    neighbour: tuple[int, ...] = (6, 4, 0)
    queries: int = 4
    delta: float = 0.1
    bit_only: bool = False
    predictions: tuple[float, ...] = ()

    def sampled(self, factor: float) -> Releasing:
        """The mechanism with `factor` times its noise, beside the student where it has one."""
        names = ("scale", "sigma", "sigma1", "sigma2")
        values = self.mechanism.parameters().items()
        made = replace(self.mechanism, **{part: factor * value for part, value in values if part in names})
        return _BesideStudent(made, self.predictions) if isinstance(made, InteractiveGNMax) else made


class _BesideStudent:
    """Interactive-GNMax whose student says the same of every query."""

    def __init__(self, mechanism: InteractiveGNMax, predictions: tuple[float, ...]) -> None:
        self._mechanism, self._predictions = mechanism, predictions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def release(self, totals: ArrayLike, noise: NoiseSource) -> Release:
        """Noisy labels of a batch."""
        said = np.tile(self._predictions, (len(np.asarray(totals)), 1))
        return self._mechanism.release(totals, noise, predictions=said)


def _cases() -> Iterator[_Case]:
    size = {"num_teachers": 10, "num_classes": 3}
    gaussian = GNMax(**size, sigma=3.0)
    yield _Case(name="LNMax, two-way tie", mechanism=LNMax(**size, scale=1.0), queries=1, delta=1e-4)
    yield _Case(name="GNMax, two-way tie", mechanism=gaussian)
    yield _Case(name="GNMax, clear winner", mechanism=gaussian, totals=(8, 2, 0), neighbour=(7, 3, 0))
    # The other step's noise is wide, so that its cost hides nothing.
    yield _Case(
        name="Confident-GNMax, argmax at a two-way tie",
        mechanism=ConfidentGNMax(**size, threshold=-1000, sigma1=100.0, sigma2=3.0),
    )
    yield _Case(
        name="Confident-GNMax, check at the threshold",
        mechanism=ConfidentGNMax(**size, threshold=5, sigma1=2.0, sigma2=100.0),
        totals=(5, 3, 2),
        neighbour=(6, 2, 2),
        bit_only=True,
    )
    yield _Case(
        name="Interactive-GNMax, check against the student",
        mechanism=InteractiveGNMax(**size, threshold=2, sigma1=2.0, sigma2=100.0, confidence=0.9),
        totals=(5, 3, 2),
        neighbour=(6, 2, 2),
        bit_only=True,
        predictions=(0.34, 0.33, 0.33),
    )
    yield _Case(
        name="Interactive-GNMax, argmax at a two-way tie",
        mechanism=InteractiveGNMax(**size, threshold=-1000, sigma1=100.0, sigma2=3.0, confidence=0.9),
        predictions=(0.05, 0.05, 0.9),
    )
