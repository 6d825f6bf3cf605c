"""An empirical audit: sample the real mechanism on neighbouring votes, hold a lower bound of ε to the ledger.

A lower bound above the ledger's ε proves a fault (but for one audit in a thousand, by chance). One below it
proves nothing; it only failed to find a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.noise_law import betaincinv
from pate_fed.privacy.checks import Floats, check_count, check_delta, check_histograms, is_number
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from pate_fed.privacy.protection import RECORD, Protection

Ints = NDArray[np.int64]

LEAST_TRIALS = 100
_MANY_TRIALS = 10_000  # queries; the default, of which the power is known


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """Result of an audit. `lower_bound` holds with `confidence`; `epsilon` is the ledger's for the same δ.

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
    def few(self) -> bool:
        """Whether there were fewer trials than by default, so that only a large fault would be noticed."""
        return self.trials * self.queries < _MANY_TRIALS

    @property
    def passed(self) -> bool:
        """Whether the mechanism was not caught."""
        return self.lower_bound <= self.epsilon

    def line(self) -> str:
        """The finding in one line."""
        verdict = "no fault found" + " (so few trials find only large ones)" * self.few
        verdict = verdict if self.passed else "FAULT: the mechanism leaks more than the ledger says"
        charged = epsilon_text(self.epsilon)
        return (
            f"{self.name}: sampled ε >= {self.lower_bound:.3f}, ledger ε = {charged} at "
            f"δ={delta_text(self.delta)} ({self.queries} queries, {self.trials} trials, confidence "
            f"{self.confidence:g}): {verdict}"
        )


def clopper_pearson(hits: int, trials: int, *, miss: float) -> tuple[float, float]:
    """Exact bounds on a chance, each of which fails with probability at most `miss`."""
    check_count("trials", trials, least=1)
    if check_count("hits", hits) > trials or not 0 < miss < 1:
        raise InputError(f"hits={hits}, trials={trials}, miss={miss!r}: not a count of hits and a chance")
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, miss))
    high = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 1 - miss))
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCase:
    """A mechanism, as the ledger charges it, and two neighbouring votes to tell apart.

    The same query is released `queries` times in each trial. `bit_only` looks at the answered bits alone, for
    which the ledger's cost is that of the check. `predictions` are the student's, for Interactive-GNMax. A
    large δ finds most: there the ledger's bound on Gaussian noise is tightest, and events are frequent.

    Shapes: `totals`, `neighbour` and `predictions` (classes,).
    """

    name: str
    mechanism: LNMax | GNMax | ConfidentGNMax
    totals: tuple[int, ...] = (5, 5, 0)
    neighbour: tuple[int, ...] = (6, 4, 0)
    queries: int = 4
    delta: float = 0.1
    bit_only: bool = False
    predictions: tuple[float, ...] = ()
    protection: Protection = RECORD

    def __post_init__(self) -> None:
        check_count("queries", self.queries, least=1)
        check_delta(self.delta)
        pair = [check_histograms(row) for row in (self.totals, self.neighbour)]
        if pair[0].shape != pair[1].shape or len(pair[0]) != 1:
            raise InputError("the votes must be two histograms over the same classes")
        change = pair[1] - pair[0]
        size = int(np.abs(change).sum())
        if size == 0:
            raise InputError("the votes are the same, so there is nothing to tell apart")
        if size > self.protection.l1 or (not self.protection.votes_vanish and change.sum() != 0):
            raise InputError(
                f"the votes are no neighbours: {self.protection.text()} cannot turn one into the other"
            )

    @property
    def epsilon(self) -> float:
        """ε at δ that a ledger guarantees for at most `queries` queries."""
        answered = 0 if self.bit_only else self.queries
        return capped_cost_epsilon(self.mechanism.cost(self.queries, answered, self.protection), self.delta)

    def with_noise(self, factor: float) -> LNMax | GNMax | ConfidentGNMax:
        """The mechanism with `factor` times its noise."""
        names = ("scale", "sigma", "sigma1", "sigma2")
        values = self.mechanism.parameters().items()
        return replace(self.mechanism, **{part: factor * value for part, value in values if part in names})


def audit(
    case: AuditCase,
    noise: NoiseSource,
    *,
    sampled: LNMax | GNMax | ConfidentGNMax | None = None,
    trials: int = 20_000,
    confidence: float = 0.999,
) -> AuditResult:
    """Lower bound of ε from sampling the mechanism on both votes, beside what the ledger charges.

    A quarter of the trials chooses the event that tells the two apart best (a likelihood ratio of outcome
    counts), the others measure it: with Clopper-Pearson bounds, ε >= ln((P_low - δ)/P'_high). `sampled` is
    what is drawn from where a fault is to be simulated, the case's mechanism otherwise.
    """
    check_count("trials", trials, least=LEAST_TRIALS)
    if not is_number(confidence) or not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: must be above 0.5 and below 1")
    mechanism = case.mechanism if sampled is None else sampled
    here, there = (_outcomes(case, mechanism, row, noise, trials) for row in (case.totals, case.neighbour))
    return AuditResult(
        name=case.name,
        epsilon=case.epsilon,
        delta=case.delta,
        lower_bound=_lower_bound(here, there, case.delta, (1 - confidence) / 2),
        confidence=confidence,
        trials=trials,
        queries=case.queries,
    )


def _outcomes(
    case: AuditCase,
    mechanism: LNMax | GNMax | ConfidentGNMax,
    votes: tuple[int, ...],
    noise: NoiseSource,
    trials: int,
) -> Ints:
    """How often each outcome came up in each trial: (trials, classes + 1), unanswered last."""
    classes, rows = len(votes), trials * case.queries
    totals = np.tile(np.asarray(votes, dtype=np.int64), (rows, 1))
    if isinstance(mechanism, InteractiveGNMax):
        release = mechanism.release(totals, noise, predictions=np.tile(case.predictions, (rows, 1)))
    else:
        release = mechanism.release(totals, noise, protection=case.protection)
    outcome = np.where(release.answered, 0 if case.bit_only else release.label, classes)
    at = np.repeat(np.arange(trials), case.queries) * (classes + 1) + outcome
    return np.bincount(at, minlength=trials * (classes + 1)).reshape(trials, classes + 1)


def _lower_bound(here: Ints, there: Ints, delta: float, miss: float) -> float:
    """A bound below ε that fails with probability at most 2 `miss`, whichever of the two is more likely."""
    begin = len(here) // 4  # a quarter chooses the event, the rest measures it
    weights = _log_share(here[:begin]) - _log_share(there[:begin])
    chosen: tuple[float, float, float] = (-math.inf, 0.0, 1.0)
    for sign, first, second in ((1.0, here, there), (-1.0, there, here)):
        bound, cut = _best_cut(
            first[:begin] @ (sign * weights), second[:begin] @ (sign * weights), delta, miss
        )
        chosen = max(chosen, (bound, cut, sign))
    _, cut, sign = chosen
    first, second = (here, there) if sign > 0 else (there, here)
    # Fresh trials measure the one event that was chosen, so no choice has to be paid for.
    hits = [int((rows[begin:] @ (sign * weights) >= cut).sum()) for rows in (first, second)]
    low, _ = clopper_pearson(hits[0], len(here) - begin, miss=miss)
    _, high = clopper_pearson(hits[1], len(here) - begin, miss=miss)
    # ε >= ln((P - δ)/P') for every event (the definition of (ε, δ)-DP)
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
    low = betaincinv(hits, len(first) - hits + 1, miss)  # Clopper and Pearson 1934, at every cut
    high = np.where(
        others == len(second), 1.0, betaincinv(others + 1, np.maximum(len(second) - others, 1), 1 - miss)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)
    best = int(np.argmax(bound))
    return float(bound[best]), float(cuts[best])


def audit_all(
    noise: NoiseSource, *, trials: int = _MANY_TRIALS, confidence: float = 0.999, shrink: float = 1.0
) -> list[AuditResult]:
    """Audit every sampled mechanism on the votes that are worst for it, with few votes and strong noise.

    With the default trials a tenth less noise is noticed at every mechanism with a chance above 99 %, and a
    right one is accused with one below 1 % in all. `trials` are queries: where a trial has several, there are
    as many fewer.

    `shrink` multiplies the noise that is drawn, not the one that is charged: 0.5 simulates a fault that the
    audit must find, with enough trials.
    """
    check_count("trials", trials, least=LEAST_TRIALS)
    if not is_number(shrink) or not 0 < shrink <= 1:
        raise InputError(f"shrink={shrink!r}: must be above 0 and at most 1")
    return [
        audit(
            case,
            noise,
            sampled=case.with_noise(shrink),
            trials=max(LEAST_TRIALS, trials // case.queries),
            confidence=confidence,
        )
        for case in _cases()
    ]


def _cases() -> Iterator[AuditCase]:
    size: dict[str, Any] = {"num_teachers": 9, "num_classes": 2}
    # One query, and little noise: a tenth less of it shows in a few thousand samples. What is charged for one
    # outcome is exact, and with an odd number of teachers the votes are those at which it is reached.
    close: dict[str, Any] = {"totals": (5, 4), "neighbour": (4, 5), "queries": 1}
    # The other step's noise is wide, so that its cost hides nothing, and its check is passed or not regarded.
    passed: dict[str, Any] = {"threshold": -1e6, "sigma1": 1e5}
    check: dict[str, Any] = {"totals": (5, 4), "neighbour": (6, 3), "queries": 1, "delta": 0.5}
    yield AuditCase(name="LNMax, close vote", mechanism=LNMax(**size, scale=0.5), delta=0.76, **close)
    yield AuditCase(name="GNMax, close vote", mechanism=GNMax(**size, sigma=0.7), delta=0.63, **close)
    yield AuditCase(
        name="Confident-GNMax, argmax of a close vote",
        mechanism=ConfidentGNMax(**size, **passed, sigma2=0.7),
        delta=0.63,
        **close,
    )
    yield AuditCase(
        name="Confident-GNMax, check at the threshold",
        mechanism=ConfidentGNMax(**size, threshold=6, sigma1=0.7, sigma2=100.0),
        bit_only=True,
        **check,
    )
    yield AuditCase(
        name="Interactive-GNMax, check against the student",
        mechanism=InteractiveGNMax(**size, threshold=3, sigma1=0.7, sigma2=100.0, confidence=0.9),
        bit_only=True,
        predictions=(0.34, 0.66),
        **check,
    )
    yield AuditCase(
        name="Interactive-GNMax, argmax of a close vote",
        mechanism=InteractiveGNMax(**size, **passed, sigma2=0.7, confidence=0.9),
        delta=0.63,
        predictions=(0.05, 0.95),
        **close,
    )
    # Several queries add up by bounds that are not exact: half the noise is noticed.
    four = GNMax(num_teachers=10, num_classes=3, sigma=3.0)
    yield AuditCase(name="GNMax, four two-way ties", mechanism=four)
