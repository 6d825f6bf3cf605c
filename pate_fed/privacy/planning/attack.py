"""An attack on what a mechanism claims: two neighbouring inputs that are told apart better than it says.

Whether an outcome is in an event is a function of it. So of two laws that differ by RDP(α) the chances p and
q of any event differ by no more, at every order: 1/(α-1) ln(p^α q^(1-α) + (1-p)^α (1-q)^(1-α)) <= RDP(α)
(data processing). The left side grows with p and falls with q < p, so Clopper-Pearson bounds on both give a
lower bound. Small samples of many inputs choose two of them and the event, fresh ones measure it: no choice
has to be paid for. What passes is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS
from pate_fed.privacy.bounds.noise_law import betaincinv
from pate_fed.privacy.checks import Floats, check_count, is_number
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.privacy.planning.audit import LEAST_TRIALS, clopper_pearson

Ints = NDArray[np.int64]
Row = tuple[int, ...]
Draw = Callable[[Row, int], Ints]  # how often each outcome came up in so many queries about an input

_EXPLORING = 0.05  # chance that a bound fails which only chooses
_STEPS = 100  # queries at each step of the search for a jump
_MOST_VOTES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The two neighbours that were told apart best: RDP at `order` is `measured` or more, with `confidence`.

    `claimed` is what the mechanism says it is at most. In nats.
    """

    name: str
    order: float
    measured: float
    claimed: float
    totals: Row
    neighbour: Row
    confidence: float
    trials: int

    @property
    def passed(self) -> bool:
        """Whether the mechanism was not caught."""
        return self.measured <= self.claimed

    @property
    def text(self) -> str:
        """What was measured."""
        return (
            f"sampled RDP >= {self.measured:.3g} at order {self.order:.3g}, claimed {self.claimed:.3g}, on "
            f"{_short(self.totals)} and {_short(self.neighbour)} ({self.trials} queries, confidence "
            f"{self.confidence:g})"
        )

    def line(self) -> str:
        """The finding in one line."""
        verdict = "no fault found" if self.passed else "FAULT: the mechanism leaks more than it claims"
        return f"{self.name}: {self.text}: {verdict}"


def attack(
    name: str,
    rdp: Sequence[float],
    pairs: Iterable[tuple[Row, Row]],
    draw: Draw,
    *,
    trials: int,
    confidence: float = 0.999,
) -> AttackResult:
    """Search neighbouring inputs for an event that tells them apart by more than `rdp` at `CLAIMED_ORDERS`.

    Half of the `trials` are shared out over all inputs, the others measure what they chose.

    Raises:
        InputError: too few trials, or a confidence that is none.
    """
    check_count("trials", trials, least=LEAST_TRIALS)
    if not is_number(confidence) or not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: must be above 0.5 and below 1")
    both = list(dict.fromkeys((*pairs, *((two, one) for one, two in pairs))))
    each = max(10, trials // 2 // len({row for pair in both for row in pair}))
    seen = {row: draw(row, each) for row in dict.fromkeys(row for pair in both for row in pair)}
    found = [(_most(seen[one], seen[two], rdp), one, two) for one, two in both]
    (_, event), one, two = max(found, key=lambda each: each[0][0])
    count, miss = trials // 4, (1 - confidence) / 2
    hits = [int(draw(row, count)[list(event)].sum()) for row in (one, two)]
    low, high = clopper_pearson(hits[0], count, miss=miss)[0], clopper_pearson(hits[1], count, miss=miss)[1]
    curve = _binary_rdp(np.array(low), np.array(high), len(rdp))
    at = int(np.argmax(curve / np.asarray(rdp)))
    return AttackResult(
        name=name,
        order=CLAIMED_ORDERS[at],
        measured=float(curve[at]),
        claimed=float(rdp[at]),
        totals=one,
        neighbour=two,
        confidence=confidence,
        trials=trials,
    )


def audit_own(
    mechanism: OwnMechanism,
    noise: NoiseSource,
    *,
    code: Any = None,
    trials: int = 20_000,
    confidence: float = 0.999,
) -> AttackResult:
    """Attack a mechanism of one's own by small votes, close ones, and those at which its answers change most.

    `code` is its object where that is at hand. Where it is worst nobody here knows, so this finds gross
    faults, such as noise that is missing or too small.

    Raises:
        InputError: parameters out of range, or code that cannot be loaded.
        IntegrityError: its labels are others than win by the noise that it claims.
    """
    made = mechanism.code() if code is None else code
    classes = mechanism.num_classes

    def draw(row: Row, count: int) -> Ints:
        totals = np.array(row, dtype=np.int64)
        labels = [mechanism.label(made, totals, noise) for _ in range(count)]
        return np.bincount(np.array(labels) % (classes + 1), minlength=classes + 1)  # none is the last

    pairs = _votes(mechanism, draw)
    return attack(mechanism.name, mechanism.claim.rdp, pairs, draw, trials=trials, confidence=confidence)


def _votes(mechanism: OwnMechanism, draw: Draw) -> list[tuple[Row, Row]]:
    """Neighbouring votes to try: of the second class some go to the first, or vanish."""
    protection, most = mechanism.protection, min(mechanism.num_teachers, _MOST_VOTES)
    moved = min(protection.votes_moved, most)
    gained, rest = 0 if protection.votes_vanish else moved, (0,) * (mechanism.num_classes - 2)
    middle = (most - moved) // 2
    given = [(few, few + moved) for few in (0, 1, 2, most // 8, middle)]
    given += [(0, most), (most // 4, most - most // 4), *((0, moved + more) for more in range(6))]
    given += [(few, few + times * moved) for times in (2, 3, 4) for few in (0, most // 8)]
    found = [((few, many, *rest), (few + gained, many - moved, *rest)) for few, many in given]
    ladder = sorted({0, *(round(most * step / 8) for step in range(1, 9))})
    top = _jump(ladder, lambda many: draw((0, many, *rest), _STEPS))
    found += [((0, at, *rest), (gained, at - moved, *rest)) for at in (top, top + moved - 1)]
    top = _jump(ladder, lambda many: draw((many, 0, *rest), _STEPS))
    found += [((at, 0, *rest), (at - moved, gained, *rest)) for at in (top, top + moved - 1)]
    return [(one, two) for one, two in found if 0 <= min(two) and sum(one) <= most and sum(two) <= most]


def _jump(ladder: Sequence[int], draw: Callable[[int], Ints]) -> int:
    """Where outcomes change most on the way up: the upper of two places that are next to each other."""

    def apart(one: int, two: int) -> int:
        return int(np.abs(seen[one] - seen[two]).sum())

    seen = {place: draw(place) for place in ladder}
    _, low, high = max((apart(*ends), *ends) for ends in pairwise(ladder))
    while high - low > 1:
        middle = (low + high) // 2
        seen[middle] = draw(middle)
        low, high = max(((low, middle), (middle, high)), key=lambda ends: apart(*ends))
    return high


def _most(one: Ints, two: Ints, rdp: Sequence[float]) -> tuple[float, tuple[int, ...]]:
    """By how much of `rdp` an event tells two samples apart at most, about, and the event."""
    order = np.argsort(-(one + 0.5) / (two + 0.5), kind="stable")
    hits, others, count = np.cumsum(one[order])[:-1], np.cumsum(two[order])[:-1], int(one.sum())
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), count - hits + 1, _EXPLORING), 0.0)
    rest = np.maximum(count - others, 1)
    high = np.where(others < count, betaincinv(others + 1, rest, 1 - _EXPLORING), 1.0)
    excess = (_binary_rdp(low[:, None], high[:, None], len(rdp)) / np.asarray(rdp)).max(axis=1)
    best = int(np.argmax(excess))
    return float(excess[best]), tuple(int(each) for each in order[: best + 1])


def _binary_rdp(p: Floats, q: Floats, orders: int) -> Floats:
    """RDP of two coins with these chances at the first so many orders, 0 where p <= q."""
    alpha = np.array(CLAIMED_ORDERS[:orders])
    with np.errstate(divide="ignore", invalid="ignore"):
        yes, no = (alpha * np.log(one) + (1 - alpha) * np.log(two) for one, two in ((p, q), (1 - p, 1 - q)))
        found: Floats = np.where(p > q, np.logaddexp(yes, no) / (alpha - 1), 0.0)
    return np.nan_to_num(found, nan=0.0)


def _short(row: Row) -> str:
    return str(row) if len(row) < 6 else f"({', '.join(map(str, row[:4]))}, ...)"
