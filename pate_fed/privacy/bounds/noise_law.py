"""Tails of the integer noise that runs, and of its Rényi moments where a total moves: sums of positive terms.

The difference of two discrete Gaussians needs no numerical convolution: completing the square gives Pr[Z - Z'
= k] = exp(-k²/(4σ²)) θ(k mod 2) / N², with N = Σ exp(-x²/(2σ²)), θ(0) = Σ exp(-x²/σ²) and θ(1) = Σ exp(-(x +
1/2)²/σ²), sums over all integers x. The moment of a total that moves by k at order α is Σ P(x)^α P(x +
k)^(1-α). Its part on an event of the noise is what that event adds to a divergence, at most (data
processing).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.checks import Floats

Ints = NDArray[np.int64]

GAUSSIAN, LAPLACE = "gaussian", "laplace"

_WIDEST = 600_000  # votes that a table reaches
_RANGE = {GAUSSIAN: 36.0, LAPLACE: 600.0}  # scales within which a probability is a float
# Scales, and votes, beyond which an event adds less than 1e-12 to a moment; the further ones are for little
# noise, where the first reaches beyond what a float can hold. What they are costs tightness and never truth.
_ENOUGH = {GAUSSIAN: ((12.0, 7), (8.5, 3), (7.5, 1)), LAPLACE: ((30.0, 7),)}
PLAIN = 1024  # terms whose sum is off by less than 1.2e-13 of it
_LEAST = 1e-250  # of the largest sum, added where a float may hold less
_OFF = 1e-9  # more than the logarithm of a tail of moments is off, order for order
_DEPTH = {GAUSSIAN: 9.0, LAPLACE: 38.0}  # scales beyond a tail's begin that hold all but 1e-16 of it
# Mass beyond this many standard deviations past a gap is below 1e-21 of the gap's own tail.
_REACH = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Votes of one noise, and of a difference of two, beyond which little is added to a moment."""

    one: int
    pair: int


def exps(whole: Ints, rate: Fraction) -> Floats:
    """E to `whole` numbers times an exact `rate`: off by np.exp's own error and three roundings.

    The product is kept in two floats (Dekker 1971), as its rounding would grow with it. Shapes: any to the
    same.
    """
    high = float(rate)
    low, number = float(rate - Fraction(high)), whole.astype(np.float64)
    product = number * high
    (one, rest), (two, other) = (_halves(each) for each in (number, np.float64(high)))
    off = ((one * two - product) + one * other + rest * two) + rest * other
    found: Floats = np.exp(product) * (1 + (off + number * low))
    return found


def _halves(number: Any) -> tuple[Any, Any]:
    """Two floats of 26 bits whose sum is the number."""
    most = number * (2.0**27 + 1)
    high = most - (most - number)
    return high, number - high


def running_sum(terms: Floats) -> Floats:
    """Sums of the first, the first two, ... terms. Shapes: (n,) to the same.

    Many terms in blocks: n of one sign are then off by at most some 2√n roundings, and not by n.
    """
    if len(terms) <= PLAIN:
        return np.cumsum(terms)
    wide = math.isqrt(len(terms)) + 1
    padded = np.zeros(-(-len(terms) // wide) * wide)
    padded[: len(terms)] = terms
    rows = np.cumsum(padded.reshape(-1, wide), axis=1)
    rows[1:] += np.cumsum(rows[:-1, -1])[:, None]
    found: Floats = rows.ravel()[: len(terms)]
    return found


def tail_sum(terms: Floats) -> Floats:
    """Sums from each term to the last. Shapes: (n,) to the same."""
    return running_sum(terms[::-1])[::-1]


@dataclass(frozen=True, slots=True)
class NoiseLaw:
    """Discrete N(0, `scale`²) or discrete Laplace noise of that scale, in votes."""

    kind: str
    scale: float

    def rdp(self, order: float, shift: int) -> float:
        """RDP of a total that moves by `shift`, rounded up: αk²/(2σ²), or min(ε, ε² α/2), ε = k/scale."""
        epsilon = shift / self.scale
        found = order * epsilon * epsilon / 2
        if self.kind == LAPLACE:
            found = min(epsilon, found)  # pure DP, and Bun and Steinke 2016, Proposition 3.3
        return found * (1 + 2**-50)

    def reaches(self, order: float, shift: int) -> list[Reach]:
        """Votes beyond which nothing adds to a moment that a float can tell; empty if no table reaches."""
        found = []
        for scales, votes in _ENOUGH[self.kind]:
            one = math.floor(2 * shift * order + scales * self.scale + votes)
            pair = math.floor(4 * shift * order + 1.5 * scales * self.scale + 2 * votes)
            if one + 2 * shift <= min(_RANGE[self.kind] * self.scale, _WIDEST):
                found.append(Reach(one=one, pair=pair))
        return found

    def depth(self) -> int:
        """Votes beyond the begin of a tail that hold all but 1e-16 of it."""
        return math.ceil(_DEPTH[self.kind] * self.scale) + 2

    def masses(self, most: int) -> Floats:
        """Pr[Z = x] for x = -most..most; `most` reaches beyond all but 1e-16."""
        x, scale = np.arange(-most, most + 1), Fraction(self.scale)
        gaussian = self.kind == GAUSSIAN
        mass = exps(x * x, -1 / (2 * scale * scale)) if gaussian else exps(np.abs(x), -1 / scale)
        found: Floats = mass / mass.sum()
        return found

    def upper_tails(self, most: int) -> Floats:
        """Pr[Z >= j] for j = -most..most."""
        wide = most + self.depth()
        found: Floats = tail_sum(self.masses(wide))[wide - most : wide + most + 1]
        return found

    def tilted_tails(self, order: float, shift: int, most: int) -> Floats:
        """Ln Σ over x >= j of P(x)^α P(x + shift)^(1-α) for j = -most..most."""
        wide = most + self.depth()
        return _log_tails(self._tilted(order, shift, wide))[wide - most : wide + most + 1]

    def difference_masses(self, most: int) -> Floats:
        """Pr[Z - Z' = j] for j = -most..most."""
        j, scale = np.abs(np.arange(-most, most + 1)), Fraction(self.scale)
        if self.kind == GAUSSIAN:
            parity = np.array([_theta(self.scale, half) for half in (0.0, 0.5)])
            parity /= _theta(math.sqrt(2) * self.scale, 0.0) ** 2
            among: Floats = parity[j % 2] * exps(j * j, -1 / (4 * scale * scale))
            return among
        # With r = e^(-1/scale): between the two no noise costs more, and beyond r² a step.
        less, ratio = -math.expm1(-1 / self.scale), math.exp(-1 / self.scale)
        found: Floats = (less / (1 + ratio)) ** 2 * exps(j, -1 / scale)
        return found * (j + (1 + ratio * ratio) / (less * (1 + ratio)))

    def difference_tails(self, most: int) -> Floats:
        """Pr[Z - Z' >= j] for j = 0..most."""
        wide = most + 2 * self.depth()
        found: Floats = tail_sum(self.difference_masses(wide))[wide : wide + most + 1]
        return found

    def tilted_sum_tails(self, order: float, shift: int, most: int) -> Floats:
        """Ln Σ over x + x' >= j of m(x) m(x') for j = 0..most, m(x) = P(x)^α P(x + shift)^(1-α)."""
        wide = most + self.depth()
        if self.kind == GAUSSIAN:  # m(x) = P(x) e^((α-1)(2kx+k²)/(2σ²)), so only the sum's tilt is added
            j = np.arange(2 * wide + 1)
            logs = (
                log_mass_gaussian_difference(j, self.scale)
                + (order - 1) * shift * (j + shift) / self.scale**2
            )
            return _log_tails(logs)[: most + 1]
        once = self._tilted(order, shift, wide)
        top = float(once.max())
        mass = np.exp(once - top)
        found: Floats = 2 * top + np.log(tail_sum(np.convolve(mass, mass)[2 * wide :]) + _LEAST)[: most + 1]
        return found + _OFF

    def _logs(self, x: Ints) -> Floats:
        """Ln of the masses, not normalised."""
        if self.kind == GAUSSIAN:
            logs: Floats = -((x / self.scale) ** 2) / 2
        else:
            logs = -np.abs(x) / self.scale
        return logs

    def _tilted(self, order: float, shift: int, wide: int) -> Floats:
        x = np.arange(-wide, wide + 1)
        total = math.log(float(np.exp(self._logs(x)).sum()))
        logs: Floats = order * self._logs(x) + (1 - order) * self._logs(x + shift) - total
        return logs


def _log_tails(logs: Floats) -> Floats:
    """Ln of the sums of e^`logs` from each term to the last, rounded up. Shapes: (n,) to the same."""
    top = float(logs.max())
    found: Floats = top + np.log(tail_sum(np.exp(logs - top)) + _LEAST) + _OFF
    return found


def _theta(width: float, shift: float) -> float:
    """Σ over integers x of exp(-(x + shift)²/width²)."""
    if width > 6:  # Poisson summation: the next term is exp(-π² width²) < 1e-154
        return width * math.sqrt(math.pi)
    x = np.arange(-64, 65) + shift
    return float(np.exp(-((x / width) ** 2)).sum())


def log_tail_gaussian(gap: Ints, sigma: float) -> Floats:
    """Log-tail ln Pr[Z >= gap] of the discrete Gaussian. Shapes: any to the same, in votes."""
    normaliser = math.log(_theta(math.sqrt(2) * sigma, 0.0))
    return _log_tail(gap, sigma, lambda k: -((k / sigma) ** 2) / 2 - normaliser)


def log_tail_gaussian_difference(gap: Ints, sigma: float) -> Floats:
    """Log-tail ln Pr[Z - Z' >= gap] of two independent discrete Gaussians; a tie counts at gap 0."""
    return _log_tail(gap, math.sqrt(2) * sigma, lambda k: log_mass_gaussian_difference(k, sigma))


def log_mass_gaussian_difference(k: Ints, sigma: float) -> Floats:
    """Ln Pr[Z - Z' = k] of two independent discrete Gaussians. Shapes: any to the same, in votes."""
    normaliser = 2 * math.log(_theta(math.sqrt(2) * sigma, 0.0))
    with np.errstate(divide="ignore"):  # θ(1) underflows for σ below 0.02: an odd difference never happens
        parity = np.log([_theta(sigma, 0.0), _theta(sigma, 0.5)]) - normaliser
    found: Floats = parity[k % 2] - ((k / sigma) / 2) ** 2
    return found


def log_tail_laplace_difference(gap: Ints, scale: float) -> Floats:
    """Log-tail ln Pr[Z - Z' >= gap] of two independent discrete Laplace variables, gap >= 0."""
    ratio, step = math.exp(-1 / scale), -math.expm1(-1 / scale)
    both = 2 * ratio**2 / (step * (1 + ratio))
    factor = (gap + 1 + both) / step + ratio / step**2
    tail: Floats = 2 * math.log(step / (1 + ratio)) - gap / scale + np.log(factor)
    return np.minimum(tail, 0.0)


def _log_tail(gap: Ints, deviation: float, log_mass: Callable[[Ints], Floats]) -> Floats:
    """Logarithm of Pr[K >= gap] of a symmetric integer law with a Gaussian fall, from a table of masses."""
    gap = np.asarray(gap, dtype=np.int64)
    if gap.size == 0:
        return np.zeros(gap.shape)
    above = np.where(gap > 0, gap, 1 - gap)  # Pr[K >= g] = 1 - Pr[K >= 1 - g]
    table = _upper_tails(int(above.max()), deviation, log_mass)
    tail = table[above]
    with np.errstate(divide="ignore"):
        return np.where(gap > 0, tail, np.log1p(-np.exp(tail)))


def _upper_tails(most: int, deviation: float, log_mass: Callable[[Ints], Floats]) -> Floats:
    """Logarithm of Pr[K >= k] for k = 0..most; entry 0 is not used."""
    if most <= deviation:  # the tails are above 0.15, so nothing cancels, and no long table is needed
        mass = np.exp(log_mass(np.arange(most + 1)))
        below = np.concatenate(([0.0], np.cumsum(mass)))[: most + 1]
        near: Floats = np.log(0.5 + mass[0] / 2 - below)
        return near
    reach = most + math.ceil(_REACH * deviation) + 2
    masses = log_mass(np.arange(reach + 1))
    tails: Floats = np.logaddexp.accumulate(masses[::-1])[::-1]
    return tails[: most + 1]


def _special(name: str) -> Callable[..., Any]:
    """SciPy's function of that name, loaded when it is called: a hospital's process starts without SciPy."""

    def call(*arguments: Any) -> Any:
        from scipy import special

        return getattr(special, name)(*arguments)

    return call


ndtr, log_ndtr = _special("ndtr"), _special("log_ndtr")  # Φ(x) and ln Φ(x)
ndtri_exp = _special("ndtri_exp")  # Φ⁻¹ of e^x
betainc = _special("betainc")  # the beta distribution function
betaincinv = _special("betaincinv")  # the p-quantile of the beta distribution with a and b
