"""What a mechanism of the user's own says that a query costs, and the noise that its labels are held to.

Roads to a price, of which the smallest is charged: an RDP curve, an event of dp-accounting, the ε of pure DP,
or the law of noise on totals. `pate_fed.privacy.mechanisms.own` says what a mechanism is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import pure_rdp
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS, Claim, check_curve
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE
from pate_fed.privacy.checks import check_scale, is_number
from pate_fed.privacy.mechanisms.events import cost_of_dp_event, is_dp_event
from pate_fed.privacy.mechanisms.noise import NoiseSource, Shape
from pate_fed.privacy.protection import Protection
from pate_fed.structure.faults import telling

Ints = NDArray[np.int64]
ROADS = ("rdp", "dp_event", "pure_dp", "noise_on_totals")
GUMBEL, EXPONENTIAL = "gumbel", "exponential"

# Noise on totals. One unit moves the gap between two totals by at most g, the L1 sensitivity: a loses what b
# gains, or only one of them moves.
# Gaussian and Laplace: the label is what noisy_max would give with the noise that was drawn, so
# docs/proofs/outcomes.md holds.
# Exponential, of scale b: given the others' noisy totals, i wins with chance E[w(R)], w rising in its own
# noise R >= 0. A neighbour's is at least E[w(R - g)] = Pr[R >= g] E[w(R)] = e^(-g/b) E[w(R)], as R - g given
# R >= g has R's law. The same for whole (geometric) noise, however ties are broken. So it is g/b-DP.
# Gumbel, of scale b: i wins with chance e^(n_i/b) / Z (McFadden 1974), the exponential mechanism. Its loss,
# (n_i - n'_i)/b - ln(Z/Z'), stays in a range of g/b over i, with 0 in it as both sum to 1. So it is g/b-DP,
# and its RDP is at most α (g/b)²/8, as of any losses with such a range (Rogers and Steinke 2021).


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity(Protection):
    """What a mechanism may rely on of one query's totals: sizes, and how far one unit moves them.

    Shapes: totals are (num_classes,), each from 0 to `num_teachers`. Of neighbouring totals `l1` bounds the
    L1 and `l2_squared` the squared L2 distance, `top` by how much the largest differs, in votes.
    `votes_moved` votes go from class to class, or, with `votes_vanish`, appear or disappear.
    """

    num_teachers: int
    num_classes: int

    @classmethod
    def of(cls, protection: Protection, *, num_teachers: int, num_classes: int) -> Sensitivity:
        """That of the totals where this is protected."""
        return cls(**asdict(protection), num_teachers=num_teachers, num_classes=num_classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsNoise:
    """The class with the largest total wins, after independent noise of one law on each; ties evenly.

    `law` is "gaussian" (discrete, of σ = `scale`), "laplace" (discrete), "gumbel" or "exponential"; `scale`
    in votes. Of the first two the winner is charged, as GNMax's and LNMax's, and each label is held to the
    noise that was drawn: one draw for all totals, ties by the largest of `tie_keys`. Of the others no label
    is held; they are ε-DP, ε = L1 sensitivity / scale (see below).

    Raises:
        InputError: another law, or a scale that is none.
    """

    law: str
    scale: float

    def __post_init__(self) -> None:
        if self.law not in (GAUSSIAN, LAPLACE, GUMBEL, EXPONENTIAL):
            raise InputError(f"law={self.law!r}: gaussian, laplace, gumbel or exponential is meant")
        object.__setattr__(self, "scale", check_scale("scale", self.scale))

    @property
    def held(self) -> bool:
        """Whether labels can be held to it."""
        return self.law in (GAUSSIAN, LAPLACE)

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """RDP of one query in nats, rounded up; with Gaussian noise that of all noisy totals."""
        if self.law == GAUSSIAN:
            return order * sensitivity.l2_squared / (2 * self.scale**2) * (1 + 2**-50)
        epsilon = sensitivity.l1 / self.scale
        narrow = order * epsilon**2 / 8 * (1 + 2**-50) if self.law == GUMBEL else math.inf
        return min(narrow, pure_rdp(epsilon, order))


class Heard:
    """A source of noise that keeps what it gave, to which a label is held."""

    def __init__(self, source: NoiseSource) -> None:
        self.kind, self.private, self._source = source.kind, source.private, source
        self._drawn, self._keys = list[tuple[TotalsNoise, Ints]](), list[Ints]()

    def discrete_gaussian(self, shape: Shape, *, sigma: float) -> Ints:
        """The source's."""
        return self._kept(GAUSSIAN, sigma, self._source.discrete_gaussian(shape, sigma=sigma))

    def discrete_laplace(self, shape: Shape, *, scale: float) -> Ints:
        """The source's."""
        return self._kept(LAPLACE, scale, self._source.discrete_laplace(shape, scale=scale))

    def tie_keys(self, shape: Shape) -> Ints:
        """The source's."""
        keys = self._source.tie_keys(shape)
        self._keys.append(keys.ravel().copy())
        return keys

    @property
    def silent(self) -> bool:
        """Whether nothing was asked for."""
        return not self._drawn and not self._keys

    def winner(self, totals: Ints, law: TotalsNoise) -> int | None:
        """The class that wins by the only noise that was drawn; None where it was of another law or shape."""
        if [(each, len(noise)) for each, noise in self._drawn] != [(law, len(totals))]:
            return None
        noisy = totals + self._drawn[0][1]
        best = np.flatnonzero(noisy == noisy.max())
        if len(best) == 1:
            return int(best[0])
        sizes = [len(keys) for keys in self._keys]  # once, for all classes or for those that are tied
        if sizes not in ([len(best)], [len(totals)]):
            return None
        keys = self._keys[0] if sizes == [len(best)] else self._keys[0][best]
        return int(best[keys.argmax()])

    def _kept(self, law: str, scale: float, noise: Ints) -> Ints:
        self._drawn.append((TotalsNoise(law=law, scale=scale), noise.ravel().copy()))
        return noise


class Price(NamedTuple):
    """What a mechanism says that a query costs, as a `Claim` has it."""

    rdp: tuple[float, ...]
    pure: float | None = None
    noise: str = ""
    scale: float = 0.0

    @classmethod
    def of(cls, claim: Claim) -> Price:
        """What was claimed."""
        return cls(claim.rdp, claim.pure, claim.noise, claim.scale)


def law_of(claim: Claim) -> TotalsNoise | None:
    """The noise that its labels are held to, if any."""
    return TotalsNoise(law=claim.noise, scale=claim.scale) if claim.noise else None


def whole_price(made: Any, sensitivity: Sensitivity, *, what: str) -> Price:
    """All of it, with RDP at all orders up to the last at which it is finite, held to what a curve can be."""
    price = price_at(made, sensitivity, CLAIMED_ORDERS, what=what)
    check_curve(price.rdp, what)
    return price


def price_at(made: Any, sensitivity: Sensitivity, orders: Sequence[float], *, what: str) -> Price:
    """The smallest at each order of what it says, held to be numbers."""
    says = {name for name in ROADS if callable(getattr(made, name, None))}
    curves, pure, law = [[math.inf] * len(orders)], math.inf, None
    with telling(f"{what}: its privacy curve fails"):
        if "noise_on_totals" in says and sensitivity.num_teachers:  # else numbers are released, not classes
            law = made.noise_on_totals()
        if "rdp" in says:
            curves.append([made.rdp(order, sensitivity) for order in orders])
        event = made.dp_event(sensitivity) if "dp_event" in says else None
        if "pure_dp" in says:
            pure = made.pure_dp(sensitivity)
    if event is not None:
        curves.append(_event_curve(event, orders, what=what))
    if law is not None:
        if type(law) is not TotalsNoise:
            raise InputError(f"{what}: noise_on_totals gives a {type(law).__name__}; a TotalsNoise is meant")
        curves.append([law.rdp(order, sensitivity) for order in orders])
        if not law.held:
            pure = min(pure, sensitivity.l1 / law.scale * (1 + 2**-50))
    if not is_number(pure) or not pure > 0:
        raise InputError(f"{what}: claims to be {pure!r}-DP; nats above 0 are meant")
    if pure < math.inf:
        curves.append([pure_rdp(float(pure), order) for order in orders])
    found: list[float] = []
    for order, *values in zip(orders, *curves, strict=True):
        if wrong := [each for each in values if not is_number(each) or math.isnan(each)]:
            raise InputError(
                f"{what}: claims an RDP of {wrong[0]!r} at order {order:.4g}; nats above 0 are meant"
            )
        if min(values) == math.inf:
            break
        found.append(float(min(values)))
    known = None if pure == math.inf else float(pure)
    return Price(tuple(found), known, *((law.law, law.scale) if law is not None and law.held else ()))


def _event_curve(event: Any, orders: Sequence[float], *, what: str) -> list[float]:
    if not is_dp_event(event):
        raise InputError(
            f"{what}: dp_event gives a {type(event).__name__}; a DpEvent of dp-accounting is meant"
        )
    with telling(f"{what}: its privacy curve fails"):
        curve = cost_of_dp_event(event)
        return [math.nextafter(float(curve.rdp(Fraction(order))), math.inf) for order in orders]
