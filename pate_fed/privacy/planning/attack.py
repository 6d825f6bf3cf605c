"""An attack on what a mechanism is charged: neighbouring inputs that are told apart better than that allows.

Whether an outcome is in an event is a function of it. So of two laws that differ by RDP(α) the chances p and
q of any event differ by no more, at every order: 1/(α-1) ln(p^α q^(1-α) + (1-p)^α (1-q)^(1-α)) <= RDP(α)
(data processing); of two that are (ε, δ)-close ln((p - δ)/q) <= ε. The left sides grow with p and fall with
q < p, so Clopper-Pearson bounds on both give a lower bound. Small samples of all inputs choose two of them
and the event, fresh ones measure it: no choice has to be paid for. What passes is not proven.

Or canaries, each in by a fair coin, are guessed from one run. Steinke, Nasr and Jagielski 2023 (arXiv
2305.08846), Theorem 3.1 and Corollary 5.4: where every coin of m moves the law of the output by (ε, δ) at
most, and r of them are guessed from it,

    P[at least v guesses are right] <= P[B >= v] + max over i from 1 to v of 2mδ/i P[v > B >= v - i],

with B binomial of r trials at e^ε/(1 + e^ε). Why: at δ = 0 a coin is even before, and by Bayes' rule its odds
after the output are e^ε at most, whatever the other coins are; so right guesses are dominated by B. A δ adds
guesses that are right beyond it, 2mδ of them in the mean at most. Given B, the worst law of their number with
that mean is 0 or one i: a linear programme. What holds at ε holds above it, so every ε at which the right
side is below the chance of a mistake is refuted, and all below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.format import delta_text
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS
from pate_fed.privacy.bounds.noise_law import betainc, betaincinv
from pate_fed.privacy.checks import Floats, check_count, is_number
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.own import OwnMechanism

Ints = NDArray[np.int64]
Row = tuple[int, ...]
Draw = Callable[[Row, int], Ints]  # how often each outcome came up in so many queries about an input

LEAST_TRIALS = 100
MANY_TRIALS = 10_000  # queries; the default, of which the power against our mechanisms is known
_LEAST = 1e-12  # nats, for a ratio: nothing may be charged at a large δ
_EXPLORING = 0.05  # chance that a bound fails which only chooses
_STEPS = 100  # queries at each step of the search for a jump
_MOST_VOTES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What was told apart, by `measured` or more with `confidence`, and what is `charged`, in nats.

    Both are RDP at `order`, or ε at `delta`. `few` says that only a large fault would have been noticed.
    """

    name: str
    order: float | None = None
    delta: float | None
    measured: float
    charged: float
    tried: str
    confidence: float
    few: bool

    @property
    def passed(self) -> bool:
        """Whether the mechanism was not caught."""
        return self.measured <= self.charged

    @property
    def text(self) -> str:
        """What was measured."""
        what, where = "RDP" if self.delta is None else "ε", f"order {self.order or 0:.3g}"
        where = where if self.delta is None else f"δ={delta_text(self.delta)}"
        found = f"sampled {what} >= {self.measured:.3g} at {where}, charged {self.charged:.3g}"
        return f"{found} ({self.tried}, confidence {self.confidence:g})"

    def line(self) -> str:
        """The finding in one line."""
        verdict = "no fault found" + " (so few trials find only large ones)" * self.few
        verdict = verdict if self.passed else "FAULT: the mechanism leaks more than it is charged for"
        return f"{self.name}: {self.text}: {verdict}"


def check_sampling(trials: int, confidence: float) -> None:
    """Refuse too few trials, or a confidence that is none: InputError."""
    check_count("trials", trials, least=LEAST_TRIALS)
    if not is_number(confidence) or not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: must be above 0.5 and below 1")


def _bounds(hits: Ints, others: Ints, trials: int, miss: float) -> tuple[Floats, Floats]:
    """A chance's lower bound by `hits`, and another's upper one by `others` (Clopper and Pearson 1934)."""
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, miss), 0.0)
    rest = np.maximum(trials - others, 1)
    return low, np.where(others < trials, betaincinv(others + 1, rest, 1 - miss), 1.0)


def attack(
    name: str,
    charged: Sequence[float],
    pairs: Iterable[tuple[Row, Row]],
    draw: Draw,
    *,
    deltas: Sequence[float] = (),
    trials: int = MANY_TRIALS,
    confidence: float = 0.999,
) -> AttackResult:
    """Search neighbouring inputs for an event that tells them apart by more than is `charged`.

    That is RDP at the first of `CLAIMED_ORDERS`, or ε at the `deltas`. Of twice as many queries as
    `trials` half are shared out over all inputs, a quarter where these are two; the others measure.

    Raises:
        InputError: too few trials, or a confidence that is none.
    """
    check_sampling(trials, confidence)
    both = list(dict.fromkeys((*pairs, *((two, one) for one, two in pairs))))
    rows = dict.fromkeys(row for pair in both for row in pair)
    explored = trials // (4 if len(rows) == 2 else 2)
    seen = {row: draw(row, max(10, 2 * explored // len(rows))) for row in rows}
    found = [(_most(seen[one], seen[two], charged, deltas), one, two) for one, two in both]
    (_, event), one, two = max(found, key=lambda each: each[0][0])
    fresh = [draw(row, trials - explored) for row in (one, two)]
    hits, others = (each[list(event)].sum(keepdims=True) for each in fresh)
    low, high = _bounds(hits, others, int(fresh[0].sum()), (1 - confidence) / 2)
    curve = _apart(low, high, len(charged), deltas)[0]
    at = int(np.argmax(curve / np.maximum(charged, _LEAST)))
    return AttackResult(
        name=name,
        order=None if deltas else CLAIMED_ORDERS[at],
        delta=deltas[at] if deltas else None,
        measured=float(curve[at]),
        charged=float(charged[at]),
        tried=f"{trials} queries of {_short(one)} and {_short(two)}",
        confidence=confidence,
        few=trials < MANY_TRIALS,
    )


def audit_own(
    mechanism: OwnMechanism,
    noise: NoiseSource,
    *,
    code: Any = None,
    trials: int = MANY_TRIALS,
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


def chance_of_guesses(right: int, *, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the chance of so many right guesses where (ε, δ) holds."""
    count = np.arange(1, right + 1)
    share = 1 / (1 + math.exp(-epsilon))
    tails = np.concatenate([[1.0], betainc(count, guesses - count + 1, share)])  # P[B >= 0..right]
    more = (tails[right - count] - tails[right]) / count
    return min(1.0, float(tails[right] + 2 * canaries * delta * more.max(initial=0.0)))


def one_run_bound(right: int, *, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The lower bound of ε at δ, with `confidence`, of so many right guesses; how many are made was fixed."""
    low, high = -1.0, 30.0  # no number of guesses refutes a larger ε
    for _ in range(50):
        middle = (low + high) / 2
        chance = chance_of_guesses(
            right, guesses=guesses, canaries=canaries, epsilon=max(middle, 0.0), delta=delta
        )
        low, high = (middle, high) if chance <= 1 - confidence else (low, middle)
    return max(low, 0.0)


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


def _most(
    one: Ints, two: Ints, charged: Sequence[float], deltas: Sequence[float]
) -> tuple[float, tuple[int, ...]]:
    """By how much of what is charged an event tells two samples apart at most, about, and the event."""
    order = np.argsort(-(one + 0.5) / (two + 0.5), kind="stable")
    hits, others = np.cumsum(one[order])[:-1], np.cumsum(two[order])[:-1]
    low, high = _bounds(hits, others, int(one.sum()), _EXPLORING)
    excess = (_apart(low, high, len(charged), deltas) / np.maximum(charged, _LEAST)).max(axis=1)
    best = int(np.argmax(excess))
    return float(excess[best]), tuple(int(each) for each in order[: best + 1])


def _apart(p: Floats, q: Floats, orders: int, deltas: Sequence[float]) -> Floats:
    """By how much two coins with chances (n,) are apart at each order or δ, (n, orders); 0 where p <= q."""
    p, q = p[:, None], q[:, None]
    if not deltas:
        return _binary_rdp(p, q, orders)
    found: Floats = np.log(np.maximum(np.maximum(p - np.asarray(deltas), 1e-300) / q, 1.0))
    return found


def _binary_rdp(p: Floats, q: Floats, orders: int) -> Floats:
    """RDP of two coins with these chances at the first so many orders, 0 where p <= q."""
    alpha = np.array(CLAIMED_ORDERS[:orders])
    with np.errstate(divide="ignore", invalid="ignore"):
        yes, no = (alpha * np.log(one) + (1 - alpha) * np.log(two) for one, two in ((p, q), (1 - p, 1 - q)))
        found: Floats = np.where(p > q, np.logaddexp(yes, no) / (alpha - 1), 0.0)
    return np.nan_to_num(found, nan=0.0)


def _short(row: Row) -> str:
    return str(row) if len(row) < 6 else f"({', '.join(map(str, row[:4]))}, ...)"
