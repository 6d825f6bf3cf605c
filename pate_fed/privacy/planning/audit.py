"""An empirical audit of our mechanisms: each is sampled on neighbouring votes, and held to the ledger's ε.

A lower bound above the ledger's ε proves a fault (but for one audit in a thousand, by chance). One below it
proves nothing; it only failed to find a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.checks import is_number
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from pate_fed.privacy.planning.attack import MANY_TRIALS, AttackResult, Row, attack
from pate_fed.privacy.protection import RECORD, Protection

Audited = LNMax | GNMax | ConfidentGNMax


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCase:
    """A mechanism, as the ledger charges it, and two neighbouring votes to tell apart.

    The same query is released `queries` times in each trial. `bit_only` looks at the answered bits alone, for
    which the ledger's cost is that of the check. `predictions` are the student's, for Interactive-GNMax. A
    large δ finds most: there the ledger's bound on Gaussian noise is tightest, and events are frequent. At a
    smaller one ties that are broken with a preference show.

    Shapes: `totals`, `neighbour` and `predictions` (classes,).
    """

    name: str
    mechanism: Audited
    totals: Row
    neighbour: Row
    queries: int = 1
    deltas: tuple[float, ...] = (0.63, 0.5)
    bit_only: bool = False
    predictions: tuple[float, ...] = ()
    protection: Protection = RECORD

    @property
    def epsilons(self) -> list[float]:
        """ε at each δ that a ledger guarantees for at most `queries` queries."""
        cost = self.mechanism.cost(self.queries, 0 if self.bit_only else self.queries, self.protection)
        return [capped_cost_epsilon(cost, delta) for delta in self.deltas]

    def with_noise(self, factor: float) -> Audited:
        """The mechanism with `factor` times its noise."""
        noise = {"scale", "sigma", "sigma1", "sigma2"} & self.mechanism.parameters().keys()
        return replace(self.mechanism, **{each: factor * getattr(self.mechanism, each) for each in noise})

    def draw(self, mechanism: Audited, noise: NoiseSource, votes: Row, count: int) -> NDArray[np.int64]:
        """How often in `count` queries each number came up of answers by the first class less the second."""
        rows = count // self.queries * self.queries
        totals = np.tile(np.array(votes, dtype=np.int64), (rows, 1))
        told: dict[str, Any] = (
            {"predictions": np.tile(self.predictions, (rows, 1))} if self.predictions else {}
        )
        release = mechanism.release(totals, noise, **told)
        label = np.where(release.answered, 0, -1) if self.bit_only else release.label
        score = ((label == 0).astype(np.int64) - (label == 1)).reshape(-1, self.queries).sum(axis=1)
        return np.bincount(score + self.queries, minlength=2 * self.queries + 1)

    def audit(self, noise: NoiseSource, *, sampled: Audited | None = None, **how: Any) -> AttackResult:
        """Attack it; `sampled` is what is drawn from where a fault is to be simulated."""
        draw = partial(self.draw, sampled or self.mechanism, noise)
        pairs = [(self.totals, self.neighbour)]
        return attack(self.name, self.epsilons, pairs, draw, deltas=self.deltas, **how)


def audit_all(
    noise: NoiseSource, *, trials: int = MANY_TRIALS, confidence: float = 0.999, shrink: float = 1.0
) -> list[AttackResult]:
    """Audit every sampled mechanism on the votes that are worst for it, with few votes and strong noise.

    With the default trials a tenth less noise is noticed at every mechanism with a chance above 99 %, and a
    right one is accused with one below 1 % in all. `trials` are queries: where a trial has several, there are
    as many fewer.

    `shrink` multiplies the noise that is drawn, not the one that is charged: 0.5 simulates a fault that the
    audit must find, with enough trials.
    """
    if not is_number(shrink) or not 0 < shrink <= 1:
        raise InputError(f"shrink={shrink!r}: must be above 0 and at most 1")
    how = {"trials": trials, "confidence": confidence}
    return [case.audit(noise, sampled=case.with_noise(shrink), **how) for case in cases()]


def cases() -> Iterator[AuditCase]:
    """What is audited."""
    size: dict[str, Any] = {"num_teachers": 9, "num_classes": 2}
    # One query, and little noise: a tenth less of it shows in a few thousand samples. What is charged for one
    # outcome is exact, and with an odd number of teachers the votes are those at which it is reached.
    close: dict[str, Any] = {"totals": (5, 4), "neighbour": (4, 5)}
    # The other step's noise is wide, so that its cost hides nothing, and its check is passed or not regarded.
    passed: dict[str, Any] = {"threshold": -1e6, "sigma1": 1e5, "sigma2": 0.7}
    check: dict[str, Any] = {"totals": (5, 4), "neighbour": (6, 3), "deltas": (0.5,), "bit_only": True}
    checked: dict[str, Any] = {"sigma1": 0.7, "sigma2": 100.0}
    confident, interactive = (
        ConfidentGNMax(**size, **passed),
        InteractiveGNMax(**size, **passed, confidence=0.9),
    )
    laplace: dict[str, Any] = {**close, "deltas": (0.76, 0.5)}
    yield AuditCase(name="LNMax, close vote", mechanism=LNMax(**size, scale=0.5), **laplace)
    yield AuditCase(name="GNMax, close vote", mechanism=GNMax(**size, sigma=0.7), **close)
    yield AuditCase(name="Confident-GNMax, argmax of a close vote", mechanism=confident, **close)
    close["predictions"] = (0.05, 0.95)
    yield AuditCase(name="Interactive-GNMax, argmax of a close vote", mechanism=interactive, **close)
    confident = ConfidentGNMax(**size, **checked, threshold=6)
    yield AuditCase(name="Confident-GNMax, check at the threshold", mechanism=confident, **check)
    interactive = InteractiveGNMax(**size, **checked, threshold=3, confidence=0.9)
    check["predictions"] = (0.34, 0.66)
    yield AuditCase(name="Interactive-GNMax, check against the student", mechanism=interactive, **check)
    # Several queries add up by bounds that are not exact: half the noise is noticed.
    tie: dict[str, Any] = {"totals": (5, 5, 0), "neighbour": (6, 4, 0), "queries": 4, "deltas": (0.1,)}
    four = GNMax(num_teachers=10, num_classes=3, sigma=3.0)
    yield AuditCase(name="GNMax, four two-way ties", mechanism=four, **tie)
