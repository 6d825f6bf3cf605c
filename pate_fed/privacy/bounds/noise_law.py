"""Tails of the integer noise that runs, and of its Rényi moments where a total moves: sums of positive terms.

The moment of a total that moves by k at order α is Σ P(x)^α P(x + k)^(1-α). Its part on an event of the noise
is what that event adds to a divergence, at most (data processing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.bounds.discrete import log_mass_gaussian_difference
from pate_fed.privacy.bounds.orders import Floats

__all__ = ["GAUSSIAN", "LAPLACE", "Ints", "NoiseLaw"]

Ints = NDArray[np.int64]

GAUSSIAN, LAPLACE = "gaussian", "laplace"

_WIDEST = 20_000  # votes that a table reaches: some 10^9 steps for a sum of two laws
_RANGE = {GAUSSIAN: 36.0, LAPLACE: 600.0}  # scales within which a probability is a float
_ENOUGH = {GAUSSIAN: 12.0, LAPLACE: 30.0}  # scales beyond which an event adds less than 1e-12
_DEPTH = {GAUSSIAN: 9.0, LAPLACE: 38.0}  # scales beyond a tail's begin that hold all but 1e-16 of it


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
            found = min(epsilon, found)
        return found * (1 + 2**-50)

    def farthest(self, order: float, shift: int) -> int | None:
        """Votes beyond which nothing adds to a moment that a float can tell; None if no table reaches."""
        reach = 2 * shift * order + _ENOUGH[self.kind] * self.scale + 7
        if reach + 2 * shift + 6 > min(_RANGE[self.kind] * self.scale, _WIDEST):
            return None
        return math.floor(reach)

    def depth(self) -> int:
        """Votes beyond the begin of a tail that hold all but 1e-16 of it."""
        return math.ceil(_DEPTH[self.kind] * self.scale) + 2

    def masses(self, most: int) -> Floats:
        """Pr[Z = x] for x = -most..most; `most` reaches beyond all but 1e-16."""
        mass = np.exp(self._logs(np.arange(-most, most + 1)))
        found: Floats = mass / mass.sum()
        return found

    def upper_tails(self, most: int) -> Floats:
        """Pr[Z >= j] for j = -most..most."""
        wide = most + self.depth()
        tails = np.cumsum(self.masses(wide)[::-1])[::-1]
        found: Floats = tails[wide - most : wide + most + 1]
        return found

    def tilted_tails(self, order: float, shift: int, most: int) -> Floats:
        """Ln Σ over x >= j of P(x)^α P(x + shift)^(1-α) for j = -most..most."""
        wide = most + self.depth()
        tails = np.logaddexp.accumulate(self._tilted(order, shift, wide)[::-1])[::-1]
        found: Floats = tails[wide - most : wide + most + 1]
        return found

    def difference_masses(self, most: int) -> Floats:
        """Pr[Z - Z' = j] for j = -most..most."""
        if self.kind == GAUSSIAN:  # in closed form
            found: Floats = np.exp(log_mass_gaussian_difference(np.arange(-most, most + 1), self.scale))
            return found
        wide = most + self.depth()
        mass = self.masses(wide)
        found = np.convolve(mass, mass)[2 * wide - most : 2 * wide + most + 1]
        return found

    def difference_tails(self, most: int) -> Floats:
        """Pr[Z - Z' >= j] for j = 0..most."""
        wide = most + 2 * self.depth()
        tails = np.cumsum(self.difference_masses(wide)[::-1])[::-1]
        found: Floats = tails[wide : wide + most + 1]
        return found

    def tilted_sum_tails(self, order: float, most: int) -> Floats:
        """Ln Σ over x + x' >= j of m(x) m(x') for j = 0..most, m(x) = P(x)^α P(x + 1)^(1-α)."""
        wide = most + self.depth()
        if self.kind == GAUSSIAN:  # m(x) = P(x) e^((α-1)(2x+1)/(2σ²)), so only the sum's tilt is added
            j = np.arange(2 * wide + 1)
            logs = log_mass_gaussian_difference(j, self.scale) + (order - 1) * (j + 1) / self.scale**2
            top = float(logs.max())
            sums = np.exp(logs - top)
        else:
            once = self._tilted(order, 1, wide)
            top = 2 * float(once.max())
            mass = np.exp(once - top / 2)
            sums = np.convolve(mass, mass)[2 * wide :]
        tails = np.cumsum(sums[::-1])[::-1]
        found: Floats = top + np.log(tails[: most + 1] + 1e-250)
        return found

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
